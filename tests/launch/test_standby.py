"""The worker that waits for its run: who gets one, who does not, and that none is left."""

from __future__ import annotations

import io
import subprocess
from pathlib import Path

import pytest

from launch import standby
from launch.compose import compose
from scripts import train

NOVOGRAD = ["experiment=imagenet/novograd_100ep", "scale=smoke"]


def waiting(threads: str) -> subprocess.Popen[bytes]:
    """Stands in for a worker: prints the folder that it is given."""
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    standby._standby = process, threads
    return process


def test_the_waiting_worker_is_given_its_run():
    process = waiting("1")
    environment = standby.worker_environment(1)
    assert standby.take_standby(Path("/some/run"), environment) is process
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.read() == b"/some/run\n"
    assert process.wait() == 0
    assert standby.take_standby(Path("/some/run"), environment) is None


@pytest.mark.parametrize("threads", ["1", "2"])
def test_a_worker_that_does_not_fit_or_is_gone_is_replaced(threads):
    process = waiting("1")
    if threads == "1":
        process.kill()
        process.wait()
    environment = standby.worker_environment(threads)
    assert standby.take_standby(Path("/some/run"), environment) is None
    assert process.returncode is not None


def test_a_worker_without_a_run_is_ended():
    process = waiting("1")
    standby.discard_standby()
    assert process.returncode is not None
    standby.discard_standby()


@pytest.mark.parametrize(
    ("overrides", "threads"),
    [
        (["hardware=cpu"], str(standby.cores())),
        (["hardware=cpu", "hardware.threads=3"], "3"),
        (["hardware=gpu", "hardware.processes=1", "hardware.threads=3"], "3"),
        (["hardware=cpu", "hardware.processes=2"], None),
        (["hardware=gpu"], None),
        (["hardware=cpu", "hardware.nodes=2"], None),
        (["hardware=cpu", "cluster=slurm"], None),
    ],
)
def test_only_a_run_of_one_process_here_gets_one(overrides, threads, monkeypatch):
    found: list[str] = []

    def start(*_: str, environment: dict[str, str], stdin: int) -> subprocess.Popen[bytes]:
        found.append(environment["OMP_NUM_THREADS"])
        return waiting(found[-1])

    monkeypatch.setattr(standby, "start_process", start)
    try:
        standby.start_standby(compose([*NOVOGRAD, *overrides]))
        standby.start_standby({"seed": "no configuration"})
        assert found == ([] if threads is None else [threads])
    finally:
        standby.discard_standby()


def test_a_worker_ends_quietly_when_its_launcher_has_no_run(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["train", "--standby", "imagenet"])
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(SystemExit) as ended:
        train.main()
    assert (ended.value.code, *capsys.readouterr()) == (0, "", "")
