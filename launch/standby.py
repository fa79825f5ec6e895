"""A worker that starts, and imports what workers import, while its run is still being validated.

Importing torch takes seconds, to the launcher as well as to a worker. The only worker of a run of
one process is therefore started as soon as the configuration is composed, and waits for the run's
folder on its standard input. If the run turns out to be another one than was expected, or can't be
run, this worker is discarded; it ends by itself when the launcher does.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from engine.config import ConfigProblem, read_config
from launch.config_files import ROOT
from launch.device_check import installed_gpus
from launch.hardware import cores
from launch.torch_compiler import COMPILER
from launch.worker import STOP_WORKER, be_killed_with_parent
from tasks.catalog import TASKS

THREADS = "OMP_NUM_THREADS"
NEEDED = (
    "engine.trainer",
    "engine.loading",
    "launch.paper_row",
    "launch.run_record",
    "launch.run_spec",
)
_standby: tuple[subprocess.Popen[bytes], str] | None = None  # and its number of threads


def worker_environment(threads: Any) -> dict[str, str]:
    """The variables of a run's workers, and of torchrun where it starts them."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, THREADS: str(threads), "PYTHONPATH": path}


def start_process(
    module: str, *arguments: str, environment: Mapping[str, str], stdin: int | None = None
) -> subprocess.Popen[bytes]:
    """A process of a run, of the launcher's own."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env=environment,
        stdin=stdin,
        start_new_session=True,  # Ctrl-C reaches the launcher only, which sends it on in order
        preexec_fn=_before_python,
    )


def _before_python() -> None:
    """In the new process: it ends with the launcher.

    Slurm sends its stop signal to every process of a job. Until a worker handles it, it is ignored:
    the launcher leaves a stop file, which the worker then finds.
    """
    be_killed_with_parent()
    signal.signal(STOP_WORKER, signal.SIG_IGN)


def start_standby(raw: dict[str, Any]) -> None:
    """Starts a worker for a composed configuration, if it is a run of one process here."""
    global _standby
    try:
        config = read_config(raw)
    except ConfigProblem:
        return
    hardware = config.hardware
    on_cpu = hardware.device == "cpu" or (hardware.device == "auto" and not installed_gpus())
    is_alone = hardware.processes == 1 or (hardware.processes == "auto" and on_cpu)
    if not is_alone or hardware.nodes > 1 or config.cluster.kind != "local":
        return
    if _standby is None and config.task.name in TASKS:
        threads = cores() if hardware.threads == "auto" else hardware.threads
        environment = worker_environment(threads)
        arguments = ["--standby", config.task.name]
        if hardware.compile or config.optimizer.get("name") != "novograd":
            arguments.append("--compiler")  # torch's own optimizers import it in their first step
        process = start_process(
            "scripts.train", *arguments, environment=environment, stdin=subprocess.PIPE
        )
        _standby = process, environment[THREADS]


def take_standby(folder: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes] | None:
    """Gives the waiting worker its run; None if there is none, or none that fits."""
    global _standby
    if _standby is None:
        return None
    (process, threads), _standby = _standby, None
    assert process.stdin is not None
    with suppress(OSError), process.stdin:  # it may be gone
        if threads == environment[THREADS] and process.poll() is None:
            process.stdin.write(f"{folder}\n".encode())
            process.stdin.flush()
            return process
    _end(process)
    return None


def discard_standby() -> None:
    """Ends the worker that no run was given to."""
    global _standby
    if _standby is not None:
        (process, _), _standby = _standby, None
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    if process.stdin is not None:
        with suppress(OSError):  # what it was not given
            process.stdin.close()


def wait_for_folder(task: str, *, compiler: bool) -> Path:
    """The other end: imports, then reads the folder; exits if there is no run."""
    for module in (*NEEDED, TASKS[task].partition(":")[0], *([COMPILER] if compiler else [])):
        importlib.import_module(module)
    folder = sys.stdin.readline().removesuffix("\n")
    if not folder:
        sys.exit(0)
    return Path(folder)
