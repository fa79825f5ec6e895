"""Runs as Slurm jobs, submitted with submitit: the only module that knows it.

A job has one task on each node, a launcher. Slurm sends a signal before the time limit and before a
preemption; the launchers save and stop, and the job is requeued until the run has ended. A run that
fails is not requeued.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from submitit import SlurmExecutor
from submitit.core.utils import FailedJobError, FailedSubmissionError

from engine.config import ClusterConfig, ConfigProblem, RunConfig, read_config
from engine.lock import RunFolderBusy, hold_run_folder
from engine.records import read_status
from launch.compose import Origin
from launch.entry import make_streams_safe
from launch.exit_status import PREEMPTED
from launch.hardware import gpus_per_node
from launch.rendezvous import Node
from launch.run_spec import RunSpec
from launch.supervise import launch
from tasks.files import parse_json, write_atomically

JOB = "job.json"  # in a run's folder: the job that it was submitted as
USUAL_WORKERS = 8  # loader processes of a GPU for which cores are requested
PORTS = range(20_000, 30_000)  # below the ephemeral ones


@dataclass(frozen=True)
class LaunchInJob:
    """What a task of a job does: a node's part of a run, from its whole configuration."""

    config: dict[str, Any]
    requeue: bool
    origin: Origin = field(default_factory=Origin)

    def __call__(self) -> None:
        """Exits with the launcher's status. A run stopped by a signal is requeued."""
        make_streams_safe()  # of the job's log, on a disk that may be full
        config = read_config(self.config)
        node = this_node(config.hardware.nodes)
        status = launch(config, self.origin, node, patient=True)
        if status == PREEMPTED:
            if not node.is_first:
                return  # the first node requeues the job
            if self.requeue:
                requeue_this_job()
        if status != 0:
            sys.exit(status)


def submit(runs: Sequence[RunSpec], cluster: ClusterConfig) -> list[str]:
    """Submits runs that are neither finished, nor running, nor queued; the ids of their jobs.

    Several become an array, of which `cluster.array_parallelism` run at once.
    """
    alike: dict[tuple[int, int, int], list[RunSpec]] = defaultdict(list)
    # Jobs that are pending or running, those of arrays one by one (12_3).
    queued = set(_ask_slurm("squeue", "--noheader", "--array", "--me", "--format=%i").split())
    for run in {run.run_id: run for run in runs}.values():
        if state := _known_state(run, queued):
            print(f"{run.run_id} is {state} already: {run.folder}", flush=True)
        else:
            alike[_needs(run.config, cluster)].append(run)
    return [job for group in alike.values() for job in _submit_alike(group, cluster)]


def _submit_alike(runs: list[RunSpec], cluster: ClusterConfig) -> list[str]:
    """Runs with the same needs, as one job or one array."""
    folder = Path(runs[0].config.paths.outputs, "cluster")
    try:
        executor = SlurmExecutor(folder, python=cluster.python)
        executor.update_parameters(**_parameters(runs, cluster))
        with executor.batch():
            jobs = []
            for run in runs:
                config = asdict(replace(run.config, cluster=ClusterConfig()))
                jobs.append(executor.submit(LaunchInJob(config, cluster.requeue, run.origin)))
    except (FailedJobError, FailedSubmissionError, RuntimeError) as problem:
        raise ConfigProblem([f"Slurm refuses the job: {_last_line(problem)}"]) from problem
    for run, job in zip(runs, jobs, strict=True):
        content = json.dumps({"job": job.job_id}).encode()
        write_atomically(run.folder / JOB, content, durable=False)
        print(f"{run.run_id} is job {job.job_id}, log {job.paths.stdout}", flush=True)
    return [job.job_id for job in jobs]


def _needs(config: RunConfig, cluster: ClusterConfig) -> tuple[int, int, int]:
    """Nodes, and GPUs and cores of each."""
    hardware, cpus = config.hardware, cluster.cpus_per_node
    if isinstance(cpus, str):
        workers = hardware.data_workers
        if isinstance(workers, str):  # chosen on the node, by the cores that are requested here
            workers = USUAL_WORKERS if hardware.device == "cuda" else 0
        cpus = int(hardware.processes) // hardware.nodes * (1 + workers)
    return hardware.nodes, gpus_per_node(hardware, cluster), cpus


def _parameters(runs: list[RunSpec], cluster: ClusterConfig) -> dict[str, Any]:
    """Options of sbatch, as submitit spells them."""
    nodes, gpus, cpus = _needs(runs[0].config, cluster)
    more: dict[str, Any] = {
        "chdir": str(Path.cwd()),
        "requeue" if cluster.requeue else "no-requeue": True,
        # Sent to the processes of all tasks: launchers and workers handle it.
        "signal": f"USR1@{cluster.signal_before_s}",
    }
    if cluster.mem is not None:
        more["mem"] = cluster.mem
    return {
        "job_name": runs[0].config.experiment.replace("/", "-") if len(runs) == 1 else "novograd",
        "partition": cluster.partition,
        "account": cluster.account,
        "qos": cluster.qos,
        "time": cluster.time,
        "nodes": nodes,
        "ntasks_per_node": 1,
        "gpus_per_node": gpus or None,
        "cpus_per_task": cpus,
        "srun_args": [f"--cpus-per-task={cpus}"],  # which srun does not take over from sbatch
        "array_parallelism": cluster.array_parallelism,
        "stderr_to_stdout": True,
        "wckey": None,
        "setup": list(cluster.setup),
        "additional_parameters": more | cluster.options,
    }


def _known_state(run: RunSpec, queued: set[str]) -> str:
    """Why a run need not be submitted; empty if it must be."""
    if read_status(run.folder).is_finished:
        return "finished"
    with suppress(OSError, ValueError, KeyError):
        if (job := parse_json((run.folder / JOB).read_text())["job"]) in queued:
            return f"job {job}"
    try:
        with hold_run_folder(run.folder):
            return ""
    except RunFolderBusy:
        return "running"


def this_node(nodes: int) -> Node:
    """This task's node. The first one has the address that Slurm itself reaches it at."""
    if nodes == 1:
        return Node()
    first = _ask_slurm("scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]).split()[0]
    described = _ask_slurm("scontrol", "show", "node", first)
    found = re.search(r"\bNodeAddr=(\S+)", described)
    port = PORTS[int(os.environ["SLURM_JOB_ID"]) % len(PORTS)]
    return Node(int(os.environ["SLURM_NODEID"]), nodes, found[1] if found else first, port)


def requeue_this_job() -> None:
    """If it is running: Slurm itself requeues what it preempts; a cancelled job stays cancelled."""
    job = os.environ["SLURM_JOB_ID"]
    if "JobState=RUNNING" in _ask_slurm("scontrol", "show", "job", job):
        _ask_slurm("scontrol", "requeue", job)
        print(f"job {job} is requeued", flush=True)


def _ask_slurm(*command: str) -> str:
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    except FileNotFoundError as problem:
        raise ConfigProblem([f"cluster=slurm: no {command[0]} on this machine"]) from problem
    except subprocess.SubprocessError as problem:
        reason = (getattr(problem, "stderr", None) or str(problem)).strip()
        raise ConfigProblem([f"{' '.join(command)}: {reason}"]) from problem
    return done.stdout


def _last_line(problem: Exception) -> str:
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    return next((line for line in lines if "error:" in line), lines[-1] if lines else "")
