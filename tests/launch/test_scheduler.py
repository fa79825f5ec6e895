"""Slots of a machine: no GPU has two runs, none is idle while runs wait."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.config import ConfigProblem, HardwareConfig
from launch import hardware as machine
from launch.run_spec import RunSpec, make_run_spec
from launch.scheduler import Job, Slot, find_slots, gpu_slots, run_jobs
from tests.launch.sweeping import began, events, give_orders

EIGHT = [str(number) for number in range(8)]


@pytest.fixture(scope="module")
def spec() -> RunSpec:
    overrides = ["experiment=imagenet/novograd_100ep", "scale=smoke", "hardware=cpu"]
    return make_run_spec(overrides, need_data=False)


def make_jobs(spec: RunSpec, folder: Path, number: int) -> list[Job]:
    paths = replace(spec.config.paths, outputs=str(folder))
    own = replace(spec, config=replace(spec.config, paths=paths))
    return [
        Job(replace(own, run_id=f"run-{n}"), folder / f"{n}.log", f"run {n}") for n in range(number)
    ]


@pytest.mark.parametrize(
    ("per_run", "names"),
    [
        (1, EIGHT),
        (2, ["0,1", "2,3", "4,5", "6,7"]),
        (4, ["0,1,2,3", "4,5,6,7"]),
        (8, ["0,1,2,3,4,5,6,7"]),
        (3, ["0,1,2", "3,4,5"]),
    ],
)
def test_eight_gpus_are_divided_into_neighbours(per_run, names):
    found = gpu_slots(EIGHT, per_run)
    assert [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in found] == names


@pytest.mark.parametrize("per_run", [1, 2, 4, 8])
def test_no_gpu_has_two_runs_and_no_slot_waits(per_run, spec, tmp_path, monkeypatch):
    found = gpu_slots(EIGHT, per_run)
    jobs = make_jobs(spec, tmp_path, len(found) + 2)
    give_orders(monkeypatch, tmp_path, jobs, {"run 0": {"seconds": 0.3}})
    assert run_jobs(jobs, found, to_logs=True)
    assert [job.exit_status for job in jobs] == [0] * len(jobs)
    owner: dict[str, str] = {}
    used = set()
    for event in events(tmp_path):
        for gpu in event["gpus"].split(","):
            if event["what"] == "began":
                assert owner.setdefault(gpu, event["run"]) == event["run"], f"GPU {gpu} has two"
            else:
                assert owner.pop(gpu) == event["run"]
        used.add(event["gpus"])
    assert not owner
    assert used == {slot.environment["CUDA_VISIBLE_DEVICES"] for slot in found}


def test_the_gpus_of_a_part_of_a_node_keep_their_names(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert machine.visible_gpus() == ["0", "1", "2", "3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5, GPU-ab12,7")
    assert machine.visible_gpus() == ["4", "5", "GPU-ab12", "7"]
    hardware = HardwareConfig(device="cuda", processes=2)
    found = find_slots(hardware, runs=9)
    assert [slot.name for slot in found] == ["GPU 4,5", "GPU GPU-ab12,7"]
    assert len(find_slots(hardware, runs=1)) == 1
    with pytest.raises(ConfigProblem, match="gpus_per_run=8, but 4 GPUs"):
        find_slots(replace(hardware, processes=8), runs=9)


def test_a_plan_needs_no_gpus():
    hardware = HardwareConfig(device="cuda", processes=2)
    assert len(find_slots(hardware, runs=9, must_exist=False)) == 4


def test_cores_are_shared_by_slots_and_processes(monkeypatch):
    monkeypatch.setattr(machine, "cores", lambda: 16)
    monkeypatch.setattr(machine, "available_memory", lambda: 10**12)

    def slots(processes: int, runs: int, at_most: int | None = None, *overrides: str):
        hardware = HardwareConfig(device="cpu", processes=processes)
        found = find_slots(hardware, runs, at_most, overrides=overrides)
        (threads,) = {slot.threads for slot in found}
        return len(found), threads

    assert slots(2, 99) == (8, 1)
    assert slots(2, 99, 4) == (4, 2)
    assert slots(1, 3) == (3, 5)
    assert slots(1, 20) == (20, 1)  # shares 16 cores evenly rather than 4 runs after 16
    assert slots(1, 99, None, "hardware.threads=4") == (4, 4)
    monkeypatch.setattr(machine, "available_memory", lambda: 10 * 10**9)
    assert slots(1, 99) == (6, 2)


def test_failures_do_not_stop_the_others(spec, tmp_path, monkeypatch, capfd):
    jobs = make_jobs(spec, tmp_path, 4)
    special = {"run 1": {"do": "fail"}, "run 2": {"do": "diverge"}}
    give_orders(monkeypatch, tmp_path, jobs, special)
    ended: list[Job] = []
    assert run_jobs(iter(jobs), [Slot()] * 2, ended=ended.append)
    assert [job.exit_status for job in jobs] == [0, 1, 5, 0]
    assert [job.ending for job in jobs] == ["finished", "failed", "diverged", "finished"]
    assert sorted(job.name for job in ended) == [job.name for job in jobs]
    assert "a failure that was ordered" in jobs[1].log.read_text()
    assert "run 1: failed after" in capfd.readouterr().out


def test_what_comes_next_may_depend_on_what_came_before(spec, tmp_path, monkeypatch):
    jobs = make_jobs(spec, tmp_path, 3)
    give_orders(monkeypatch, tmp_path, jobs)
    ended: list[Job] = []

    def chosen():
        for number, job in enumerate(jobs):
            assert len(ended) == number
            yield job

    assert run_jobs(chosen(), [Slot("the only one")], ended=ended.append, to_logs=True)
    assert began(tmp_path) == ["run-0", "run-1", "run-2"]


def test_an_exception_in_the_scheduler_lets_the_runs_save(spec, tmp_path, monkeypatch):
    jobs = make_jobs(spec, tmp_path, 1)
    give_orders(monkeypatch, tmp_path, jobs, {"run": {"seconds": 60.0, "steps": 600}})

    def broken():
        yield jobs[0]
        while not began(tmp_path):
            time.sleep(0.02)
        raise RuntimeError("no more points")

    with pytest.raises(RuntimeError, match="no more points"):
        run_jobs(broken(), [Slot()] * 2)
    status = json.loads((jobs[0].spec.folder / "status.json").read_text())
    assert status["status"] == "preempted"


def test_a_stop_signal_reaches_every_run_once(spec, tmp_path, monkeypatch):
    jobs = make_jobs(spec, tmp_path, 4)
    give_orders(monkeypatch, tmp_path, jobs, {"run": {"seconds": 60.0, "steps": 600}})

    def ask():
        while len(began(tmp_path)) < 2:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    asking = threading.Thread(target=ask)
    asking.start()
    assert not run_jobs(jobs, [Slot()] * 2)
    asking.join()
    assert [job.exit_status for job in jobs] == [75, 75, None, None]
    assert [job.stop_signals for job in jobs] == [1, 1, 0, 0]
