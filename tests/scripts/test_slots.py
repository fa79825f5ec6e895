"""A machine divided among runs: no GPU has two, none is idle while runs wait."""

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
from scripts import slots
from scripts.fleet import Job, Slot, Tail, run_jobs
from scripts.launch import prepare
from scripts.supervise import Prepared
from tests.scripts.sweeping import began, events, give_orders

EIGHT = [str(number) for number in range(8)]


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    words = ["experiment=imagenet/novograd_100ep", "scale=smoke", "hardware=cpu"]
    return prepare(words, need_data=False)


def make_jobs(prepared: Prepared, folder: Path, number: int) -> list[Job]:
    paths = replace(prepared.config.paths, outputs=str(folder), records=str(folder / "records"))
    own = replace(prepared, config=replace(prepared.config, paths=paths))
    return [
        Job(replace(own, run_id=f"run-{n}"), [f"run={n}"], folder / f"{n}.log", f"run {n}")
        for n in range(number)
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
    found = slots.gpu_slots(EIGHT, per_run)
    assert [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in found] == names


@pytest.mark.parametrize("per_run", [1, 2, 4, 8])
def test_no_gpu_has_two_runs_and_no_slot_waits(per_run, prepared, tmp_path, monkeypatch):
    found = slots.gpu_slots(EIGHT, per_run)
    jobs = make_jobs(prepared, tmp_path, len(found) + 2)
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
    assert slots.visible_gpus() == ["0", "1", "2", "3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5, GPU-ab12,7")
    assert slots.visible_gpus() == ["4", "5", "GPU-ab12", "7"]
    hardware = HardwareConfig(device="cuda", processes=2)
    found = slots.find_slots(hardware, runs=9)
    assert [slot.name for slot in found] == ["GPU 4,5", "GPU GPU-ab12,7"]
    assert len(slots.find_slots(hardware, runs=1)) == 1
    with pytest.raises(ConfigProblem, match="gpus_per_run=8, but 4 GPUs"):
        slots.find_slots(replace(hardware, processes=8), runs=9)


def test_a_plan_needs_no_gpus():
    hardware = HardwareConfig(device="cuda", processes=2)
    assert len(slots.find_slots(hardware, runs=9, must_exist=False)) == 4


def test_cores_are_shared_by_slots_and_processes(monkeypatch):
    monkeypatch.setattr(slots, "cores", lambda: 16)
    hardware = HardwareConfig(device="cpu", processes=2)
    assert len(slots.find_slots(hardware, runs=9, jobs=4)) == 4
    assert slots.threads_of([Slot()] * 4, hardware) == 2
    assert slots.threads_of([Slot()] * 16, hardware) == 1


def test_failures_do_not_stop_the_others(prepared, tmp_path, monkeypatch, capfd):
    jobs = make_jobs(prepared, tmp_path, 4)
    special = {"run 1": {"do": "fail"}, "run 2": {"do": "diverge"}}
    give_orders(monkeypatch, tmp_path, jobs, special)
    ended: list[Job] = []
    assert run_jobs(iter(jobs), 2, ended=ended.append)
    assert [job.exit_status for job in jobs] == [0, 1, 5, 0]
    assert [job.ending for job in jobs] == ["finished", "failed", "diverged", "finished"]
    assert sorted(job.name for job in ended) == [job.name for job in jobs]
    assert "a failure that was ordered" in jobs[1].log.read_text()
    assert "run 1: failed after" in capfd.readouterr().out


def test_what_comes_next_may_depend_on_what_came_before(prepared, tmp_path, monkeypatch):
    jobs = make_jobs(prepared, tmp_path, 3)
    give_orders(monkeypatch, tmp_path, jobs)
    ended: list[Job] = []

    def chosen():
        for number, job in enumerate(jobs):
            assert len(ended) == number
            yield job

    assert run_jobs(chosen(), [Slot("the only one")], ended=ended.append, to_logs=True)
    assert began(tmp_path) == ["run-0", "run-1", "run-2"]


def test_an_error_of_ours_lets_the_runs_save(prepared, tmp_path, monkeypatch):
    jobs = make_jobs(prepared, tmp_path, 1)
    give_orders(monkeypatch, tmp_path, jobs, {"run": {"seconds": 60.0, "steps": 600}})

    def broken():
        yield jobs[0]
        while not began(tmp_path):
            time.sleep(0.02)
        raise RuntimeError("no more points")

    with pytest.raises(RuntimeError, match="no more points"):
        run_jobs(broken(), 2)
    status = json.loads((jobs[0].prepared.folder / "status.json").read_text())
    assert status["status"] == "preempted"


def test_a_request_to_stop_reaches_every_run_once(prepared, tmp_path, monkeypatch):
    jobs = make_jobs(prepared, tmp_path, 4)
    give_orders(monkeypatch, tmp_path, jobs, {"run": {"seconds": 60.0, "steps": 600}})

    def ask():
        while len(began(tmp_path)) < 2:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    asking = threading.Thread(target=ask)
    asking.start()
    assert not run_jobs(jobs, 2)
    asking.join()
    assert [job.exit_status for job in jobs] == [75, 75, None, None]
    assert [job.told for job in jobs] == [1, 1, 0, 0]


def test_a_tail_reads_what_is_new_and_no_more(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    tail = Tail(path)
    assert tail.read() == {}
    path.write_text('{"step": 1, "val/top1": 5.0}\n{"step": 2, "tra')
    assert tail.read() == {"step": 1, "val/top1": 5.0}
    with path.open("a") as file:
        file.write('in/loss": "NaN"}\n')
    assert tail.read()["step"] == 2
    with path.open("a") as file:
        file.writelines(f'{{"step": {n}}}\n' for n in range(3, 20_000))
    assert tail.read()["step"] == 19_999
    assert tail.read()["val/top1"] == 5.0
    monkeypatch.setattr(Tail, "AT_FIRST", 100)
    assert Tail(path).read() == {"step": 19_999}  # not the evaluation, which is far back
    path.with_suffix(".new").write_text('{"step": 7}\n')  # a resumed run cuts back
    path.with_suffix(".new").replace(path)
    assert tail.read() == {"step": 7}
