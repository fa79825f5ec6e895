"""A finished run whose record is lost or damaged: it is written again from the run's folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from engine.records import read_record
from scripts import launch as launcher
from tests.launch.launching import command, run_folder


@pytest.fixture
def finished(undisturbed, tmp_path) -> Path:
    """A copy of a finished run, beside the same data."""
    folder: Path = undisturbed[0].with_name(f"copy-{tmp_path.name}")
    shutil.copytree(undisturbed[0], folder)
    return folder


def launch_again(folder: Path) -> int:
    return launcher.main(command(folder)[3:])


@pytest.mark.parametrize("loss", ["removed", "emptied", "cut"])
def test_the_record_is_written_again(finished, capsys, loss):
    path = run_folder(finished) / "record.json"
    before = path.read_text()
    if loss == "removed":
        path.unlink()
    else:
        path.write_text(before[: len(before) // 2] if loss == "cut" else "")
    rows = path.with_name("metrics.jsonl")
    logged = rows.read_bytes()
    rows.write_bytes(logged.replace(b"0", b"1"))
    assert launch_again(finished) == 0
    output = capsys.readouterr().out
    assert f"{path} " in output
    assert "written again from the last checkpoint; metrics.jsonl is not what was logged" in output
    assert "is finished already" in output
    assert rows.read_bytes() == logged
    expected, found = json.loads(before), json.loads(path.read_text())
    del expected["date"], found["date"]  # of the status: the day may have ended in between
    assert found == expected
    assert launch_again(finished) == 0
    assert "written again" not in capsys.readouterr().out


def test_where_the_last_checkpoint_is_lost_too_nothing_is_trained_again(finished, capsys):
    folder = run_folder(finished)
    (folder / "record.json").unlink()
    for pattern in ("step-*46.*", "best.*"):
        for file in (folder / "checkpoints").glob(pattern):
            file.unlink()
    assert launch_again(finished) == 3
    message = capsys.readouterr().err
    assert "record.json can't be read: No such file or directory" in message
    assert "there is no checkpoint of the last step; move" in message
    with pytest.raises(ValueError, match="record"):
        read_record(folder / "record.json")
