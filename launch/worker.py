"""One worker of a run, started by torchrun, or by the launcher where it is the only one.

Reads the frozen `run.yaml` of the run's folder and nothing else. How the run ended is written to
`status.json`; the exit status is 0 for every orderly end, so that torchrun stays quiet.
"""

from __future__ import annotations

import ctypes
import io
import os
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from engine.records import read_run_file, write_status
from launch.torchrun import PARENT
from tasks.files import remove_temporaries

STOP_WORKER = signal.SIGUSR1  # what a launcher sends
STOP_SIGNALS = (signal.SIGTERM, STOP_WORKER)


def run_worker(folder: Path) -> int:
    """0 for an orderly end, 1 for a crash."""
    rank = int(os.environ.get("RANK", 0))
    _die_with_parent()
    early: list[int] = []  # stop signals before there is a trainer that could be stopped
    # SIGTERM is still deadly: there is nothing to save, and torchrun ends with it workers that wait
    # for one that was lost, perhaps inside a call during which Python handles no signals.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(STOP_WORKER, lambda number, _: early.append(number))
    log: TextIO = sys.stderr
    try:
        log = _keep_log(folder, rank)
        if rank == 0:  # before it joins the others, one of which may write another status
            remove_temporaries(folder)
            write_status(folder, "running", "")
        _train(folder, early)
    except Exception as error:
        _report(error, folder, rank, log)
        return 1
    return 0


def _report(error: Exception, folder: Path, rank: int, log: TextIO) -> None:
    """What ended this process: in its log, on the screen, and in status.json if it is the cause.

    Where another process was lost no status is written, and the launcher restarts the workers.
    """
    from engine.distributed import is_lost_contact

    last = traceback.format_exc().strip().splitlines()[-1]
    lost = is_lost_contact(error)
    # The traceback of what is no bug, such as a full disk, goes to the log alone.
    with suppress(OSError):
        traceback.print_exc(file=log if lost or isinstance(error, OSError) else None)
    if lost:
        print(f"process {rank} lost contact with another: {last}", flush=True)
        return
    with suppress(OSError):
        write_status(folder, "failed", last)


def _train(folder: Path, early: list[int]) -> None:
    from torch import OutOfMemoryError

    from engine import precision
    from engine.checkpoint import CannotSaveError, CheckpointError
    from engine.config import read_config
    from engine.distributed import joined
    from engine.loading import keep_model_files
    from engine.memory import keep_freed_memory
    from engine.plan import make_plan, micro_batches_of
    from engine.tracking import RunAbout
    from engine.trainer import Trainer
    from launch.paper_row import compare_with_paper
    from launch.run_record import keep_record
    from launch.run_spec import make_task
    from launch.torch_compiler import torch_compiler_unloaded
    from tasks.base import DataProblem
    from tasks.catalog import task_class

    frozen = read_run_file(folder)
    config = read_config(frozen.config)
    hardware = config.hardware
    threads = hardware.threads if isinstance(hardware.threads, int) else None
    group_of_run = joined(hardware.device, hardware.timeout_s)
    with torch_compiler_unloaded(unless=hardware.compile), group_of_run as group:
        task_kind = task_class(config.task.name)
        precision.configure(hardware, group.device, threads, fixed_shapes=task_kind.fixed_shapes)
        if group.device.type == "cpu":
            keep_freed_memory()
        task = make_task(config, micro_batches_of(config, group.world))
        plan = make_plan(config, task.unit, task.steps_per_epoch, group.world)
        about = RunAbout(
            frozen.fingerprint,
            frozen.notes,
            frozen.paper,
            lambda final: compare_with_paper(config.experiment, config.scale, final),
            lambda result: keep_record(folder, frozen, result, trainer),
        )
        stop_here = stop_file(folder / "logs", int(os.environ.get("GROUP_RANK", 0)))
        try:
            trainer = Trainer(config, plan, task, group, folder, frozen.run_id, about)
            for number in STOP_SIGNALS:
                signal.signal(number, lambda *_: trainer.request_stop())
            if early or stop_here.exists():
                trainer.request_stop()
            if group.is_first:
                keep_model_files(folder, task)
            result = trainer.fit()
        except (CheckpointError, DataProblem, OutOfMemoryError) as problem:
            kind, message = "failed", str(problem)
            if isinstance(problem, OutOfMemoryError):
                message = _describe_out_of_memory(config, task_kind)
            elif isinstance(problem, DataProblem):  # perhaps of this process alone
                kind = "data_problem"
            elif not isinstance(problem, CannotSaveError):
                kind = "checkpoint_problem"
            write_status(folder, kind, message)
            raise SystemExit(1) from problem  # torchrun then ends those that wait for this one
        if group.is_first:
            write_status(folder, result.status, result.message, step=result.step)


def _describe_out_of_memory(config: Any, task: Any) -> str:
    """The row, its micro-batch, the peak and what can be set; `task` is the task's class."""
    import torch

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    peak, whole = torch.cuda.max_memory_allocated() / 1e9, properties.total_memory / 1e9
    remedies = []
    if task.can_checkpoint_activations and not config.hardware.checkpoint_activations:
        remedies.append("hardware.checkpoint_activations=true keeps the recipe and needs less")
    remedies.append("a GPU with more memory")
    micro = config.batch.micro
    if micro % 2 == 0:
        halved = f"batch.micro={micro // 2}, twice the accumulation"
        if task.normalises_batches:
            halved += ", is another recipe, as batch norm sees fewer examples"
        remedies.append(halved)
    return (
        f"out of GPU memory: {config.experiment} with batch.micro={micro} in "
        f"{config.hardware.precision} had {peak:.1f} GB allocated at its peak, of {whole:.1f} GB "
        f"on {properties.name}. What can be done: {'; '.join(remedies)}"
    )


def stop_file(logs: Path, node: int) -> Path:
    """Exists once a node's launcher has received a stop signal, perhaps before its workers do."""
    return logs / (f"stop-{node}" if node else "stop")


def _die_with_parent() -> None:
    """A worker whose torchrun is killed gets SIGKILL from the kernel (Linux)."""
    be_killed_with_parent()
    parent = str(os.getppid())
    if sys.platform == "linux" and os.environ.get(PARENT, parent) != parent:
        sys.exit(1)  # torchrun was killed before the call above


def be_killed_with_parent() -> None:
    """Asks the kernel to kill this process when its parent dies (Linux only)."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _keep_log(folder: Path, rank: int) -> TextIO:
    """All output goes to logs/rank-N.log; the first rank's to the screen as well.

    The process id is written beside it, so that the launcher can send the worker stop signals.
    """
    logs = folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    (logs / f"rank-{rank}.pid").write_text(str(os.getpid()))
    log = (logs / f"rank-{rank}.log").open("a", buffering=1)
    if rank > 0:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    else:
        sys.stdout, sys.stderr = _Tee(sys.stdout, log), _Tee(sys.stderr, log)
    return log


class _Tee(io.TextIOBase):
    """Writes to the screen, and to the log as long as the disk is not full."""

    def __init__(self, screen: TextIO, log: TextIO) -> None:
        self._screen, self._log = screen, log

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._log.write(text)
        return self._screen.write(text)

    def flush(self) -> None:
        self._screen.flush()
        with suppress(OSError):
            self._log.flush()
