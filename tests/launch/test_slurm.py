"""Submission to Slurm, with programs in its place that write down what they are asked."""

from __future__ import annotations

import os
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from submitit.core.utils import DelayedSubmission

from engine.config import ConfigProblem
from engine.lock import hold_run_folder
from engine.records import write_status
from launch import slurm as slurm_module
from launch.rendezvous import Node
from launch.run_spec import make_run_spec
from launch.slurm import LaunchInJob, submit
from scripts import sweep
from scripts.launch import main

PROGRAMS = {
    "sbatch": """
        grep -q partition=nowhere $1 && { echo "sbatch: error: invalid partition" >&2; exit 1; }
        cp $1 {folder}/script; echo Submitted batch job 41""",
    "squeue": "cat {folder}/queue",
    "scontrol": """
        case "$*" in
            "show hostnames "*) echo a7; echo a8;;
            "show node a7") echo "   NodeAddr=10.0.0.7 NodeHostName=a7";;
            "show job "*) cat {folder}/job;;
            *) echo "$*" >> {folder}/asked;;
        esac""",
    "srun": "",
}


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """A folder with what is asked: script, asked; and what is answered: queue, job."""
    folder = tmp_path / "slurm"
    (folder / "bin").mkdir(parents=True)
    for name, text in PROGRAMS.items():
        program = folder / "bin" / name
        program.write_text(f"#!/bin/bash\n{text.replace('{folder}', str(folder))}\n")
        program.chmod(0o755)
    (folder / "queue").touch()
    monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return folder


def arguments(folder: Path, *more: str) -> list[str]:
    # The data are made once for all tests.
    paths = [f"paths.outputs={folder / 'outputs'}", f"paths.data={folder.parent / 'data'}"]
    fixed = ["experiment=imagenet/novograd_100ep", "scale=smoke", "cluster=slurm"]
    return [*fixed, *paths, "hardware.device=cpu", *more]


def options(slurm: Path) -> dict[str, str]:
    """What the script asks sbatch for."""
    found = re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", (slurm / "script").read_text(), re.MULTILINE)
    return dict(found)


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory) -> dict[str, Any]:
    """A whole configuration."""
    given = ("cluster=local", "hardware.nodes=2", "hardware.processes=2")
    folder = tmp_path_factory.mktemp("two_nodes")
    return asdict(make_run_spec(arguments(folder, *given), need_data=False).config)


def test_a_run_is_submitted_once(slurm, tmp_path, capsys):
    more = ["hardware.nodes=2", "hardware.processes=4", "hardware.data_workers=3"]
    more += ["cluster.partition=gpu", "cluster.gpus_per_node=2", "cluster.mem=64G"]
    more += ["cluster.signal_before_s=90", "cluster.setup=[module load cuda]"]
    more += ["cluster.options={constraint: a100}", "batch.global_size=128"]
    assert main(arguments(tmp_path, *more)) == 0
    output = capsys.readouterr().out
    folder = tmp_path / "outputs" / "cluster"
    assert f"is job 41, log {folder}/41_0_log.out" in output
    asked = options(slurm)
    expected = {"nodes": "2", "ntasks-per-node": "1", "gpus-per-node": "2", "cpus-per-task": "8"}
    expected |= {"partition": "gpu", "mem": "64G", "signal": "USR1@90", "time": "1440"}
    expected |= {"requeue": "", "constraint": "a100", "open-mode": "append"}
    assert asked.items() >= expected.items()
    assert not {"account", "qos", "wckey", "array", "no-requeue"} & set(asked)
    script = (slurm / "script").read_text()
    assert "\nmodule load cuda\n" in script
    assert "--cpus-per-task=8 " in script.splitlines()[-1]

    task = DelayedSubmission.load(folder / "41_submitted.pkl").function
    assert isinstance(task, LaunchInJob)
    config = task.config
    assert config["cluster"]["kind"] == "local"
    assert (config["hardware"]["nodes"], config["hardware"]["processes"]) == (2, 4)
    assert config["hardware"]["threads"] == "auto"  # of the machine there
    assert Path(config["paths"]["outputs"]) == tmp_path / "outputs"

    (slurm / "queue").write_text("40\n41\n")
    (slurm / "script").unlink()
    assert main(arguments(tmp_path, *more)) == 0
    assert "is job 41 already" in capsys.readouterr().out
    assert not (slurm / "script").exists()


def test_many_become_an_array_without_those_that_are_there(slurm, tmp_path, capsys):
    runs = [make_run_spec(arguments(tmp_path, f"seed={seed}")) for seed in range(4)]
    for run in runs[:2]:
        run.folder.mkdir(parents=True)
    write_status(runs[0].folder, "finished", "")
    with hold_run_folder(runs[1].folder):
        jobs = submit([*runs, runs[3]], replace(runs[0].config.cluster, array_parallelism=1))
    assert jobs == ["41_0", "41_1"]
    output = capsys.readouterr().out
    assert f"{runs[0].run_id} is finished already" in output
    assert f"{runs[1].run_id} is running already" in output
    assert options(slurm)["array"] == "0-1%1"
    assert "gpus-per-node" not in options(slurm)
    (slurm / "queue").write_text("".join(f"{job}\n" for job in jobs))
    assert submit(runs[2:], runs[0].config.cluster) == []


def test_a_sweep_becomes_an_array(slurm, tmp_path, capsys):
    grid = ["optimizer.lr=0.01,0.02", "seed=0,1"]
    assert sweep.main([*arguments(tmp_path), *grid]) == 0
    assert "4 runs submitted" in capsys.readouterr().out
    assert options(slurm)["array"].startswith("0-3")
    search = ["search=optuna", "trials=2", "multiply.lr=log(0.1,10)"]
    assert sweep.main([*arguments(tmp_path), *search]) == 2
    assert "use search=random" in capsys.readouterr().err


def test_a_cluster_is_no_science(tmp_path):
    one = make_run_spec(arguments(tmp_path), need_data=False)
    other = arguments(tmp_path, "cluster=local", "hardware.processes=2", "hardware.nodes=2")
    assert make_run_spec(other, need_data=False).run_id == one.run_id


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["cluster.partition=nowhere"], "Slurm refuses the job: sbatch: error: invalid"),
        (
            ["hardware.device=auto"],
            "set cluster.gpus_per_node (8, for example)",
        ),
        (["cluster.kind=pbs"], "cluster.kind must be one of local, slurm"),
        (["cluster=pbs"], "cluster=pbs does not exist"),
        (["cluster.time=2"], "leaves nothing of cluster.time=2 min = 120 s"),
        (["cluster.gpu_per_node=2"], "is not a known key; did you mean 'gpus_per_node'"),
        (["cluster.gpus_per_node=all"], "must be a number or 'auto', not 'all'"),
    ],
)
def test_what_slurm_or_we_refuse(slurm, tmp_path, capsys, more, message):
    assert main(arguments(tmp_path, *more)) == 2
    assert message in capsys.readouterr().err


def test_without_slurm(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(arguments(tmp_path)) == 2
    assert "no squeue on this machine" in capsys.readouterr().err


def test_gpus_that_this_machine_does_not_have(slurm, tmp_path):
    more = ("hardware=gpu", "hardware.device=cuda", "hardware.nodes=2", "batch.global_size=512")
    config = make_run_spec(arguments(tmp_path, *more, "cluster.gpus_per_node=8")).config
    assert (config.hardware.device, config.hardware.processes) == ("cuda", 16)
    run = make_run_spec(arguments(tmp_path, *more, "hardware.processes=4"))
    submit([run], run.config.cluster)
    assert options(slurm)["gpus-per-node"] == "2"
    with pytest.raises(ConfigProblem, match="set cluster"):
        make_run_spec(arguments(tmp_path, *more))


@pytest.mark.parametrize(
    ("status", "rank", "state", "ends", "queued"),
    [
        (0, 0, "RUNNING", None, False),
        (75, 0, "RUNNING", 75, True),
        (75, 1, "RUNNING", None, False),  # the first node's task does it
        (75, 0, "CANCELLED", 75, False),  # a user's wish, or a preemption: Slurm's own business
        (1, 0, "RUNNING", 1, False),
        (5, 1, "RUNNING", 5, False),
    ],
)
def test_what_a_task_does_at_the_end(
    slurm, two_nodes, monkeypatch, status, rank, state, ends, queued
):
    seen = []

    def launch(config, changed_by_scale, node, *, patient):
        seen.append((node, patient))
        return status

    monkeypatch.setattr(slurm_module, "launch", launch)
    monkeypatch.setenv("SLURM_JOB_ID", "20007")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "a[7-8]")
    monkeypatch.setenv("SLURM_NODEID", str(rank))
    (slurm / "job").write_text(f"JobId=20007\n   JobState={state} Reason=None")
    task = LaunchInJob(two_nodes, requeue=True)
    if ends is None:
        task()
    else:
        with pytest.raises(SystemExit) as caught:
            task()
        assert caught.value.code == ends
    assert seen == [(Node(rank, 2, "10.0.0.7", 20007), True)]
    assert (slurm / "asked").exists() == queued
    if queued:
        assert (slurm / "asked").read_text() == "requeue 20007\n"
