"""Trials and records that no run has made, and the verdicts on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from analysis.claims import UNDECIDED, StudyResult
from analysis.findings import QUESTIONS
from analysis.trials import Trial, TrialResult
from engine.records import RunRecord


def record(run_id: str, final: Mapping[str, float], **options: Any) -> RunRecord:
    """A record of a run; `options` are those of the optimizer, and `curves`."""
    experiment = run_id.rpartition("-")[0].rpartition("-")[0]
    curves = options.pop("curves", {"train/loss": {"value": [1.0, 2.0]}})
    plan = {"steps": 9, "steps_per_epoch": 3, "global_batch": 64, "unit": "image"}
    hardware = {"device": "cpu", "name": "a processor", "threads": 1}
    return RunRecord(
        run_id=run_id,
        experiment=experiment,
        scale="mini",
        seed=0,
        fingerprint="0",
        final=dict(final),
        best=dict(final),
        wall_s=60.0,
        plan=plan,
        environment={"versions": {"torch": "2.11.0"}, "hardware": hardware},
        config={
            "task": {"name": "imagenet"},
            "data": {"name": "cifar10"},
            "optimizer": {"name": "novograd", "lr": 1.0, "weight_decay": 0.001} | options,
            "hardware": {"threads": 1},
        },
        curves=curves,
        parameters=12_345,
    )


def result(
    value: float | None = 50.0,
    *,
    status: str | None = None,
    run_id: str = "imagenet/novograd_100ep-0-s0",
    final: Mapping[str, float] | None = None,
    options: Mapping[str, Any] | None = None,
    **changes: Any,
) -> TrialResult:
    """A trial that ended with a value; without one it diverged and left no record."""
    made: dict[str, Any] = {
        "study": "lr_robustness",
        "data": "one",
        "optimizer": "novograd",
        "series": "",
        "at": 1.0,
        "seed": 0,
        "metric": "val/top1",
    }
    trial = Trial(**made | changes)
    if value is None:
        return TrialResult(trial, run_id, status or "diverged")
    metrics = {trial.metric: value, **(final or {})}
    given = record(run_id, metrics, **{"lr": trial.at or 1.0} | dict(options or {}))
    return TrialResult(trial, run_id, status or "finished", given)


def along(
    study: str,
    of: Mapping[str, Mapping[float, float | None]],
    data: str = "one",
    series: str = "",
    **changes: Any,
) -> list[TrialResult]:
    """Results along the axis, by optimizer."""
    return [
        result(value, study=study, data=data, optimizer=name, at=at, series=series, **changes)
        for name, values in of.items()
        for at, value in values.items()
    ]


def judge(study: str, results: list[TrialResult]) -> StudyResult:
    """The finding; of one data set twice, if there is one: alone it decides nothing."""
    if {one.trial.data for one in results} == {"one"}:
        alone = QUESTIONS[study].result(results)
        assert alone is not None
        assert alone.verdict == UNDECIDED
        twins = [replace(one, trial=replace(one.trial, data="twin")) for one in results]
        results = results + twins
    found = QUESTIONS[study].result(results)
    assert found is not None
    return found
