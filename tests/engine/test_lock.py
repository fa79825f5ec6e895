"""One process at a time in a run's folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from engine.lock import RunFolderBusy, hold_run_folder


def hold_in_another_process(folder):
    """Its process, which has the lock until it ends."""
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        with hold_run_folder(folder):
            os.write(tell, b"x")
            signal.pause()
        os._exit(0)
    assert os.read(ready, 1) == b"x"
    os.close(ready)
    os.close(tell)
    return pid


def end(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_the_second_process_is_refused_and_a_killed_one_frees_the_folder(tmp_path):
    folder = tmp_path / "outputs" / "a-run"
    holder = hold_in_another_process(folder)
    try:
        with pytest.raises(RunFolderBusy, match="outputs/a-run is in use"), hold_run_folder(folder):
            pytest.fail("two processes in one folder")
    finally:
        end(holder)
    with hold_run_folder(folder):
        assert [path.name for path in folder.iterdir()] == [".lock"]
    assert (folder / ".lock").read_bytes() == b""


def test_it_can_be_held_again_after_an_end_or_an_error(tmp_path):
    with hold_run_folder(tmp_path):
        pass
    with pytest.raises(ZeroDivisionError), hold_run_folder(tmp_path):
        raise ZeroDivisionError
    with hold_run_folder(tmp_path):
        pass


def test_the_same_process_is_refused_too(tmp_path):
    with hold_run_folder(tmp_path):
        with pytest.raises(RunFolderBusy), hold_run_folder(tmp_path):
            pass
        with pytest.raises(RunFolderBusy), hold_run_folder(tmp_path):
            pass


@pytest.mark.parametrize("start", ["fork", "exec"])
def test_a_child_that_outlives_the_holder_does_not_keep_the_folder(tmp_path, start):
    child = 0
    with hold_run_folder(tmp_path):
        if start == "exec":
            sleeper = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
            child = subprocess.Popen(sleeper, close_fds=False).pid
        elif (child := os.fork()) == 0:
            signal.pause()
    try:
        with hold_run_folder(tmp_path):
            pass
    finally:
        end(child)
