"""Evaluations in W&B: beside their run, each once, with their true outcome."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from engine.finite import NonFinite
from engine.records import RUN_FILE, read_json, wandb_id
from engine.tracking import Ending, RunInfo
from engine.wandb_runs import find_segments
from launch import evaluate, evaluation_tracking
from scripts.evaluate import main
from tests.engine.test_wandb_offline import inspect
from tests.launch.trained_models import restored_threads, smoke_run, state_of


@pytest.fixture
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return smoke_run(tmp_path_factory, "wikitext103")


class Recorder:
    """A mirror that keeps what it gets."""

    def __init__(self, folder: Path, tracking: Any, info: RunInfo, log: Any) -> None:
        self.folder, self.info, self.endings = folder, info, list[Ending]()

    def finish(self, ending: Ending) -> None:
        self.endings.append(ending)


@pytest.fixture
def recorders(monkeypatch: pytest.MonkeyPatch) -> list[Recorder]:
    made: list[Recorder] = []

    def make(*given: Any) -> list[Recorder]:
        made.append(Recorder(*given))
        return made[-1:]

    monkeypatch.setattr(evaluation_tracking, "make_mirrors", make)
    return made


def evaluated(*arguments: object) -> int:
    with restored_threads():
        return main([*map(str, arguments)])


@pytest.mark.slow
def test_the_real_client_writes_one_run_however_often_it_is_evaluated(run: Path, tmp_path: Path):
    import wandb

    before, output = state_of(run), tmp_path / "found.json"
    arguments = [run, "--split", "valid", "--predictions", 3, "--output", output]
    arguments += ["tracking=wandb", "tracking.wandb=offline", "tracking.artifacts=best"]
    assert [evaluated(*arguments), evaluated(*arguments)] == [0, 0]
    wandb.teardown()
    assert state_of(run) == before
    segments = find_segments(tmp_path / "found-wandb")
    assert len(segments) == 2
    for segment in segments:
        records = inspect(segment)
        (about,) = (r["run"] for r in records if r["type"] == "run")
        name = read_json(output)["run_id"]
        assert about["run_id"] == f"{wandb_id(name)}-evaluation-{_weights(output)['from']}-valid"
        assert (about["job_type"], about["run_group"]) == ("evaluate", "wikitext103/novograd")
        config = about["config"]["update"]
        assert config["evaluated"]["run_id"] == name
        assert config["evaluated"]["weights"] == _weights(output)
        assert config["fingerprint"] in name
        assert config["optimizer"]["name"] == "novograd"
        assert not [r for r in records if r["type"] == "history"]
        summary: dict[str, Any] = {}
        for record in records:
            summary |= record["summary"]["update"] if record["type"] == "summary" else {}
        assert read_json(output)["metrics"].items() <= summary.items()
        assert summary["outcome"] == "finished"
        assert summary["predictions/valid"]["nrows"] == 3
        (exit_,) = (r["exit"] for r in records if r["type"] == "exit")
        assert not exit_.get("exit_code")


def _weights(output: Path) -> dict[str, Any]:
    found: dict[str, Any] = read_json(output)["weights"]
    return found


def test_what_it_says(run: Path, tmp_path: Path, recorders: list[Recorder]):
    """Not in the run's own W&B folder, whose rows are counted when the run is resumed."""
    arguments = [
        "tracking=wandb",
        "tracking.tags=[mine]",
        "data.eval_memory=16",
        "--split",
        "valid",
    ]
    assert evaluated(run, *arguments, "--predictions", 2) == 0
    (recorder,) = recorders
    assert recorder.folder.parent == run
    assert recorder.folder.name.startswith("evaluation-")
    assert find_segments(run / "wandb") == []
    info, (ending,) = recorder.info, recorder.endings
    assert info.job_type == "evaluate"
    assert {"wikitext103", "novograd", "smoke", "mine"} <= set(info.tags)
    assert info.config["evaluated"]["overrides"] == ["data.eval_memory=16"]
    assert info.config["data"]["eval_memory"] == 16
    assert info.notes.startswith("valid: ")
    assert ending.kind == "finished"
    assert ending.artifacts == ()
    assert {"valid/ppl", "wall_s"} <= set(ending.summary)
    assert [(table.name, len(table.rows)) for table in ending.tables] == [("predictions/valid", 2)]


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (NonFinite("loss is nan"), 2, "NonFinite: loss is nan"),
        (RuntimeError("another was lost"), None, "RuntimeError: another was lost"),
        (KeyboardInterrupt(), None, "KeyboardInterrupt"),
    ],
)
def test_a_failure_is_none_that_finished(
    run: Path, recorders: list[Recorder], monkeypatch: pytest.MonkeyPatch, error, status, message
):
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(evaluate, "evaluate_splits", fail)
    with pytest.raises(type(error)) if status is None else nullcontext():
        assert evaluated(run, "tracking=wandb", "--split", "valid") == status
    (ending,) = recorders[0].endings
    assert (ending.kind, ending.message) == ("failed", message)


def test_only_where_it_is_asked_for(run: Path, tmp_path: Path, recorders: list[Recorder], capsys):
    """Also of a run that was tracked itself."""
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    text = (copy / RUN_FILE).read_text()
    assert "wandb: 'off'" in text
    (copy / RUN_FILE).write_text(text.replace("wandb: 'off'", "wandb: online"))
    assert evaluated(copy, "--split", "valid") == 0
    assert recorders == []
    for arguments, message in (
        (["tracking=wandbb"], "tracking=wandbb does not exist; did you mean 'wandb'?"),
        (["tracking.wandb=onlin"], "tracking.wandb must be one of"),
        (["tracking=tensorboard"], "an evaluation has no curves"),
    ):
        assert evaluated(run, *arguments) == 2
        assert message in capsys.readouterr().err
    assert recorders == []


def test_a_long_name_is_cut_and_stays_unique():
    long = "imagenet/" + "x" * 200
    assert wandb_id(f"{long}-a")[:100] == wandb_id(f"{long}-b")[:100]
    assert wandb_id(f"{long}-a") != wandb_id(f"{long}-b")
    assert len(wandb_id(long)) == 120
    assert wandb_id("a/b-s0-evaluation-data.beam=8") == "a-b-s0-evaluation-data.beam-8"
