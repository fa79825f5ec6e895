"""metrics.jsonl is that of an undisturbed run, whatever happened."""

from __future__ import annotations

import math
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engine.config import TrackingConfig
from engine.rows import read_rows
from engine.tracking import Ending, RunInfo, Tracker, make_mirrors

ROOT = Path(__file__).parent.parent.parent


INFO = RunInfo("r1", "group", "train", ("tag",), "notes", {"lr": 0.01}, "val/top1", True)
DONE = Ending("finished")


def open_tracker(folder, resume_step=0, log=print, wandb="off", tensorboard=False):
    tracking = TrackingConfig(wandb=wandb, project="novograd", tensorboard=tensorboard)
    return Tracker(
        folder, resume_step, log, lambda: make_mirrors(folder, tracking, INFO, resume_step, log)
    )


def track(folder, steps, resume_step=0, wandb="off", log=print, tensorboard=False):
    tracker = open_tracker(folder, resume_step, log, wandb, tensorboard)
    for step in steps:
        tracker.log({"step": step, "train/loss": 1 / step})
        if step % 5 == 0:
            tracker.log({"step": step, "val/top1": step / 100})
    return tracker


class TestRows:
    def test_are_one_line_each_in_the_given_order_at_once(self, tmp_path):
        tracker = open_tracker(tmp_path)
        tracker.log({"step": 1, "z": 2.5, "a": 3})
        assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1, "z": 2.5, "a": 3}\n'
        tracker.finish(DONE)
        tracker.finish(DONE)

    def test_keep_nan_and_infinities_in_strict_json(self, tmp_path):
        tracker = open_tracker(tmp_path)
        tracker.log({"step": 1, "a": math.nan, "b": math.inf, "c": -math.inf, "d": 1e300})
        tracker.finish(DONE)
        text = (tmp_path / "metrics.jsonl").read_text()
        assert '"a": "NaN", "b": "Infinity", "c": "-Infinity"' in text
        (row,) = read_rows(tmp_path / "metrics.jsonl")
        assert math.isnan(row.pop("a"))
        assert row == {"step": 1, "b": math.inf, "c": -math.inf, "d": 1e300}

    def test_need_a_step(self, tmp_path):
        tracker = open_tracker(tmp_path)
        with pytest.raises(KeyError, match="step"):
            tracker.log({"train/loss": 1.0})
        tracker.finish(DONE)
        assert read_rows(tmp_path / "metrics.jsonl") == []

    def test_are_read_without_a_torn_last_line(self, tmp_path):
        path = tmp_path / "metrics.jsonl"
        whole = b'{"step": 1, "x": 0.5}\n{"step": 2, "x": "NaN"}\n'
        for length in range(len(whole) + 1):
            path.write_bytes(whole[:length])
            # A line that lacks only its end is a whole row.
            assert len(read_rows(path)) == (length >= 21) + (length >= len(whole) - 1)

    def test_on_a_full_disk_say_which_file_it_is(self, tmp_path):
        tracker = track(tmp_path, range(1, 5))
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (50, limits[1]))
            for write in (lambda: tracker.log({"step": 5}), lambda: tracker.finish(DONE)):
                with pytest.raises(OSError, match=r"File too large: '.*/metrics\.jsonl'"):
                    write()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        tracker.finish(DONE)
        assert read_rows(tmp_path / "metrics.jsonl")[-1] == {"step": 5}

    @pytest.mark.parametrize("bad", [b"{", b"\x00\x00", b"\xff", b"[1]", b'{"x": 1}', b""])
    def test_are_not_read_past_damage(self, tmp_path, bad):
        path = tmp_path / "metrics.jsonl"
        path.write_bytes(b'{"step": 1}\n' + bad + b'\n{"step": 3}\n')
        with pytest.raises(ValueError, match="line 2"):
            read_rows(path)


class TestResume:
    def undisturbed(self, tmp_path):
        track(tmp_path / "whole", range(1, 21)).finish(DONE)
        return (tmp_path / "whole" / "metrics.jsonl").read_bytes()

    @pytest.mark.parametrize("torn", [b"", b'{"step": 14, "tra', b"\x00" * 40])
    def test_gives_the_file_of_an_undisturbed_run(self, tmp_path, torn):
        track(tmp_path, range(1, 14)).finish(DONE)
        with (tmp_path / "metrics.jsonl").open("ab") as file:
            file.write(torn)
        track(tmp_path, range(11, 21), resume_step=10).finish(DONE)
        assert (tmp_path / "metrics.jsonl").read_bytes() == self.undisturbed(tmp_path)
        assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["metrics.jsonl"]

    def test_completes_a_line_that_lacks_only_its_end(self, tmp_path):
        track(tmp_path, range(1, 11)).finish(DONE)
        path = tmp_path / "metrics.jsonl"
        path.write_bytes(path.read_bytes()[:-1])
        track(tmp_path, range(11, 21), resume_step=10).finish(DONE)
        assert path.read_bytes() == self.undisturbed(tmp_path)

    def test_from_nothing_starts_an_empty_file(self, tmp_path):
        tracker = open_tracker(tmp_path)
        tracker.log({"step": 0, "val/top1": 0.1})
        tracker.finish(DONE)
        track(tmp_path, range(1, 21), resume_step=0).finish(DONE)
        assert (tmp_path / "metrics.jsonl").read_bytes() == self.undisturbed(tmp_path)

    def test_leaves_a_whole_file_alone(self, tmp_path):
        track(tmp_path, range(1, 11)).finish(DONE)
        inode = (tmp_path / "metrics.jsonl").stat().st_ino
        track(tmp_path, [], resume_step=10).finish(DONE)
        assert (tmp_path / "metrics.jsonl").stat().st_ino == inode

    def test_tells_of_damage_in_the_middle(self, tmp_path):
        """Of a run whose checkpoint does not hold the rows: the others are kept."""
        (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n\x00\n{"step": 3}\n')
        lines: list[str] = []
        track(tmp_path, [], resume_step=3, log=lines.append).finish(DONE)
        assert read_rows(tmp_path / "metrics.jsonl") == [{"step": 1}, {"step": 3}]
        assert lines == ["metrics.jsonl: damaged rows are left out, in lines 2"]

    @pytest.mark.parametrize(
        ("damage", "message"),
        [
            (lambda rows: None, "is missing"),
            (lambda rows: b"", "lacks rows: it has 0 of 12 lines"),
            (lambda rows: rows[:100], "from line 3 of 12 on"),
            (lambda rows: rows.replace(b"0.5", b"0.6"), "from line 2 of 12 on"),
            (lambda rows: rows.replace(b"\n", b"\x00", 3), "from line 1 of 12 on"),
        ],
    )
    def test_restores_rows_from_the_checkpoint(self, tmp_path, damage, message):
        tracker = track(tmp_path, range(1, 11))
        saved = tracker.archive.content()
        tracker.log({"step": 11, "train/loss": 9.9})  # after the checkpoint
        tracker.finish(DONE)
        path, lines = tmp_path / "metrics.jsonl", list[str]()
        if (left := damage(path.read_bytes())) is None:
            path.unlink()
        else:
            path.write_bytes(left)
        again = Tracker(tmp_path, 10, lines.append, list, saved)
        for step in range(11, 21):
            again.log({"step": step, "train/loss": 1 / step})
            if step % 5 == 0:
                again.log({"step": step, "val/top1": step / 100})
        again.finish(DONE)
        assert path.read_bytes() == self.undisturbed(tmp_path)
        (line,) = lines
        assert message in line

    @pytest.mark.parametrize("loss", ["removed", "emptied"])
    def test_notices_a_file_that_is_lost_while_it_is_written(self, tmp_path, loss):
        lines: list[str] = []
        tracker = track(tmp_path, range(1, 11), log=lines.append)
        path = tmp_path / "metrics.jsonl"
        path.unlink() if loss == "removed" else path.write_bytes(b"")
        for step in range(11, 21):
            tracker.log({"step": step, "train/loss": 1 / step})
            if step % 5 == 0:
                tracker.log({"step": step, "val/top1": step / 100})
            tracker.sync()
        tracker.finish(DONE)
        assert path.read_bytes() == self.undisturbed(tmp_path)
        assert len(lines) == 1

    def test_after_a_kill(self, tmp_path):
        """Every row that was logged is there, however the process ends."""
        program = (
            "import os, signal, sys\nfrom pathlib import Path\n"
            "from tests.engine.test_tracking import track\n"
            "track(Path(sys.argv[1]), range(1, 14))\nos.kill(os.getpid(), signal.SIGKILL)\n"
        )
        done = subprocess.run([sys.executable, "-c", program, tmp_path], cwd=ROOT, check=False)
        assert done.returncode == -signal.SIGKILL
        assert [row["step"] for row in read_rows(tmp_path / "metrics.jsonl")][-1] == 13
