"""TensorBoard's event files have the rows of metrics.jsonl, each once, also after a resume."""

from __future__ import annotations

import math
import sys

import pytest

from engine.rows import read_rows
from engine.tracking import Ending
from tests.engine.test_tracking import DONE, track

accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def scalars(folder):
    found = accumulator.EventAccumulator(str(folder / "tensorboard")).Reload()
    return {
        name: [(event.step, event.value) for event in found.Scalars(name)]
        for name in found.Tags()["scalars"]
    }


def test_has_every_row_once_after_a_kill_and_a_resume(tmp_path):
    lines: list[str] = []
    killed = track(tmp_path, range(1, 14), tensorboard=True)  # never finished
    # A process that is gone writes nothing more; this one's thread would, to a file made anew.
    killed._mirrors[0]._writer.flush()
    assert scalars(tmp_path)["train/loss"][-1][0] == 13
    again = track(tmp_path, range(11, 21), resume_step=10, tensorboard=True, log=lines.append)
    again.finish(DONE)
    rows = read_rows(tmp_path / "metrics.jsonl")
    found = scalars(tmp_path)
    for name in ("train/loss", "val/top1"):
        wanted = [(row["step"], row[name]) for row in rows if name in row]
        assert [step for step, _ in found[name]] == [step for step, _ in wanted]
        for (_, value), (_, expected) in zip(found[name], wanted, strict=True):
            assert value == pytest.approx(expected, rel=1e-6)  # events hold float32
    assert len(lines) == 1
    assert "tensorboard --logdir" in lines[0]


def test_keeps_what_is_not_finite(tmp_path):
    tracker = track(tmp_path, [1], tensorboard=True)
    tracker.log({"step": 2, "train/loss": math.nan})
    tracker.finish(Ending("diverged", "the loss is nan"))
    assert math.isnan(scalars(tmp_path)["train/loss"][-1][1])


def test_is_done_without_where_it_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    lines: list[str] = []
    track(tmp_path, [1, 2], tensorboard=True, log=lines.append).finish(DONE)
    assert len(read_rows(tmp_path / "metrics.jsonl")) == 2
    assert len(lines) == 1
    assert "continuing without it" in lines[0]
