"""Runs as jobs of a real Slurm: two nodes, preemption, many jobs for eight GPUs."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.records import read_status
from engine.rows import read_rows
from launch.run_spec import make_run_spec
from launch.slurm import submit
from tests.cluster.slurm import ask
from tests.launch.launching import command, launch, result, run_folder

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("slurm")]
PAIR = ("hardware.processes=2", "budget='60 steps'")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """The data are made once, beside the folders of the runs."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def undisturbed_pair(base):
    """On one node, without Slurm."""
    done = launch(base / "pair", *PAIR)
    assert done.returncode == 0, done.stderr
    return base / "pair"


def slurm(*command: str) -> str:
    return ask(dict(os.environ), *command)


def spec(folder: Path, *overrides: str):
    return make_run_spec([*command(folder, *overrides)[3:], "cluster=slurm", "cluster.time=10"])


def queue(folder: Path, *overrides: str) -> tuple[str, Path]:
    run = spec(folder, *overrides)
    (job,) = submit([run], run.config.cluster)
    return job, run.folder


def wait_for_step(run: Path, step: int, job: str) -> int:
    while True:
        rows = read_rows(run / "metrics.jsonl") if (run / "metrics.jsonl").exists() else []
        if rows and rows[-1]["step"] >= step:
            return int(rows[-1]["step"])
        assert slurm("squeue", "-hj", job, "-o%T"), log(run, job)
        time.sleep(0.05)


def wait_for_end(job: str) -> dict[str, str]:
    """How Slurm describes a job that has left the queue; a requeued one need not wait here."""
    while states := slurm("squeue", "-haj", job, "-o%T %i").split("\n")[:-1]:
        for state, one in (line.split() for line in states):
            if state == "PENDING" and "_" not in job:
                slurm("scontrol", "update", f"JobId={one}", "StartTime=now")
        time.sleep(0.3)
    return described(job)


def described(job: str) -> dict[str, str]:
    return dict(re.findall(r"(\w+)=(\S+)", slurm("scontrol", "show", "job", job)))


def log(run: Path, job: str) -> str:
    return "".join(p.read_text() for p in sorted(run.parents[1].glob(f"cluster/{job}_*_log.out")))


def same_end(one: Path, other: Path) -> None:
    """Metrics, curves, weights and the optimizer's state, bit for bit."""
    assert result(one) == result(other)
    (first, second) = (
        torch.load(run_folder(folder) / "checkpoints" / "step-00000060.pt", weights_only=True)
        for folder in (one, other)
    )
    for part in ("model", "optimizer"):
        assert str(first[part]) == str(second[part])
    for name, weight in first["model"].items():
        assert torch.equal(weight, second["model"][name]), name


def test_two_nodes_end_as_one(undisturbed_pair, base):
    job, run = queue(base / "nodes", *PAIR, "hardware.nodes=2")
    ended = wait_for_end(job)
    printed = log(run, job)
    assert ended["JobState"] == "COMPLETED", printed
    assert ended["NodeList"] == "n[0-1]"
    assert "2 × cpu on 2 nodes" in printed
    assert "Traceback" not in printed
    same_end(undisturbed_pair, base / "nodes")


def test_a_run_out_of_time_and_preempted_ends_as_an_undisturbed_one(undisturbed_pair, base):
    job, run = queue(base / "disturbed", *PAIR, "hardware.nodes=2")
    wait_for_step(run, 5, job)
    slurm("scancel", "--signal=USR1", job)  # what Slurm does before the time is up
    while described(job)["JobState"] != "PENDING":
        time.sleep(0.1)
    stopped = read_status(run)
    assert stopped.kind == "preempted", log(run, job)
    assert stopped.step is not None
    assert 5 <= stopped.step < 60

    slurm("scontrol", "update", f"JobId={job}", "StartTime=now")
    wait_for_step(run, stopped.step + 5, job)
    urgent = slurm("sbatch", "-purgent", "-N2", "--exclusive", "-o/dev/null", "--wrap=true")
    wait_for_end(urgent.split()[-1])
    assert read_status(run).kind == "preempted", log(run, job)
    assert stopped.step < (read_status(run).step or 0) < 60

    ended = wait_for_end(job)
    assert ended["JobState"] == "COMPLETED", log(run, job)
    assert ended["Restarts"] == "2"
    assert log(run, job).count("resuming") == 2
    same_end(undisturbed_pair, base / "disturbed")


def test_what_fails_or_is_cancelled_is_not_queued_again(base, capsys):
    overrides = ("optimizer.lr=1e30", "experiment=imagenet/sgd_100ep", "decay.apply_to=all")
    failing, _ = queue(base / "failing", *overrides)
    run = spec(base / "cancelled", "budget='1000 epochs'")
    (job,) = submit([run, run], run.config.cluster)
    wait_for_step(run.folder, 1, job)
    assert submit([run], run.config.cluster) == []
    assert f"is job {job} already" in capsys.readouterr().out
    slurm("scancel", job)
    assert wait_for_end(job)["JobState"] == "CANCELLED"
    assert read_status(run.folder).kind == "preempted"
    assert "and saved" in read_status(run.folder).message
    ended = wait_for_end(failing)
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("FAILED", "5:0", "0")


def test_ten_jobs_share_eight_gpus(base):
    """Never more at once than there are, and none for two at a time."""
    book = base / "gpus.txt"
    entry = f"$SLURM_JOB_ID $SLURM_JOB_GPUS $CUDA_VISIBLE_DEVICES >> {book}"
    runs = [spec(base / "many", "budget='2 steps'", f"seed={seed}") for seed in range(10)]
    cluster = replace(
        runs[0].config.cluster,
        gpus_per_node=1,
        array_parallelism=10,
        setup=[f"echo begins {entry}", f"trap 'echo ends {entry}' EXIT"],
        options={"nodelist": "n0"},
    )
    jobs = submit(runs, cluster)
    assert jobs == [f"{jobs[0].partition('_')[0]}_{number}" for number in range(10)]
    for job in jobs:
        assert wait_for_end(job)["JobState"] == "COMPLETED", log(runs[0].folder, job)
    assert submit(runs, cluster) == []
    assert len(list((base / "many").rglob("record.json"))) == 10

    taken: dict[str, str] = {}
    most, used = 0, Counter[str]()
    for event, job, gpu, visible in map(str.split, book.read_text().splitlines()):
        assert gpu == visible
        if event == "begins":
            assert gpu not in taken, f"{gpu} is {taken}'s and {job}'s"
            taken[gpu] = job
            used[gpu] += 1
        else:
            assert taken.pop(gpu) == job
        most = max(most, len(taken))
    assert most == 8
    assert not taken
    assert set(used) == {str(number) for number in range(8)}
    assert sum(used.values()) == 10
