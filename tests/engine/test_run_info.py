"""Trackers get the true outcome of a run, with what a reader of many runs needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine import trainer as trainer_module
from engine.distributed import Group
from engine.tracking import Ending, RunInfo
from tests.engine.toy import make_trainer, toy_config


class Recorder:
    """A mirror that keeps what it gets."""

    def __init__(self, info: RunInfo) -> None:
        self.info, self.rows, self.ending = info, 0, Ending("none")

    def log(self, row: Any) -> None:
        self.rows += 1

    def finish(self, ending: Ending) -> None:
        self.ending = ending


@pytest.fixture
def recorders(monkeypatch):
    made: list[Recorder] = []

    def make(folder: Any, tracking: Any, info: RunInfo, log: Any) -> list[Any]:
        made.append(Recorder(info))
        return [made[-1]]

    monkeypatch.setattr(trainer_module, "make_mirrors", make)
    return made


def trained(folder: Path, **changes: Any) -> Any:
    config = toy_config(folder, **changes)
    return make_trainer(config, Group(0, 1, torch.device("cpu")), folder)


def test_a_finished_run_has_its_best_and_final_numbers(tmp_path, recorders):
    trainer = trained(tmp_path, tracking__tags=["mine"], tracking__sweep="lr")
    result = trainer.fit()
    (recorder,) = recorders
    ending, headline = recorder.ending, trainer.task.headline.name
    assert ending.kind == result.status == "finished"
    assert ending.summary[f"best/{headline}"] == trainer.at.best_value
    assert ending.summary["best/step"] == trainer.at.best_step
    assert ending.summary[f"final/{headline}"] == result.final[headline]
    assert ending.summary["wall_s"] == result.wall_s
    assert ending.summary["peak_memory_gb"] > 0
    assert ending.artifacts == ()
    info = recorder.info
    assert (info.group, info.job_type) == ("lr", "sweep")
    assert {"toy", "novograd", "smoke", "mine", "lr"} == set(info.tags)
    assert info.config["plan"]["steps"] == 20
    assert info.config["parameters"] == sum(p.numel() for p in trainer.module.parameters())
    assert info.config["provenance"]["versions"]["torch"]


def test_a_diverged_run_is_no_finished_one(tmp_path, recorders):
    trained(tmp_path, model__explode_at=40).fit()
    ending = recorders[0].ending
    assert ending.kind == "diverged"
    assert "the loss is" in ending.message
    assert not any(name.startswith("final/") for name in ending.summary)


def test_a_stopped_run_is_preempted(tmp_path, recorders):
    trainer = trained(tmp_path)
    trainer.request_stop()
    trainer.fit()
    assert recorders[0].ending.kind == "preempted"


def test_an_error_is_a_failure(tmp_path, recorders, monkeypatch):
    trainer = trained(tmp_path)

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(trainer.store, "save", fail)
    with pytest.raises(OSError, match="no space"):
        trainer.fit()
    assert recorders[0].ending == Ending("failed", "OSError: no space left")


def test_artifacts_are_the_best_checkpoint_and_the_record(tmp_path, recorders):
    trained(tmp_path, tracking__artifacts="best").fit()
    record, model = recorders[0].ending.artifacts
    assert {path.name for path in record.paths} >= {"run.yaml", "record.json"}
    assert {path.name for path in model.paths} == {"best.pt", "best.json"}
