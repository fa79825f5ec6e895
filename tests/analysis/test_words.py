"""Which words make the difference: from losses by rank, seed by seed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from analysis.claims import FAILS, HOLDS, UNDECIDED
from analysis.trials import TrialResult
from analysis.words import WORDS
from tests.analysis.fake_trials import result

SHARES = (0.6, 0.4)


def runs(
    common: float, rare: float, *, data: str = "one", noise: float = 0.01
) -> list[TrialResult]:
    """Adam, and NovoGrad that gains so many nats on either kind of word; three seeds."""
    found = []
    for seed in range(3):
        for name, gains in (("adam", (0.0, 0.0)), ("novograd", (common, rare))):
            shift = noise * seed if name == "novograd" else 0.0
            losses = [5.0 - gain + shift for gain in gains]
            whole = sum(share * loss for share, loss in zip(SHARES, losses, strict=True))
            final = {"test/loss": whole}
            for band, share, loss in zip(("1_10", "11_99"), SHARES, losses, strict=True):
                final |= {f"test/share_words_{band}": share, f"test/loss_words_{band}": loss}
            one = result(
                math.exp(whole),
                study="words",
                data=data,
                optimizer=name,
                seed=seed,
                metric="test/ppl",
                final=final,
            )
            assert one.record is not None
            ratios = {"optimizer/update_ratio/embedding": 0.002, "speed/units_per_s": 9.0}
            found.append(replace(one, record=replace(one.record, meters=ratios)))
    return found


@pytest.mark.parametrize(
    ("common", "rare", "verdict"),
    [(0.0, 0.5, HOLDS), (-0.1, 0.5, HOLDS), (0.5, 0.0, FAILS), (0.0, -0.5, HOLDS)],
)
def test_the_part_of_the_rarest_words_decides(common: float, rare: float, verdict: str):
    found = WORDS.result([*runs(common, rare), *runs(common, rare, data="other")])
    assert found is not None
    assert found.verdict == verdict


def test_the_numbers_are_those_of_the_records():
    found = WORDS.result(runs(0.1, 0.5))
    assert found is not None
    assert found.verdict == UNDECIDED  # one data set alone decides nothing
    row = found.numbers["one, words 11 to 99"]
    assert row["Adam"] == 5.0
    assert row["NovoGrad"] == pytest.approx(4.51)
    assert row["share of all words, %"] == 40.0
    assert row["gain, nats"] == pytest.approx(0.4 * 0.49)
    assert row["low"] < row["gain, nats"] < row["high"]
    label = "one, step of embedding, ‰ of its weights' norm"
    assert found.numbers[label] == {"Adam": 2.0, "NovoGrad": 2.0}
    assert (
        "one: +0.250 nats per word against Adam, of which +0.196 [+0.186, +0.206]" in found.summary
    )


def test_a_difference_that_seeds_can_t_tell_does_not_count():
    found = WORDS.result([*runs(0.0, 0.01, noise=0.5), *runs(0.0, 0.5, data="other")])
    assert found is not None
    assert "on 1 of 1 data sets" in found.summary


def test_runs_without_ranks_or_pairs_say_nothing():
    alone = [one for one in runs(0.0, 0.5) if one.trial.seed == 0]
    assert WORDS.result(alone) is None
    plain = [
        result(50.0, study="words", optimizer=name, seed=seed, metric="test/ppl")
        for name in ("adam", "novograd")
        for seed in range(3)
    ]
    assert WORDS.result(plain) is None
