"""The study's verdicts follow from its trials, by the rules that are written down."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from results.claims import FAILS, HOLDS, STUDY_NAMES, UNDECIDED, parse_study
from results.findings import FINDINGS, all_findings
from results.trials import DIVERGED, HEADLINE, RATES, Outcome, to_csv
from tests.results.made_up import outcome


def judge(
    study: str, outcomes: list[Outcome], losses: Mapping[str, float] = MappingProxyType({})
) -> dict[str, Any]:
    """The finding, which must be readable as a study; of one data set twice, if there is one.

    The training loss is 1.5 at the end of every run, that on validation data by the run's id.
    """

    def read(run_id: str) -> dict[str, Any]:
        curves = {"train/loss": {"value": [1.0, 2.0]}}
        return {"curves": curves, "final": {"val/loss": losses.get(run_id, 1.5)}}

    if {one.data for one in outcomes} == {"one"}:
        alone = FINDINGS[study](outcomes, read)
        assert alone is not None
        assert alone["verdict"] == UNDECIDED
        outcomes = outcomes + [replace(one, data="twin") for one in outcomes]
    found = FINDINGS[study](outcomes, read)
    assert found is not None
    parse_study(json.dumps(found), Path(f"{study}.json"))
    return found


def points(
    study: str,
    of: Mapping[str, Mapping[float, float | None]],
    data: str = "one",
    series: str = "",
) -> list[Outcome]:
    """Results along the axis, by optimizer."""
    return [
        outcome(
            study=study,
            data=data,
            optimizer=name,
            at=at,
            lr=at or 1.0,
            series=series,
            value=value,
            status="finished" if value is not None else DIVERGED,
        )
        for name, values in of.items()
        for at, value in values.items()
    ]


def test_all_studies_are_known_and_need_results():
    assert set(FINDINGS) == set(STUDY_NAMES) - {"memory"}
    for find in FINDINGS.values():
        assert find([], lambda _: {}) is None
        assert "Holds if" in " ".join((find.__doc__ or "").split())


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [((50.0, 50.1), HOLDS), ((60.0, 49.9), HOLDS), ((40.0, 50.0), UNDECIDED), ((40, 40), FAILS)],
)
def test_on_par(ours: tuple[float, float], verdict: str):
    outcomes = [
        outcome(study=HEADLINE, data=data, optimizer=name, seed=seed, value=value)
        for data, own in zip(("one", "other"), ours, strict=True)
        for name, value in (("sgd", 50.0), ("adamw", 45.0), ("novograd", own))
        for seed in range(3)
    ]
    found = judge(HEADLINE, outcomes)
    assert found["verdict"] == verdict
    assert f"one {ours[0]:.2f} against 50.00 of SGD" in found["summary"]


def test_a_seed_of_ours_that_diverged_is_behind():
    outcomes = [
        outcome(study=HEADLINE, optimizer=name, seed=seed, value=50.0)
        for name in ("sgd", "novograd")
        for seed in range(3)
    ]
    outcomes[-1] = replace(outcomes[-1], status=DIVERGED, value=None)
    found = judge(HEADLINE, outcomes)
    assert found["verdict"] == FAILS
    assert "one diverged against 50.00 of SGD (behind)" in found["summary"]


def test_seeds_that_differ_too_much_decide_nothing():
    outcomes = [
        outcome(study=HEADLINE, data=data, optimizer=name, seed=seed, value=value)
        for data, values in (("one", (40.0, 40.1)), ("other", (30.0, 50.0)))
        for name in ("sgd", "novograd")
        for seed, value in enumerate(values)
    ]
    found = judge(HEADLINE, outcomes)
    assert found["verdict"] == UNDECIDED
    assert "On par or better on 1 of 1 data sets" in found["summary"]
    assert "other 40.00 against 40.00 of SGD (seeds can't tell)" in found["summary"]


def test_what_no_seeds_can_tell_was_run_all_the_same():
    outcomes = [
        outcome(study=HEADLINE, optimizer=name, seed=seed, value=value)
        for name in ("sgd", "novograd")
        for seed, value in enumerate((30.0, 50.0))
    ]
    found = judge(HEADLINE, outcomes)
    assert found["verdict"] == UNDECIDED
    assert "On par or better on 0 of 0 data sets" in found["summary"]
    curves = points(RATES, {name: dict.fromkeys(SEVEN, 50.0) for name in ("sgd", "novograd")})
    found = judge(RATES, outcomes + curves + [replace(one, data="twin") for one in outcomes])
    assert found["verdict"] == UNDECIDED
    assert "(seeds differ too much)" in found["summary"]


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
        for one in points(RATES, {"sgd": curve(3), "novograd": curve(own)}, data)
    ]
    found = judge(RATES, outcomes)
    assert found["verdict"] == verdict
    assert found["curves"][0]["lines"][0]["y"][-1] is None
    assert set(found["numbers"]["one, decades"]) == {"SGD", "NovoGrad"}


def test_initialisation():
    sgd = {0.25: 40.0, 1.0: 50.0, 4.0: None}
    found = judge(
        "initialisation",
        points("initialisation", {"sgd": sgd, "novograd": {0.25: 49.0, 1.0: 50.0, 4.0: 51.0}}),
    )
    assert found["verdict"] == HOLDS
    assert found["numbers"]["one, % lost"] == {"SGD": 100.0, "NovoGrad": pytest.approx(2.0)}
    worse = points("initialisation", {"sgd": {0.25: 50, 1.0: 50, 4.0: 50}, "novograd": sgd})
    assert judge("initialisation", worse)["verdict"] == FAILS


def test_warmup():
    fine = points(
        "warmup",
        {
            "adam": {0.0: 30.0, 5.0: 20.0, 25.0: 50.0},
            "novograd": {0.0: 50.0, 5.0: 50.2, 25.0: 40.0},
        },
    )
    found = judge("warmup", fine)
    assert found["verdict"] == HOLDS
    assert found["numbers"]["one, % gained"]["Adam"] == pytest.approx(40.0)
    better = {"novograd": {0.0: 10.0, 5.0: 62.5}, "adam": {0.0: 48.0, 5.0: 49.0}}
    above = points("warmup", better, series="3 × the rate")
    found = judge("warmup", fine + above)  # a warm-up makes a larger rate the best
    assert found["verdict"] == FAILS
    assert found["numbers"]["one, % gained"]["NovoGrad"] == pytest.approx(20.0)
    assert found["numbers"]["one, % gained"]["Adam"] == pytest.approx(4.0)
    assert [chart["title"] for chart in found["curves"]][:2] == [
        "one: val/top1",
        "one, 3 × the rate: val/top1",
    ]


def test_a_warmup_without_which_everything_diverges_is_needed():
    of: dict[str, dict[float, float | None]] = {
        "adam": {0.0: 50.0, 5.0: None},
        "novograd": {0.0: None, 5.0: 50.0},
    }
    found = judge("warmup", points("warmup", of))
    assert found["verdict"] == FAILS
    assert found["numbers"]["one, % gained"] == {"Adam": 0.0, "NovoGrad": 100.0}


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
    found = judge("large_batch", points("large_batch", of))
    assert found["verdict"] == verdict
    assert found["numbers"]["one, × 8, % lost"]["SGD"] == pytest.approx(20.0)
    warm = points("large_batch", {"novograd": {32.0: 50.0}}, series="with warm-up")
    assert judge("large_batch", points("large_batch", of) + warm)["verdict"] == HOLDS
    worse = points("large_batch", {"sgd": {32.0: 0.0}}, series="with warm-up")
    with_worse = judge("large_batch", points("large_batch", of) + worse)
    assert with_worse["numbers"] == found["numbers"]


def test_a_small_batch_that_diverged_is_no_proof_of_large_ones():
    of: dict[str, dict[float, float | None]] = {
        "sgd": {1.0: 50.0, 8.0: 50.0, 32.0: 50.0},
        "novograd": {1.0: None, 8.0: 50.0, 32.0: 50.0},
    }
    assert judge("large_batch", points("large_batch", of))["verdict"] == FAILS


def test_longer_training():
    of = {"sgd": {1.0: 50.0, 2.0: 55.0, 3.0: 40.0}, "novograd": {1.0: 50.0, 2.0: 54.0, 3.0: 55.0}}
    found = judge("longer_training", points("longer_training", of))
    assert found["verdict"] == HOLDS
    validation, training = found["curves"][:2]
    assert validation["lines"][1]["y"] == [50.0, 54.0, 55.0]
    assert training["lines"][1]["y"] == [1.5, 1.5, 1.5]
    of["novograd"][3.0] = 53.0  # better than after one time, worse than after two
    assert judge("longer_training", points("longer_training", of))["verdict"] == FAILS


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
    outcomes = [replace(one, run_id=one.optimizer) for one in points("regularisation", of)]
    found = judge("regularisation", outcomes, {"sgd": 2.0, "novograd": 1.75})
    assert found["verdict"] == verdict
    assert found["numbers"]["one, gap"] == {"SGD": 0.5, "NovoGrad": 0.25}
    assert found["numbers"]["one, % lost"]["SGD"] == pytest.approx(20.0)
    assert found["numbers"]["one, val/top1 at the end"].get("NovoGrad") == ours[3.0]


def test_where_nobody_overfits_nothing_is_said_of_it():
    of = {name: {1.0: 50.0, 2.0: 55.0, 3.0: 60.0} for name in ("sgd", "novograd")}
    found = judge("regularisation", points("regularisation", of))
    assert found["verdict"] == UNDECIDED
    assert found["summary"].startswith("An optimizer overfits on 0 of 2 data sets.")


@pytest.mark.parametrize(
    ("short", "long", "verdict"),
    [(50.0, 50.0, HOLDS), (45.0, 50.0, FAILS), (None, 50.0, FAILS), (50.0, None, HOLDS)],
)
def test_beta2(short: float | None, long: float | None, verdict: str):
    of: dict[str, dict[float, float | None]] = {"novograd": {0.0: None, 0.25: short, 0.98: long}}
    assert judge("beta2", points("beta2", of))["verdict"] == verdict


def test_texts_of_what_was_run(tmp_path: Path):
    assert all_findings(tmp_path) == {}
    trials = tmp_path / "studies" / "trials.csv"
    trials.parent.mkdir()
    trials.write_text(to_csv(points("beta2", {"novograd": {0.0: 1.0, 0.25: 2.0, 0.98: 2.0}})))
    ((name, text),) = all_findings(tmp_path).items()
    assert parse_study(text, Path(f"{name}.json")).study == "beta2"


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
        outcome(study=HEADLINE, optimizer="novograd", value=ours),
        outcome(study=HEADLINE, optimizer="adamw", value=other),
        *points("tensor_sizes", {"novograd": alike}),
    ]
    outcomes = [replace(one, metric=metric) for one in outcomes]
    found = judge("tensor_sizes", outcomes)
    assert found["verdict"] == verdict
    (values, _) = found["numbers"].values()
    assert values["best other"] == other
    assert values["NovoGrad"] == ours


def test_sizes_of_tensors_explain_nothing_where_nothing_is_behind():
    outcomes = [
        outcome(study=HEADLINE, optimizer="novograd", value=51.0),
        outcome(study=HEADLINE, optimizer="adamw", value=50.0),
        *points("tensor_sizes", {"novograd": {0.01: 60.0}}),
    ]
    assert FINDINGS["tensor_sizes"](outcomes, lambda _: {}) is None
