"""What happens to a run: signals at any time, lost processes, full disks, bad folders."""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from engine import records
from engine.records import Status, read_status, write_status
from engine.rows import read_rows
from scripts import launch as launcher
from tests.launch.launching import (
    ENDLESS,
    is_alive,
    launch,
    result,
    run_folder,
    start,
    status,
    wait_for_rows,
    worker_pid,
    worker_pids,
)


def wait_for(pattern: str, folder: Path, process) -> Path:
    while not (found := list(folder.glob(pattern))):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)
    return found[0]


# Stop signals


@pytest.mark.timeout(900)  # five launches, on a machine that may be busy
def test_a_lost_worker_then_ctrl_c_then_two_requests_in_a_row_then_to_the_end(
    undisturbed, tmp_path
):
    process = start(tmp_path)
    wait_for_rows(tmp_path, 2, process)
    (killed,) = worker_pids(tmp_path)
    os.kill(killed, signal.SIGKILL)
    while worker_pids(tmp_path) == [killed]:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)
    wait_for_rows(tmp_path, 3, process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    output = process.communicate()[0]
    assert process.returncode == 75, output
    assert "a worker was lost; restart 1 of 3" in output
    assert "Traceback" not in output
    stopped = status(tmp_path)
    assert stopped["status"] == "preempted"
    assert stopped["message"] == f"stopped on request after step {stopped['step']}, and saved"
    assert not any(map(is_alive, worker_pids(tmp_path)))
    assert_damage_is_no_silent_restart(tmp_path)

    rows = len(read_rows(run_folder(tmp_path) / "metrics.jsonl"))
    process = start(tmp_path)
    wait_for_rows(tmp_path, rows + 1, process)
    (pid,) = worker_pids(tmp_path)
    os.kill(pid, signal.SIGSTOP)  # so that it can't obey the first request
    process.send_signal(signal.SIGTERM)
    wait_for("outputs/imagenet/*/logs/stop", tmp_path, process)
    assert is_alive(pid)
    process.send_signal(signal.SIGTERM)
    output = process.communicate()[0]
    assert process.returncode == 75, output
    assert f"at step {stopped['step']} of 46" in output
    assert "Traceback" not in output
    assert "restart" not in output
    assert not is_alive(pid)
    stopped = status(tmp_path)
    assert stopped["status"] == "preempted"
    assert "work since the last checkpoint is lost" in stopped["message"]
    assert f"preempted: {stopped['message']}" in output

    last = max((run_folder(tmp_path) / "checkpoints").glob("step-*.json"))
    again = launch(tmp_path)
    assert again.returncode == 0, again.stderr
    assert f"at step {int(last.stem[5:])} of 46" in again.stdout
    assert result(tmp_path) == result(undisturbed[0])


def assert_damage_is_no_silent_restart(folder: Path) -> None:
    copy = folder.with_name(f"{folder.name}-damaged")  # beside it, where the data is
    shutil.copytree(folder, copy)
    for file in (run_folder(copy) / "checkpoints").glob("*.pt"):
        file.write_bytes(b"damaged")
    done = launch(copy)
    assert done.returncode == 3, done.stderr
    assert "damaged" in done.stdout + done.stderr


@pytest.mark.slow
def test_a_request_before_the_workers_are_there_is_not_lost(tmp_path):
    """Of two processes, which torchrun starts: a single worker is there from the beginning."""
    process = start(tmp_path, ENDLESS, "hardware.processes=2")
    wait_for("outputs/imagenet/*/status.json", tmp_path, process)
    assert not worker_pids(tmp_path)
    assert status(tmp_path)["status"] == "starting"
    process.send_signal(signal.SIGTERM)
    output = process.communicate()[0]
    assert process.returncode == 75, output
    assert "restart" not in output
    assert status(tmp_path) == {
        "status": "preempted",
        "message": "stopped on request after step 1, and saved",
        "step": 1,
    }


# Lost processes


@pytest.mark.slow
def test_a_killed_worker_of_two_is_replaced(tmp_path):
    """The first process lives on and sees its connection fail: not a failure of its own."""
    process = start(tmp_path, "hardware.processes=2")
    wait_for_rows(tmp_path, 2, process)
    first, second = worker_pid(tmp_path, 0), worker_pid(tmp_path, 1)
    os.kill(second, signal.SIGKILL)
    output = process.communicate()[0]
    assert process.returncode == 0, output
    assert "a worker was lost; restart 1 of 3" in output
    assert "Traceback" not in output
    assert not is_alive(first)
    assert status(tmp_path)["status"] == "finished"
    assert read_rows(run_folder(tmp_path) / "metrics.jsonl")[-1]["step"] == 46


@pytest.mark.slow  # torchrun gives a worker 30 s to end before it kills it
def test_a_silent_worker_is_noticed_and_replaced(undisturbed_pair, tmp_path):
    process = start(tmp_path, "hardware.processes=2", "hardware.timeout_s=15")
    wait_for_rows(tmp_path, 2, process)
    silent = worker_pid(tmp_path, 1)
    os.kill(silent, signal.SIGSTOP)
    output = process.communicate()[0]
    assert process.returncode == 0, output
    assert "process 0 lost contact with another: RuntimeError" in output
    assert "Timed out waiting 15000ms" in output
    assert "a worker was lost; restart" in output
    assert "Traceback" not in output
    assert not is_alive(silent)
    assert result(tmp_path) == result(undisturbed_pair[0])


# Disks


@pytest.mark.slow  # in tests/engine/test_checkpoint_faults.py at any moment, without processes
def test_a_disk_that_is_full_when_a_checkpoint_is_due(undisturbed, tmp_path):
    process = start(tmp_path)
    first = wait_for("outputs/imagenet/*/checkpoints/step-00000007.json", tmp_path, process)
    before = hashlib.sha256(first.with_suffix(".pt").read_bytes()).digest()
    # No file may grow beyond this: rows, logs and the status fit, a checkpoint does not.
    resource.prlimit(worker_pid(tmp_path, 0), resource.RLIMIT_FSIZE, (50_000, 50_000))
    output = process.communicate()[0]
    assert process.returncode == 1, output
    assert "Traceback" not in output
    found = status(tmp_path)
    assert found["status"] == "failed"
    assert f"cannot save {first.parent}/step-000000" in found["message"]
    assert "File too large; needed" in found["message"]
    assert "earlier checkpoints are kept" in found["message"]
    assert f"failed: {found['message']}" in output
    assert hashlib.sha256(first.with_suffix(".pt").read_bytes()).digest() == before
    assert not list(first.parent.glob("*.tmp"))
    again = launch(tmp_path)
    assert again.returncode == 0, again.stderr
    assert "resuming" in again.stdout
    assert result(tmp_path) == result(undisturbed[0])


@pytest.mark.slow
def test_a_disk_without_room_for_a_single_byte(undisturbed, tmp_path):
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(outputs)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root can make a small disk")
    try:
        process = start(tmp_path)
        first = wait_for("outputs/imagenet/*/checkpoints/step-00000007.json", tmp_path, process)
        fill(outputs / "filler")
        output = process.communicate()[0]
        assert process.returncode == 1, output
        assert "Traceback" not in output
        assert "restart" not in output
        found = status(tmp_path)
        assert found["status"] == "failed"
        assert "[Errno 28] No space left on device" in found["message"]
        assert first.exists()
        again = launch(tmp_path)
        assert again.returncode == 2
        assert "No space left on device" in again.stderr
        (outputs / "filler").unlink()
        again = launch(tmp_path)
        assert again.returncode == 0, again.stderr
        assert result(tmp_path) == result(undisturbed[0])
    finally:
        subprocess.run(["umount", "--lazy", str(outputs)], check=True)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


def test_on_a_full_disk_the_status_takes_the_place_of_the_one_before(tmp_path, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    write_status(tmp_path, "starting", "a long message " * 9)
    monkeypatch.setattr(records, "write_atomically", refuse)
    write_status(tmp_path, "failed", "short")
    assert read_status(tmp_path) == Status("failed", "short")


@pytest.mark.parametrize("kind", ["a file", "below a file", "not writable"])
def test_a_folder_that_cannot_be_written_to(tmp_path, capsys, kind):
    (tmp_path / "file").touch()
    outputs = {
        "a file": tmp_path / "file",
        "below a file": tmp_path / "file" / "outputs",
        "not writable": Path("/sys/outputs"),  # not even for root
    }[kind]
    overrides = ["experiment=imagenet/novograd_100ep", "scale=smoke", "hardware=cpu"]
    overrides += [f"paths.data={tmp_path / 'data'}", f"paths.outputs={outputs}"]
    assert launcher.main(overrides) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"paths.outputs={outputs} can't be written to: ")
    assert len(message.splitlines()) == 1
