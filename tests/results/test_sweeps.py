"""Results of sweeps, against numbers made by hand."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from results.sweeps import (
    Sensitivity,
    SweepResults,
    SweepRun,
    groups_of,
    read_results,
    sensitivity,
    text_table,
    to_csv,
    to_json,
)

SEVEN = [0.1, 0.215443, 0.464159, 1.0, 2.15443, 4.64159, 10.0]


def test_sensitivity_is_the_width_of_the_range_within_five_percent():
    accuracy = dict(zip(SEVEN, [40.0, 75.9, 76.2, 80.0, 76.1, 70.0, -math.inf], strict=True))
    found = sensitivity(accuracy, higher_is_better=True)  # 76 is 5 % below 80
    assert found == Sensitivity(0.464159, 2.15443, False, False)
    assert found.decades == pytest.approx(2 / 3, abs=1e-5)
    error = dict(zip(SEVEN, [10.0, 10.5, 10.6, 10.1, 10.2, 11.0, math.inf], strict=True))
    found = sensitivity(error, higher_is_better=False)
    assert found == Sensitivity(0.1, 0.215443, True, False)  # a hill ends the range
    assert str(found) == "≥ 0.33 decades (0.1 … 0.215443)"
    alone = sensitivity({0.1: math.inf, 1.0: 5.0, 10.0: math.inf}, higher_is_better=False)
    assert alone == Sensitivity(1.0, 1.0, False, False)
    unknown = sensitivity({0.1: math.nan, 1.0: 5.0, 10.0: 5.1}, higher_is_better=False)
    assert unknown == Sensitivity(1.0, 10.0, True, True)
    assert sensitivity({0.1: math.inf, 1.0: math.inf}, higher_is_better=False) is None
    assert sensitivity({1.0: 3.0}, higher_is_better=True) is None


def make_run(axes: dict[str, Any], final: float | None, status: str = "finished") -> SweepRun:
    axes = {"experiment": "a/b"} | axes
    return SweepRun("id", status, axes, axes.get("seed", 0), "sgd", 1.0, 0.0, final, final, 1.0)


def make_results(runs: list[SweepRun], group_by: list[str]) -> SweepResults:
    return SweepResults("x", "f", "mini", "val/ppl", False, group_by, "multiply.lr", runs)


def test_groups_average_seeds_and_choose_among_other_axes():
    runs = [
        make_run({"multiply.lr": lr, "decay": decay, "seed": seed}, value + seed)
        for lr, decay, value in ((0.1, 0, 30.0), (0.1, 1, 20.0), (1.0, 0, 20.2), (1.0, 1, 25.0))
        for seed in (0, 1)
    ]
    (group,) = groups_of(make_results(runs, ["experiment"]))
    assert (group.best, group.seeds, group.runs) == (20.5, 2, 8)
    assert group.at == {"multiply.lr": 0.1, "decay": 1}
    assert group.sensitivity == Sensitivity(0.1, 1.0, True, True)
    first, second = groups_of(make_results(runs, ["decay"]))
    assert (first.values, first.best, second.best) == ({"decay": 0}, 20.7, 20.5)
    assert second.sensitivity == Sensitivity(0.1, 0.1, True, False)


def test_a_diverged_seed_is_worst_and_a_missing_one_no_result():
    runs = [
        make_run({"multiply.lr": 0.1, "seed": 0}, 5.0),
        make_run({"multiply.lr": 0.1, "seed": 1}, None, "diverged"),
        make_run({"multiply.lr": 1.0, "seed": 0}, 9.0),
        make_run({"multiply.lr": 1.0, "seed": 1}, 9.0),
        make_run({"multiply.lr": 10.0, "seed": 0}, 1.0),
        make_run({"multiply.lr": 10.0, "seed": 1}, None, "failed"),
    ]
    results = make_results(runs, ["experiment"])
    (group,) = groups_of(results)
    assert (group.best, group.at["multiply.lr"]) == (9.0, 1.0)
    assert (group.diverged, group.missing) == (1, 1)
    assert group.sensitivity == Sensitivity(1.0, 1.0, False, True)
    assert "9.00 (n=2)" in text_table(results)
    assert "6, 1 diverged, 1 not there" in text_table(results)


def test_nothing_finished_is_a_table_too():
    results = make_results([make_run({"multiply.lr": 0.1}, None, "missing")], ["experiment"])
    assert text_table(results).splitlines()[1].split()[:2] == ["a/b", "-"]


def test_results_are_the_same_after_a_file(tmp_path):
    runs = [
        make_run({"multiply.lr": 0.1, "betas": [0.95, 0.0]}, 5.0),
        make_run({"multiply.lr": 1.0, "betas": [0.95, 0.0]}, None, "diverged"),
    ]
    results = make_results(runs, ["experiment"])
    path = tmp_path / "results.json"
    path.write_text(to_json(results))
    assert read_results(path) == results
    (group,) = json.loads(path.read_text())["groups"]
    assert (group["best"], group["sensitivity"]["decades"]) == (5.0, 0.0)
    lines = to_csv(results).splitlines()
    assert lines[0].startswith("run_id,experiment,multiply.lr,betas,seed,optimizer,lr,")
    assert lines[2].endswith("diverged,,,1.0")
