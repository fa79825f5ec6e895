"""Verdicts on what NovoGrad tolerates follow from trials, by the rules that are written down."""

from __future__ import annotations

from dataclasses import replace

import pytest

from analysis.claims import FAILS, HOLDS, UNDECIDED
from analysis.findings import QUESTIONS
from analysis.trials import HEADLINE, RATES, TrialResult
from tests.analysis.fake_trials import along, judge, result


def test_variants_of_the_algorithm():
    def points(series: str, *values: float) -> list[TrialResult]:
        made = [
            result(v, study="variants", optimizer="novograd", seed=seed)
            for seed, v in enumerate(values)
        ]
        return [replace(one, trial=replace(one.trial, series=series, at=0.0)) for one in made]

    plain, same = points("", 50.0, 52.0, 51.0), points("AMSGrad", 50.1, 51.9, 51.0)
    other = points("averaged", 45.0, 47.1, 46.0)

    def everywhere(*runs: TrialResult) -> list[TrialResult]:
        twins = [replace(one, trial=replace(one.trial, data="twin")) for one in runs]
        return [*runs, *twins]

    assert judge("variants", everywhere(*plain, *same)).verdict == HOLDS
    found = judge("variants", everywhere(*plain, *same, *other))
    assert found.verdict == FAILS
    assert "averaged -9.7" in found.summary
    assert QUESTIONS["variants"].result(everywhere(*plain, *same[:1])) is None
    lost = [replace(one, status="diverged", record=None) for one in other]
    found = judge("variants", everywhere(*plain, *same, *lost))
    assert found.verdict == FAILS
    assert "averaged diverged" in found.summary


def test_what_no_seeds_can_tell_was_run_all_the_same():
    outcomes = [
        result(value, study=HEADLINE, optimizer=name, seed=seed)
        for name, values in (("sgd", (30.0, 50.0)), ("novograd", (50.0, 30.0)))
        for seed, value in enumerate(values)
    ]
    found = judge(HEADLINE, outcomes)
    assert found.verdict == UNDECIDED
    assert "On par or better on 0 of 0 data sets" in found.summary
    curves = along(RATES, {name: dict.fromkeys(SEVEN, 50.0) for name in ("sgd", "novograd")})
    found = judge(
        RATES,
        outcomes
        + curves
        + [replace(one, trial=replace(one.trial, data="twin")) for one in outcomes],
    )
    assert found.verdict == UNDECIDED
    assert "(seeds differ too much)" in found.summary


SEVEN = (0.1, 0.215, 0.464, 1.0, 2.15, 4.64, 10.0)


@pytest.mark.parametrize(
    ("ours", "verdict"), [((6, 6), HOLDS), ((6, 1), UNDECIDED), ((1, 1), FAILS)]
)
def test_learning_rates(ours: tuple[int, int], verdict: str):
    """`ours` rates are good, of the others' three; a run that diverged is a gap in the curve."""

    def curve(good: int) -> dict[float, float | None]:
        return {x: 50.0 if i < good else 20.0 if i < 6 else None for i, x in enumerate(SEVEN)}

    outcomes = [
        one
        for data, own in zip(("one", "other"), ours, strict=True)
        for one in along(RATES, {"sgd": curve(3), "novograd": curve(own)}, data)
    ]
    found = judge(RATES, outcomes)
    assert found.verdict == verdict
    assert found.curves[0].lines[0].y[-1] is None
    assert set(found.numbers["one, decades"]) == {"SGD", "NovoGrad"}


def test_initialisation():
    sgd = {0.25: 40.0, 1.0: 50.0, 4.0: None}
    found = judge(
        "initialisation",
        along("initialisation", {"sgd": sgd, "novograd": {0.25: 49.0, 1.0: 50.0, 4.0: 51.0}}),
    )
    assert found.verdict == HOLDS
    assert found.numbers["one, % lost"] == {"SGD": 100.0, "NovoGrad": pytest.approx(2.0)}
    worse = along("initialisation", {"sgd": {0.25: 50, 1.0: 50, 4.0: 50}, "novograd": sgd})
    assert judge("initialisation", worse).verdict == FAILS


def test_warmup():
    fine = along(
        "warmup",
        {
            "adam": {0.0: 30.0, 5.0: 20.0, 25.0: 50.0},
            "novograd": {0.0: 50.0, 5.0: 50.2, 25.0: 40.0},
        },
    )
    found = judge("warmup", fine)
    assert found.verdict == HOLDS
    assert found.numbers["one, % gained"]["Adam"] == pytest.approx(40.0)
    better = {"novograd": {0.0: 10.0, 5.0: 62.5}, "adam": {0.0: 48.0, 5.0: 49.0}}
    above = along("warmup", better, series="3 × the rate")
    found = judge("warmup", fine + above)  # a warm-up makes a larger rate the best
    assert found.verdict == FAILS
    assert found.numbers["one, % gained"]["NovoGrad"] == pytest.approx(20.0)
    assert found.numbers["one, % gained"]["Adam"] == pytest.approx(4.0)
    assert [chart.title for chart in found.curves][:2] == [
        "one: val top-1, %",
        "one, 3 × the rate: val top-1, %",
    ]


def test_a_warmup_without_which_everything_diverges_is_needed():
    of: dict[str, dict[float, float | None]] = {
        "adam": {0.0: 50.0, 5.0: None},
        "novograd": {0.0: None, 5.0: 50.0},
    }
    found = judge("warmup", along("warmup", of))
    assert found.verdict == FAILS
    assert found.numbers["one, % gained"] == {"Adam": 0.0, "NovoGrad": 100.0}


@pytest.mark.parametrize(
    ("at_8", "at_32", "verdict"),
    [
        (49.0, 48.0, HOLDS),
        (49.0, 30.0, UNDECIDED),  # good at first
        (45.0, 30.0, UNDECIDED),  # not good, but no other is better
        (39.0, 30.0, FAILS),
        (39.0, None, FAILS),
        (None, None, FAILS),
    ],
)
def test_large_batches(at_8: float | None, at_32: float | None, verdict: str):
    of: dict[str, dict[float, float | None]] = {
        "sgd": {1.0: 50.0, 8.0: 40.0, 32.0: 35.0},
        "novograd": {1.0: 50.0, 8.0: at_8, 32.0: at_32},
    }
    found = judge("large_batch", along("large_batch", of))
    assert found.verdict == verdict
    assert found.numbers["one, × 8, % lost"]["SGD"] == pytest.approx(20.0)
    warm = along("large_batch", {"novograd": {32.0: 50.0}}, series="with warm-up")
    assert judge("large_batch", along("large_batch", of) + warm).verdict == HOLDS
    worse = along("large_batch", {"sgd": {32.0: 0.0}}, series="with warm-up")
    with_worse = judge("large_batch", along("large_batch", of) + worse)
    assert with_worse.numbers == found.numbers


def test_a_small_batch_that_diverged_is_no_proof_of_large_ones():
    of: dict[str, dict[float, float | None]] = {
        "sgd": {1.0: 50.0, 8.0: 50.0, 32.0: 50.0},
        "novograd": {1.0: None, 8.0: 50.0, 32.0: 50.0},
    }
    assert judge("large_batch", along("large_batch", of)).verdict == FAILS


@pytest.mark.parametrize(
    ("short", "long", "verdict"),
    [(50.0, 50.0, HOLDS), (45.0, 50.0, FAILS), (None, 50.0, FAILS), (50.0, None, HOLDS)],
)
def test_beta2(short: float | None, long: float | None, verdict: str):
    of: dict[str, dict[float, float | None]] = {"novograd": {0.0: None, 0.25: short, 0.98: long}}
    assert judge("beta2", along("beta2", of)).verdict == verdict
