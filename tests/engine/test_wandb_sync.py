"""Uploading goes on past whatever fails, and forgets nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from engine.lock import hold_run_folder
from engine.wandb_runs import WandbProblem
from engine.wandb_sync import SYNC, upload_all
from scripts.wandb_sync import main
from tests.engine.wandb_server import served

# Like `wandb sync`: leaves a marker for what it has, and ends with 0 also where it has failed.
FAKE = """
import sys
from pathlib import Path
folder = Path(sys.argv[-1])
with (Path(sys.argv[1]) / "calls").open("a") as calls:
    print(folder.name, file=calls)
(path,) = folder.glob("*.wandb")
what = path.read_text()
if what == "whole":
    path.with_name(path.name + ".synced").touch()
elif what == "torn":
    print("wandb: ERROR Failed to sync all data: the file ends with an incomplete record. Retry.")
elif what == "torn and lost":
    print("wandb: ERROR the file ends with an incomplete record")
    print("wandb: ERROR Fatal error while uploading data")
elif what == "rotten":
    print("wandb: ERROR checksum mismatch")
elif what == "slow":
    import time
    time.sleep(60)
else:
    sys.exit(3)
"""


def make_segment(outputs, run, time, what):
    folder = outputs / run / "wandb" / f"offline-run-{time}-{run}"
    folder.mkdir(parents=True)
    (folder / f"run-{run}.wandb").write_text(what)
    return folder


@pytest.fixture
def outputs(tmp_path):
    (tmp_path / "outputs").mkdir()
    return tmp_path / "outputs"


def sync(outputs, timeout=900.0, command=None, check_login=lambda: None, *, dry_run=False):
    fake = [sys.executable, "-c", FAKE, str(outputs.parent)]
    return upload_all(
        outputs, timeout, dry_run=dry_run, command=command or fake, check_login=check_login
    )


def calls(outputs):
    path = outputs.parent / "calls"
    return path.read_text().split() if path.exists() else []


class TestUpload:
    def test_is_in_order_and_goes_on_past_failures(self, outputs, capsys):
        kinds = ["whole", "torn", "rotten", "broken", "torn and lost", "whole"]
        segments = [
            make_segment(outputs, f"{'ba'[n % 2]}{n}", f"20260101_00000{n}", what)
            for n, what in enumerate(kinds)
        ]
        assert sync(outputs) == 1
        assert calls(outputs) == [segment.name for segment in segments]
        head, *lines = capsys.readouterr().out.splitlines()
        assert head == "6 segments, 0 uploaded, 6 to do"
        assert [line.split(": ", 1)[1] for line in lines] == [
            "uploaded",
            "uploaded up to its torn end",
            "failed: ERROR checksum mismatch (exit status 0)",
            "failed: no message (exit status 3)",
            "failed: ERROR Fatal error while uploading data (exit status 0)",
            "uploaded",
        ]
        (outputs.parent / "calls").unlink()
        assert sync(outputs) == 1  # only what had failed
        assert calls(outputs) == [segments[n].name for n in (2, 3, 4)]

    def test_of_everything_is_done_once(self, outputs):
        make_segment(outputs, "a", "1", "whole")
        assert [sync(outputs), sync(outputs)] == [0, 0]
        assert len(calls(outputs)) == 1

    def test_does_not_wait_for_ever(self, outputs, capsys):
        make_segment(outputs, "a", "1", "slow")
        assert sync(outputs, timeout=1) == 1
        assert "no end after 1 s" in capsys.readouterr().out

    def test_leaves_a_running_run_alone(self, outputs, capsys):
        segment = make_segment(outputs, "a", "1", "whole")
        with hold_run_folder(outputs / "a"):
            assert sync(outputs) == 0
        assert f"{segment}: skipped" in capsys.readouterr().out
        assert sync(outputs) == 0
        assert calls(outputs) == [segment.name]

    def test_that_is_dry_only_lists(self, outputs, capsys):
        segment = make_segment(outputs, "a", "1", "whole")
        assert sync(outputs, dry_run=True) == 0
        assert f"would upload {segment}" in capsys.readouterr().out
        assert not calls(outputs)

    def test_without_the_command_is_a_failure(self, outputs, capsys):
        make_segment(outputs, "a", "1", "whole")
        assert sync(outputs, command=["/no/such/command"]) == 1
        assert "/no/such/command" in capsys.readouterr().out


class TestBefore:
    def test_anything_starts_there_must_be_a_login(self, outputs):
        make_segment(outputs, "a", "1", "whole")

        def nobody():
            raise WandbProblem("W&B: no key is configured")

        with pytest.raises(WandbProblem, match="no key"):
            sync(outputs, check_login=nobody)
        assert not calls(outputs)

    @pytest.mark.parametrize("arguments", [["--outputs", "/no/where"], ["--timeout", "0"]])
    def test_bad_arguments_are_refused(self, outputs, arguments, capsys):
        with pytest.raises(SystemExit) as ended:
            main(["--outputs", str(outputs), *arguments])
        assert ended.value.code == 2
        assert arguments[0] in capsys.readouterr().err


@pytest.fixture
def server(monkeypatch):
    with served() as found:
        for name, value in found.environment().items():
            monkeypatch.setenv(name, value)
        for name in set(os.environ) - set(found.environment()):
            monkeypatch.delenv(name)
        yield found


def test_the_real_command_uploads_past_a_torn_segment(outputs, server, capsys):
    program = (
        "import sys\nfrom pathlib import Path\n"
        "from tests.engine.test_tracking import DONE, track\n"
        "track(Path(sys.argv[1]), range(1, 9), wandb='offline').finish(DONE)\n"
    )
    command = [sys.executable, "-c", program, str(outputs / "b")]
    subprocess.run(command, cwd=Path(__file__).parents[2], check=True)
    (whole,) = outputs.rglob("offline-run-*")
    torn = outputs / "a" / "wandb" / "offline-run-1-r1"
    shutil.copytree(whole, torn)
    (path,) = torn.glob("*.wandb")
    path.write_bytes(path.read_bytes()[:-100])
    assert sync(outputs, command=SYNC) == 0
    _, first, second = capsys.readouterr().out.splitlines()
    assert first == f"{torn}: uploaded up to its torn end"
    assert second == f"{whole}: uploaded"
    assert sum("train/loss" in body for body in server.uploads) >= 2
    assert sync(outputs, command=SYNC) == 0
    assert capsys.readouterr().out == "2 segments, 2 uploaded, 0 to do\n"
