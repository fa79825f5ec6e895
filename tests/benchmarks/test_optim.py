"""The optimizers' bench on a few small tensors: everyone takes part, every contest is measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from analysis.performance import read_contests
from benchmarks import optim
from benchmarks.contest import BenchOptions
from benchmarks.optimizer_workloads import PARAMETER_SETS
from optim.factory import KINDS


@pytest.fixture
def small_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {
        name: replace(found, shapes=lambda: [(3, 5), (7,)], rounds=4)
        for name, found in PARAMETER_SETS.items()
    }
    monkeypatch.setattr(optim, "PARAMETER_SETS", small)
    monkeypatch.setattr(optim, "OTHERS", optim.OTHERS[:1])  # the others take seconds to import
    monkeypatch.setattr(optim, "in_place_gb_per_s", lambda a, b: 20.0)


@pytest.mark.usefixtures("small_sets")
@pytest.mark.parametrize("full", [False, True])
def test_every_contest_and_every_method_is_measured(full: bool):
    found = optim.measure(BenchOptions(full=full))
    wanted = {contest.name for contest in read_contests()["optim"]}
    assert {measurement.contest for measurement in found.measurements} == wanted
    rows = {row["name"]: row for row in found.detail["sets"]["resnet50v2"]["step"]}
    timed = {name for name, row in rows.items() if row["status"] == "timed"}
    assert (timed == set(rows)) == full
    assert {name for name in KINDS if name not in ("novograd", "sgd", "adam", "adamw")} <= timed
    assert (rows["lamb"]["rounds"] > 1) == full
    assert rows[optim.OURS]["rounds"] == (16 if full else 4)
    half = {row["name"]: row for row in found.detail["sets"]["resnet50v2_fp16"]["step"]}
    assert half[optim.OURS]["state_bytes_per_parameter"] >= 2
    assert half["lamb"]["status"] == "left out"
    assert all(f"## {name}:" in found.pages["optim.md"] for name in PARAMETER_SETS)
