"""What every command begins with: streams that never fail, and stop signals before the imports."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launch.entry import RESUMABLE
from tests.launch.launching import ROOT, command, started

# As `python -m scripts.NAME` does, without the imports of a real command.
BEGIN = "from launch.entry import begin; begin('{}')\nimport os, signal, sys\n"
TALK = "print('a × b → ü'); print('x' * 100_000, flush=True)\nprint('note', file=sys.stderr)\n"


def run(program: str, shell: str = "", name: str = "plan", **environment: str):
    """A Python program after `begin`, its streams redirected by the shell."""
    return subprocess.run(
        ["bash", "-c", f'"$0" -c "$1" {shell}', sys.executable, BEGIN.format(name) + program],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("shell", "stderr"),
    [
        (">&-", "note\n"),
        (">&- 2>&-", ""),
        ("<&- >&- 2>&-", ""),
        ("2>&- | head -c 1 >&2; exit ${PIPESTATUS[0]}", "a"),
        ("> /dev/full", "standard output can't be written to: No space left on device\nnote\n"),
        ("> /dev/full 2>&1", ""),
        ("> /dev/null", "note\n"),
    ],
)
def test_a_stream_that_cannot_be_written_to_ends_nothing(shell, stderr):
    done = run(f"{TALK}{TALK}sys.exit(7)", shell)
    assert done.returncode == 7, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.replace("note\nnote", "note") == stderr


@pytest.mark.parametrize(
    ("shell", "status"),
    [
        ("| head -c 1; exit ${PIPESTATUS[0]}", errno.EPIPE),
        ("> /dev/full", errno.ENOSPC),
        ("> /dev/null", 0),
    ],
)
def test_a_command_can_tell_that_its_output_is_lost(shell, status):
    end = "from launch.entry import lost_output\nsys.exit(getattr(lost_output(), 'errno', 0))"
    assert run(f"{TALK}{TALK}{end}", shell).returncode == status


def test_a_closed_stream_is_not_the_next_file_that_is_opened(tmp_path):
    path = tmp_path / "file"
    program = f"file = open({str(path)!r}, 'w')\nos.system('echo hello')\n"
    assert run(program, ">&- 2>&-").returncode == 0
    assert path.read_text() == ""


def test_characters_that_a_terminal_lacks_are_replaced():
    done = run("print('2 × 3 → 4 ± ü')", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout) == (0, "2 x 3 -> 4 +- ?\n")


def test_files_are_utf8_in_the_locale_c(tmp_path):
    """Where Python reads files as ASCII, and prints so, too."""
    path = tmp_path / "file"
    path.write_text("2 × 3", encoding="utf-8")
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = run(f"print(open({str(path)!r}).read())", **locale)
    assert (done.returncode, done.stdout, done.stderr) == (0, "2 x 3\n", "")


def test_an_interrupt_is_no_traceback():
    done = run("signal.raise_signal(signal.SIGINT)")
    assert done.stderr == ""
    assert done.returncode == -signal.SIGINT


def test_importing_a_command_changes_nothing_here():
    import scripts.plan  # noqa: F401

    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert sys.excepthook.__module__ != "launch.entry"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_stop_signal_before_and_after_the_run(number):
    program = "signal.raise_signal({})\nprint('not reached')"
    early = run(program.format(int(number)), name="launch")
    assert (early.returncode, early.stdout) == (75, "stopped before the run started\n")
    after = "from launch.stop_signals import StopSignals\nwith StopSignals(): pass\n"
    late = run(after + f"signal.raise_signal({int(number)})\nprint('done')", name="launch")
    assert (late.returncode, late.stdout, late.stderr) == (0, "done\n", "")


def test_a_worker_that_starts_can_be_ended():
    """Its torchrun ignores SIGTERM, and a child inherits that."""
    ignoring = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    program = "from launch.entry import begin\nbegin('train')\nsignal.raise_signal(signal.SIGTERM)"
    assert run(ignoring + program).returncode == -signal.SIGTERM


def test_a_stop_signal_while_the_launcher_imports(tmp_path):
    """The handlers are there before torch is."""
    process = subprocess.Popen(command(tmp_path), cwd=ROOT, stdout=subprocess.PIPE, text=True)
    started.append(process)
    while not catches(process.pid, signal.SIGTERM):
        assert process.poll() is None
        assert "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text()
        time.sleep(0.001)
    process.send_signal(signal.SIGTERM)
    output = process.communicate()[0]
    assert (process.returncode, output) == (75, "stopped before the run started\n")
    assert not (tmp_path / "outputs").exists()


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler of its own for a signal, beside Python's for SIGINT."""
    status = Path(f"/proc/{pid}/status").read_text()
    (mask,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(mask, 16) >> (number - 1) & 1)


def test_every_command_begins_so():
    """One real command, whose reader leaves after a line; the others begin in the same place."""
    assert {*RESUMABLE, "train"} <= {path.stem for path in (ROOT / "scripts").glob("*.py")}
    shell = f"set -o pipefail; {sys.executable} -m scripts.plan --help | head -1"
    done = subprocess.run(["bash", "-c", shell], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: ")
