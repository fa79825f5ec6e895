"""The command that prepares data: its messages, its exit statuses, its progress."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest

from scripts import prepare
from tasks.imagenet import archives
from tasks.imagenet.folders import ImageNetSource
from tasks.meter import Meter
from tests.tasks.imagenet.archives import REPO, images


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """What is synchronised matters to a power cut, not to a kill."""
    monkeypatch.setattr(os, "sync", lambda: None)


@pytest.fixture
def small(given, monkeypatch):
    """The command takes the small set for the real one."""
    folder, expected = given
    monkeypatch.setattr(ImageNetSource, "expected", expected)
    return folder


def test_the_command(small, root, wanted, capsys):
    arguments = ["imagenet", "--from", str(small), "--data", str(root.parent)]
    assert prepare.main(arguments) == 0
    assert images(root) == wanted
    shown = capsys.readouterr()
    assert "train: 12 images, 4 classes, " in shown.out
    assert shown.out.endswith(f"{root}: ready; identical to the official set (checksums)\n")
    assert "unpacking train: " in shown.err
    assert "(100 %)" in shown.err
    assert prepare.main(arguments) == 0
    shown = capsys.readouterr()
    assert "nothing to do" in shown.out
    assert not shown.err


def test_the_command_without_archives(tmp_path):
    data = ["--data", str(tmp_path / "data")]
    done = subprocess.run(
        [sys.executable, "-m", "scripts.prepare", "imagenet", "--from", "nowhere", *data],
        cwd=REPO,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert not done.stdout
    assert done.stderr.count("\n") == 1
    assert done.stderr == "nowhere: no such file or folder\n"
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (OSError(28, "No space left on device"), 2, "its disk is full"),
        (PermissionError(13, "Permission denied", "/data/x"), 2, "/data/x: Permission denied"),
        (KeyboardInterrupt(), 130, "stopped; run the same command to resume"),
    ],
)
def test_the_command_when_interrupted(error, status, message, small, root, monkeypatch, capsys):
    def write(*_):
        raise error

    arguments = ["imagenet", "--from", str(small), "--data", str(root.parent)]
    with monkeypatch.context() as patch:
        patch.setattr(archives, "_write", write)
        assert prepare.main(arguments) == status
    last = capsys.readouterr().err.splitlines()[-1]
    assert message in last
    assert prepare.main(arguments) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "TASK|small|mini is missing"),
        (["imagenets"], "imagenets is not a choice; did you mean 'imagenet'?"),
        (["small"], "the following arguments are required: --set"),
        (["mini", "--from", "x"], "--from is not an option here"),
        (["wmt14", "--subsets", "x"], "--subsets is not an option here"),
    ],
)
def test_a_misspelt_command_is_one_message(arguments, message, capsys):
    with pytest.raises(SystemExit) as caught:
        prepare.main(arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_lines_of_a_log():
    stream, clock = io.StringIO(), Clock()
    with Meter(stream, clock) as meter:
        for second in range(31):
            clock.now = 100.0 + second
            meter("unpacking train", 50_000_000_000 + 10**9 * second, 140_000_000_000)
        meter("counting", 0, 100)
        meter("counting", 100, 100)
        meter("counting", 100, 100)
    assert stream.getvalue().splitlines() == [
        "unpacking train: 50.0 GB of 140.0 GB (35 %)",
        "unpacking train: 60.0 GB of 140.0 GB (42 %), 0:01:20 left",
        "unpacking train: 70.0 GB of 140.0 GB (50 %), 0:01:10 left",
        "unpacking train: 80.0 GB of 140.0 GB (57 %), 0:01:00 left",
        "counting: 0 bytes of 100 bytes (0 %)",
        "counting: 100 bytes of 100 bytes (100 %)",
    ]


def test_a_bar_on_a_terminal(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    with Meter(stream) as meter:
        meter("checking x.tar", 0, 2 * 10**9)
        meter("checking x.tar", 2 * 10**9, 2 * 10**9)
    assert "checking x.tar" in stream.getvalue()
    assert "2.0/2.0 GB" in stream.getvalue()
