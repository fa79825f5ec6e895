"""How long runs take: from runs like them, or from counted operations."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from scripts.estimate import Estimator, Progress, makespan
from scripts.fleet import Job
from scripts.launch import prepare
from scripts.supervise import Prepared


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepare(words(tmp_path_factory.mktemp("data")))


def words(data: Path) -> list[str]:
    return [
        "experiment=imagenet/novograd_100ep",
        "scale=smoke",
        "hardware=cpu",
        f"paths.data={data}",
    ]


def an_hour_for(prepared: Prepared, steps: int) -> dict[str, Any]:
    """The record of a run like this one."""
    config = {
        "scale": "smoke",
        "model": prepared.config.model,
        "data": prepared.config.data,
        "batch": {"micro": 32},
        "hardware": {"device": "cpu", "processes": 1, "precision": "fp32"},
    }
    plan = {"steps": steps, "global_batch": prepared.plan.global_batch}
    return {"plan": plan, "config": config, "wall_s": 3600.0}


def test_hours_come_from_runs_like_these_where_there_are_any(prepared: Prepared):
    estimator = Estimator([an_hour_for(prepared, 10)])
    assert estimator.hours(prepared) == pytest.approx(prepared.plan.steps / 10)
    assert estimator.source == "from the speed of finished runs like these"
    other = prepare([*words(Path(prepared.config.paths.data)), "model.width=16"])
    assert 0 < estimator.hours(other) < 1
    assert makespan([3.0, 2.0, 2.0], 2) == 4.0


def test_what_is_left_follows_how_long_the_first_ones_took(prepared: Prepared, capsys):
    """Three runs of an hour each, on one core; the first takes two."""
    others = [prepare([*words(Path(prepared.config.paths.data)), f"seed={n}"]) for n in (1, 2)]
    records = [an_hour_for(prepared, prepared.plan.steps)]
    progress = Progress([prepared, *others], 1, records)
    assert progress.beforehand() == ("about 3.0 hours, from the speed of finished runs like these")
    job = Job(prepared, [], Path("log"), started=time.monotonic() - 7200)
    progress.say(job)
    assert capsys.readouterr().out == "1 of 3 runs, about 4.0 hours left\n"
