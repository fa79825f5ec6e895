"""Stop signals to a launcher."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launch.entry import receive_stop_signals
from launch.stop_signals import StopSignals


def test_a_request_before_there_is_anything_to_save_ends_at_once():
    with StopSignals(), pytest.raises(SystemExit) as caught:
        signal.raise_signal(signal.SIGTERM)
    assert caught.value.code == 75


def test_a_closed_terminal_is_a_request_to_stop_and_never_the_second(tmp_path):
    (tmp_path / "logs").mkdir()
    with StopSignals() as signals:
        signals.send_to(tmp_path / "logs", 0, range(1))
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
        assert signals.count == 1
        signal.raise_signal(signal.SIGTERM)
        assert signals.count == 2
    assert (tmp_path / "logs" / "stop").exists()


def test_under_nohup_a_closed_terminal_is_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as signals:
            signal.raise_signal(signal.SIGHUP)
            assert signals.count == 0
        others = receive_stop_signals(signal.SIG_DFL)
        assert signal.SIGHUP not in others
        for number, handler in others.items():
            signal.signal(number, handler)
    finally:
        signal.signal(signal.SIGHUP, before)


BROKEN_OUTPUT = """
import os, signal, subprocess, sys
from pathlib import Path
from launch.entry import begin
begin("launch")
from launch.stop_signals import StopSignals
reader, writer = os.pipe()
os.close(reader)
os.dup2(writer, 1)
logs = Path(sys.argv[1])
worker = subprocess.Popen(["sleep", "600"])
(logs / "rank-0.pid").write_text(str(worker.pid))
with StopSignals() as stop_signals:
    stop_signals.send_to(logs, 0, range(1))
    stop_signals.watch(worker)
    signal.raise_signal(signal.SIGTERM)
    print("lost", flush=True)
    sys.exit(-worker.wait())
"""


def test_workers_get_the_signal_whatever_became_of_the_output(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", BROKEN_OUTPUT, tmp_path],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (signal.SIGUSR1, "")
    assert (tmp_path / "stop").exists()


def test_process_ids_of_workers_that_have_ended_are_not_used(tmp_path):
    """They may be those of other processes by now."""
    with subprocess.Popen(["true"]) as torchrun, subprocess.Popen(["sleep", "600"]) as stranger:
        (tmp_path / "rank-0.pid").write_text(str(stranger.pid))
        torchrun.wait()
        with StopSignals() as stop_signals:
            stop_signals.send_to(tmp_path, 0, range(1))
            stop_signals.watch(torchrun)
            signal.raise_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            stranger.wait(0.2)
        os.kill(stranger.pid, signal.SIGKILL)
