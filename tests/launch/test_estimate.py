"""How long runs take: from runs like them, or from counted operations."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from engine.records import RunRecord
from engine.rows import ROWS_FILE, encode_row
from launch.estimate import Estimator, RemainingTime, makespan
from launch.run_spec import RunSpec, make_run_spec
from launch.scheduler import Job


@pytest.fixture(scope="module")
def any_spec(tmp_path_factory: pytest.TempPathFactory) -> RunSpec:
    overrides = ["experiment=imagenet/novograd_100ep", "scale=smoke", "hardware=cpu"]
    return make_run_spec([*overrides, f"paths.data={tmp_path_factory.mktemp('data')}"])


@pytest.fixture
def spec(any_spec: RunSpec, tmp_path: Path) -> RunSpec:
    paths = replace(any_spec.config.paths, outputs=str(tmp_path))
    return replace(any_spec, config=replace(any_spec.config, paths=paths))


def runs(spec: RunSpec, number: int) -> list[RunSpec]:
    return [replace(spec, run_id=f"run-{n}") for n in range(number)]


def an_hour_for(spec: RunSpec, steps: int) -> RunRecord:
    """The record of a run like this one."""
    return RunRecord(
        run_id="like-this",
        experiment=spec.config.experiment,
        scale=spec.config.scale,
        seed=0,
        fingerprint="",
        final={},
        best={},
        wall_s=3600.0,
        plan={"steps": steps, "global_batch": spec.plan.global_batch},
        environment={},
        config=asdict(spec.config),
    )


def log_step(spec: RunSpec, step: int) -> None:
    spec.folder.mkdir(parents=True, exist_ok=True)
    (spec.folder / ROWS_FILE).write_bytes(encode_row({"step": step}))


def end(remaining: RemainingTime, spec: RunSpec, hours: float, exit_status: int = 0) -> None:
    started = time.monotonic() - 3600 * hours
    remaining.ended(Job(spec, Path("log"), started=started, exit_status=exit_status))


def test_hours_come_from_runs_like_these_where_there_are_any(spec: RunSpec):
    estimator = Estimator([an_hour_for(spec, 10)])
    assert estimator.hours(spec) == pytest.approx(spec.plan.steps / 10)
    assert estimator.source == "from the speed of finished runs like these"
    part = replace(spec.config, data=spec.config.data | {"train_every": 2})
    assert estimator.hours(replace(spec, config=part)) == estimator.hours(spec)
    wider = replace(spec.config, model=spec.config.model | {"width": 16})
    assert 0 < estimator.hours(replace(spec, config=wider)) < 1
    assert estimator.source == "from the speed of finished runs, or from hardware.tflops"


def test_a_diverged_run_shows_no_speed(spec: RunSpec):
    diverged = replace(an_hour_for(spec, 10), status="diverged")
    assert Estimator([diverged]).hours(spec) == Estimator([]).hours(spec)


def test_makespan_fills_the_slot_that_is_free_first():
    assert makespan([3.0, 2.0, 2.0], 2) == 4.0


def test_what_is_left_follows_the_pace_of_the_runs_that_ended(spec: RunSpec, capsys):
    """Three runs of an expected hour each, one at a time; the first takes two."""
    three = runs(spec, 3)
    remaining = RemainingTime(three, 1, [an_hour_for(spec, spec.plan.steps)])
    assert remaining.beforehand() == ("about 3 h 0 min, from the speed of finished runs like these")
    end(remaining, three[0], 2.0)
    assert "1 of 3 runs finished, about 3 h 49 min left" in capsys.readouterr().out
    assert remaining.left() == pytest.approx(2 * 7200, rel=0.1)


def test_a_preempted_run_is_not_counted_as_finished(spec: RunSpec, capsys):
    two = runs(spec, 2)
    remaining = RemainingTime(two, 1, [an_hour_for(spec, spec.plan.steps)])
    log_step(two[0], spec.plan.steps // 2)
    end(remaining, two[0], 0.5, exit_status=75)
    assert capsys.readouterr().out.startswith("0 of 2 runs finished, about 60 min left")


def test_a_resumed_run_that_ends_quickly_does_not_change_the_pace(spec: RunSpec):
    """Nine tenths of the first run were done before: a tenth of an hour is what it should take."""
    two = runs(spec, 2)
    log_step(two[0], round(0.9 * spec.plan.steps))
    share = round(0.9 * spec.plan.steps) / spec.plan.steps
    remaining = RemainingTime(two, 1, [an_hour_for(spec, spec.plan.steps)])
    assert remaining.left() == pytest.approx(3600 * (2 - share))
    end(remaining, two[0], 1 - share)
    assert remaining.left() == pytest.approx(3600, rel=1e-3)


def test_running_runs_count_as_far_as_they_are(spec: RunSpec):
    three = runs(spec, 3)
    remaining = RemainingTime(three, 2, [an_hour_for(spec, spec.plan.steps)])
    end(remaining, three[0], 1.0)
    assert remaining.left() == pytest.approx(3600, rel=1e-3)
    log_step(three[1], spec.plan.steps)
    log_step(three[2], spec.plan.steps // 2)
    assert remaining.left() == pytest.approx(1800, rel=1e-3)
