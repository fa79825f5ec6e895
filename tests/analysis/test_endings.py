"""Verdicts on where NovoGrad ends follow from trials, by the rules that are written down."""

from __future__ import annotations

from dataclasses import replace

import pytest

from analysis.claims import FAILS, HOLDS, UNDECIDED
from analysis.findings import QUESTIONS
from analysis.trials import HEADLINE, TrialResult
from tests.analysis.fake_trials import along, judge, result


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [((50.0, 50.1), HOLDS), ((60.0, 49.9), HOLDS), ((40.0, 50.0), UNDECIDED), ((40, 40), FAILS)],
)
def test_on_par(ours: tuple[float, float], verdict: str):
    outcomes = [
        result(value, study=HEADLINE, data=data, optimizer=name, seed=seed)
        for data, own in zip(("one", "other"), ours, strict=True)
        for name, value in (("sgd", 50.0), ("adamw", 45.0), ("novograd", own))
        for seed in range(3)
    ]
    found = judge(HEADLINE, outcomes)
    assert found.verdict == verdict
    assert f"one (val top-1, %) {ours[0]:.2f} against 50.00 of SGD" in found.summary


def test_a_seed_of_ours_that_diverged_is_behind():
    outcomes = [
        result(50.0, study=HEADLINE, optimizer=name, seed=seed)
        for name in ("sgd", "novograd")
        for seed in range(3)
    ]
    outcomes[-1] = replace(outcomes[-1], status="diverged", record=None)
    found = judge(HEADLINE, outcomes)
    assert found.verdict == FAILS
    assert "one (val top-1, %) diverged against 50.00 of SGD (behind)" in found.summary


def test_seeds_that_differ_too_much_decide_nothing():
    outcomes = [
        result(value, study=HEADLINE, data=data, optimizer=name, seed=seed)
        for data, values in (("one", (40.0, 40.1)), ("other", (30.0, 50.0)))
        for name, sign in (("sgd", 1), ("novograd", -1))
        for seed, value in enumerate(values[::sign])
    ]
    found = judge(HEADLINE, outcomes)
    assert found.verdict == UNDECIDED
    assert "On par or better on 1 of 1 data sets" in found.summary
    assert "one (val top-1, %) 40.05 against 40.05 of SGD, +0.0 % [-3.2, +3.2]" in found.summary
    assert "n = 2 (on par); other (val top-1, %) 40.00 against 40.00 of SGD, " in found.summary
    assert found.summary.endswith("n = 2 (seeds can't tell).")


def test_the_lead_is_paired_by_seed():
    """Seeds that differ much hide nothing if they are the same seeds."""
    outcomes = [
        result(value + lead, study=HEADLINE, data=data, optimizer=name, seed=seed)
        for data in ("one", "other")
        for name, lead in (("sgd", 0.0), ("novograd", -3.0))
        for seed, value in enumerate((30.0, 50.1, 40.0))
    ]
    found = judge(HEADLINE, outcomes)
    assert found.verdict == FAILS
    assert all(row["high"] < -1 for row in found.numbers.values())  # percent


def test_longer_training():
    of = {"sgd": {1.0: 50.0, 2.0: 55.0, 3.0: 40.0}, "novograd": {1.0: 50.0, 2.0: 54.0, 3.0: 55.0}}
    found = judge("longer_training", along("longer_training", of))
    assert found.verdict == HOLDS
    validation, training = found.curves[:2]
    assert validation.lines[1].y == (50.0, 54.0, 55.0)
    assert training.lines[1].y == (1.5, 1.5, 1.5)
    of["novograd"][3.0] = 53.0  # better than after one time, worse than after two
    assert judge("longer_training", along("longer_training", of)).verdict == FAILS


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        ({1.0: 50.0, 2.0: 55.0, 3.0: 54.9}, HOLDS),  # less than 1 % lost
        ({1.0: 50.0, 2.0: 60.0, 3.0: 55.0}, HOLDS),  # 8 % lost, SGD 20 %
        ({1.0: 20.0, 2.0: 30.0, 3.0: 35.0}, UNDECIDED),  # nothing lost, and less learned
        ({1.0: 50.0, 2.0: 55.0, 3.0: 40.0}, FAILS),  # 27 % lost
        ({1.0: None, 2.0: None, 3.0: None}, FAILS),
    ],
)
def test_regularisation(ours: dict[float, float | None], verdict: str):
    of: dict[str, dict[float, float | None]] = {
        "sgd": {1.0: 50.0, 2.0: 40.0, 3.0: 40.0},
        "novograd": ours,
    }
    outcomes = [
        one
        for name, loss in (("sgd", 2.0), ("novograd", 1.75))
        for one in along("regularisation", {name: of[name]}, final={"val/loss": loss})
    ]
    found = judge("regularisation", outcomes)
    assert found.verdict == verdict
    gaps = {"SGD": 0.5, "NovoGrad": 0.25} if ours[3.0] else {"SGD": 0.5}
    assert found.numbers["one, gap"] == gaps
    assert found.numbers["one, % lost"]["SGD"] == pytest.approx(20.0)
    assert found.numbers["one, val top-1, % at the end"].get("NovoGrad") == ours[3.0]


def test_where_nobody_overfits_nothing_is_said_of_it():
    of = {name: {1.0: 50.0, 2.0: 55.0, 3.0: 60.0} for name in ("sgd", "novograd")}
    found = judge("regularisation", along("regularisation", of))
    assert found.verdict == UNDECIDED
    assert found.summary.startswith("An optimizer overfits on 0 of 2 data sets.")


@pytest.mark.parametrize(
    ("metric", "ours", "other", "alike", "verdict"),
    [
        ("val/top1", 40.0, 50.0, {0.01: 44.0, 0.1: 45.0}, HOLDS),
        ("val/top1", 40.0, 50.0, {0.01: 44.0, 0.1: None}, FAILS),
        ("val/top1", 40.0, 50.0, {0.01: None, 0.1: None}, FAILS),
        ("valid/ppl", 300.0, 200.0, {0.01: 240.0, 0.1: 400.0}, HOLDS),
        ("valid/ppl", 300.0, 200.0, {0.01: 260.0, 0.1: 400.0}, FAILS),
    ],
)
def test_sizes_of_tensors_explain_half_of_the_distance_or_nothing(
    metric: str, ours: float, other: float, alike: dict[float, float | None], verdict: str
):
    outcomes = [
        result(ours, study=HEADLINE, optimizer="novograd", metric=metric),
        result(other, study=HEADLINE, optimizer="adamw", metric=metric),
        *along("tensor_sizes", {"novograd": alike}, metric=metric),
    ]
    found = judge("tensor_sizes", outcomes)
    assert found.verdict == verdict
    (values, _) = found.numbers.values()
    assert values["best other"] == other
    assert values["NovoGrad"] == ours


def test_sizes_of_tensors_explain_nothing_where_nothing_is_behind():
    outcomes = [
        result(51.0, study=HEADLINE, optimizer="novograd"),
        result(50.0, study=HEADLINE, optimizer="adamw"),
        *along("tensor_sizes", {"novograd": {0.01: 60.0}}),
    ]
    assert QUESTIONS["tensor_sizes"].result(outcomes) is None


def test_sizes_of_tensors_are_compared_over_the_same_seeds():
    outcomes = [
        result(value + 10 * seed, study=HEADLINE, optimizer=name, seed=seed)
        for name, value in (("novograd", 20.0), ("adamw", 40.0))
        for seed in (0, 1)
    ]
    found = judge("tensor_sizes", outcomes + along("tensor_sizes", {"novograd": {0.1: 35.0}}))
    values = found.numbers["one, val top-1, %"]
    assert values == {
        "NovoGrad": 20.0,
        "weights alike": 35.0,
        "best other": 40.0,
        "closed, %": 75.0,
    }


def over_passes(last: tuple[float, ...], metric: str = "val/top1") -> list[TrialResult]:
    """Adam at 100 with a spread over seeds, SGD far behind; NovoGrad's lead at 100 passes."""
    return [
        result(value, study="passes", optimizer=name, at=at, seed=seed, metric=metric)
        for at, lead in ((1.0, (-9.0, -10.0, -11.0)), (100.0, last))
        for seed, by in enumerate(lead)
        for name, value in (("adam", 100 + seed), ("sgd", 1.0), ("novograd", 100 + seed + by))
        if metric == "val/top1" or name != "sgd"
    ]


@pytest.mark.parametrize(
    ("last", "verdict"),
    [((4.0, 5.0, 6.0), HOLDS), ((-4.0, -5.0, -6.0), FAILS), ((-20.0, 5.0, 30.0), UNDECIDED)],
)
def test_passes_are_decided_by_the_interval_of_the_paired_difference(
    last: tuple[float, ...], verdict: str
):
    found = judge("passes", over_passes(last))
    assert found.verdict == verdict
    numbers = found.numbers["one, 100 passes"]
    mean = 100 * (sum(last) / 3) / 101
    assert numbers["difference, %"] == pytest.approx(mean, rel=1e-5)
    assert numbers["low"] < mean < numbers["high"]
    level, *leads = found.curves[0].lines  # of all data sets
    assert (level.x, level.y) == ((1.0, 100.0), (0.0, 0.0))
    assert [line.label for line in leads] == ["one", "twin"]
    assert leads[0].x == (1.0, 100.0)
    assert leads[0].sd is not None
    assert leads[0].sd[1] == pytest.approx((numbers["high"] - numbers["low"]) / 2, rel=1e-4)
    assert found.curves[1].lines[0].sd is not None


def test_a_lower_perplexity_is_ahead():
    assert judge("passes", over_passes((-4.0, -5.0, -6.0), "valid/ppl")).verdict == HOLDS


def test_passes_need_two_seeds():
    first = [one for one in over_passes((1.0, 1.0, 1.0)) if one.trial.seed == 0]
    assert QUESTIONS["passes"].result(first) is None


def test_points_are_means_over_seeds_and_lost_where_one_diverged():
    of = {0.25: 50.0, 1.0: 50.0, 4.0: 50.0}
    outcomes = [
        one
        for seed, by in ((0, 0.0), (1, 2.0))
        for one in along(
            "initialisation",
            {name: {x: y + by for x, y in of.items()} for name in ("sgd", "novograd")},
            seed=seed,
        )
    ]
    found = judge("initialisation", outcomes)
    assert found.curves[0].lines[0].y == (51.0, 51.0, 51.0)
    assert found.curves[0].lines[0].sd == pytest.approx((2**0.5,) * 3)
    found = judge("initialisation", [*outcomes[:-1], replace(outcomes[-1], record=None)])
    assert found.numbers["one, % lost"] == {"SGD": 0.0, "NovoGrad": 100.0}
