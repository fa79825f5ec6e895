"""Results of sweeps, against numbers worked out by hand."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.sweeps import SweepResults, best_table, groups_of, save_results
from analysis.trials import TrialResult
from tests.analysis.fake_trials import result


def make_run(axes: dict[str, Any], value: float | None, status: str | None = None) -> TrialResult:
    axes = {"experiment": "a/b"} | axes
    one = result(value, status=status, metric="valid/ppl", seed=axes.get("seed", 0))
    return replace(one, trial=replace(one.trial, axes=axes))


def make_results(runs: list[TrialResult], group_by: list[str]) -> SweepResults:
    return SweepResults("x", "mini", "valid/ppl", group_by, "multiply.lr").of(runs)


def test_groups_average_seeds_and_choose_among_other_axes():
    runs = [
        make_run({"multiply.lr": lr, "decay": decay, "seed": seed}, value + seed)
        for lr, decay, value in ((0.1, 0, 30.0), (0.1, 1, 20.0), (1.0, 0, 20.2), (1.0, 1, 25.0))
        for seed in (0, 1)
    ]
    (group,) = groups_of(make_results(runs, ["experiment"]))
    assert (group.best, group.seeds, group.runs) == (20.5, 2, 8)
    assert group.at == {"multiply.lr": 0.1, "decay": 1}
    assert group.sensitivity is not None
    assert str(group.sensitivity) == "≥ 1.00 decades (0.1 … 1)"  # the best of each rate
    first, second = groups_of(make_results(runs, ["decay"]))
    assert (first.values, first.best, second.best) == ({"decay": 0}, 20.7, 20.5)
    assert second.sensitivity is not None
    # 25.5 is 24.4 % above 20.5: 5 % are reached after 0.205 of the decade.
    assert second.sensitivity.decades == pytest.approx(0.05 / (25.5 / 20.5 - 1))


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
    assert str(group.sensitivity) == "≥ 0.00 decades (1 … 1)"
    assert "9.00 (n=2)" in best_table(results)
    assert "6, 1 diverged, 1 missing" in best_table(results)


def test_nothing_finished_is_a_table_too():
    results = make_results([make_run({"multiply.lr": 0.1}, None, "missing")], ["experiment"])
    assert best_table(results).splitlines()[-1].split()[:2] == ["a/b", "-"]


def test_files(tmp_path: Path):
    runs = [
        make_run({"multiply.lr": 0.1, "betas": [0.95, 0.0]}, 5.0),
        make_run({"multiply.lr": 1.0, "betas": [0.95, 0.0]}, None),
    ]
    save_results(tmp_path, make_results(runs, ["experiment"]))
    found = json.loads((tmp_path / "results.json").read_text())
    (group,) = found["groups"]
    assert (group["best"], group["sensitivity"]["decades"]) == (5.0, 0.0)
    assert [run["final"] for run in found["runs"]] == [5.0, None]
    assert found["runs"][1]["axes"] == runs[1].trial.axes
    good, bad = csv.DictReader((tmp_path / "results.csv").read_text().splitlines())
    assert (good["multiply.lr"], good["final"], good["status"]) == ("0.1", "5.0", "finished")
    assert (bad["final"], bad["status"], bad["wall_s"]) == ("", "diverged", "")
