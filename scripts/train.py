"""`python -m scripts.train RUN_FOLDER`: one worker of a run, started by torchrun.

Reads the frozen `run.yaml` of the folder and nothing else. How the run ended stands in
`status.json`; the exit status is 0 for every orderly end, so that torchrun stays quiet.
"""

from __future__ import annotations

import ctypes
import io
import json
import os
import signal
import sys
import traceback
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

import yaml

from engine.record import write_atomically

STATUS = "status.json"
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


def main() -> int:
    """0 for an orderly end, 1 for a crash."""
    folder = Path(sys.argv[1])
    rank = int(os.environ.get("RANK", 0))
    _die_with_parent()
    early: list[int] = []  # requests to stop before there is anything that could be stopped
    for number in STOP_SIGNALS:
        signal.signal(number, lambda number, _: early.append(number))
    log: TextIO = sys.stderr
    try:
        log = _keep_log(folder, rank)
        if rank == 0:  # before it meets the others, who may have something else to say
            write_status(folder, "running", "")
        _train(folder, early)
    except Exception as error:
        _tell(error, folder, rank, log)
        return 1
    return 0


def _tell(error: Exception, folder: Path, rank: int, log: TextIO) -> None:
    """What ended this process: in its log, on the screen, and in status.json if it is its own.

    Where another was lost no status is written, and the launcher starts the workers anew.
    """
    from engine.distributed import is_lost_contact

    last = traceback.format_exc().strip().splitlines()[-1]
    lost = is_lost_contact(error)
    # What is no mistake of the program's, a full disk say, has its traceback in the log alone.
    with suppress(OSError):
        traceback.print_exc(file=log if lost or isinstance(error, OSError) else None)
    if lost:
        print(f"process {rank} has lost another: {last}", flush=True)
        return
    with suppress(OSError):
        write_status(folder, "failed", last)


def _train(folder: Path, early: list[int]) -> None:
    from engine import precision
    from engine.checkpoint import CannotSaveError, CheckpointError
    from engine.config import read_config
    from engine.distributed import joined
    from engine.memory import keep_freed_memory
    from engine.plan import make_plan, slots_of
    from engine.trainer import Trainer
    from tasks.base import DataProblem
    from tasks.catalog import task_class

    frozen = yaml.safe_load((folder / "run.yaml").read_text())
    config = read_config(frozen["config"])
    hardware = config.hardware
    threads = hardware.threads if isinstance(hardware.threads, int) else None
    with joined(hardware.device, hardware.timeout_s) as group:
        precision.configure(hardware, group.device, threads)
        if group.device.type == "cpu":
            keep_freed_memory()
        task = make_task(task_class(config.task.name), config, slots_of(config, group.world))
        plan = make_plan(config, task.unit, task.steps_per_epoch, group.world)
        trainer = Trainer(config, plan, task, group, folder, frozen["run_id"])
        for number in STOP_SIGNALS:
            signal.signal(number, lambda *_: trainer.request_stop())
        if early or stop_file(folder / "logs", int(os.environ.get("GROUP_RANK", 0))).exists():
            trainer.request_stop()
        try:
            outcome = trainer.fit()
        except CheckpointError as problem:
            kind = "failed" if isinstance(problem, CannotSaveError) else "checkpoint_problem"
            write_status(folder, kind, str(problem))
            raise SystemExit(1) from problem  # torchrun then ends those who wait for this one
        except DataProblem as problem:  # of this process alone
            write_status(folder, "data_problem", str(problem))
            raise SystemExit(1) from problem
        if group.is_first:
            if outcome.status == "finished":
                write_run_record(
                    folder, frozen, config, plan, outcome, trainer.module, task.signature()
                )
            write_status(folder, outcome.status, outcome.message, step=outcome.step)


def make_task(kind: Any, config: Any, slots: int) -> Any:
    """The task of a configuration; its own options are read strictly."""
    from engine.config import ConfigProblem
    from tasks.base import Context

    problems: list[str] = []
    model, data = read_task_options(kind, config, problems)
    if problems:
        raise ConfigProblem(problems)
    context = Context(
        seed=config.seed,
        micro=config.batch.micro,
        slots=slots,
        eval_batch=config.evaluation.batch,
        data_workers=config.hardware.data_workers,
        data_root=Path(config.paths.data),
    )
    return kind(model, data, context)


def read_task_options(kind: Any, config: Any, problems: list[str]) -> tuple[Any, Any]:
    """A task's model and data options; what is wrong with them is added to `problems`."""
    from engine.config import read_dataclass

    model = read_dataclass(kind.ModelOptions, config.model, "model", problems)
    data = read_dataclass(kind.DataOptions, config.data, "data", problems)
    return model, data


def stop_file(logs: Path, node: int) -> Path:
    """There if a node's launcher was asked to stop, perhaps before this process was there."""
    return logs / (f"stop-{node}" if node else "stop")


def record_path(config: Any, run_id: str) -> Path:
    """Where a finished run leaves its record."""
    name = run_id.rpartition("/")[2]
    return Path(config.paths.records, config.experiment, f"{name}.json")


def write_run_record(
    folder: Path,
    frozen: Any,
    config: Any,
    plan: Any,
    outcome: Any,
    module: Any,
    signature: str,
) -> None:
    """What a finished run leaves in results/."""
    from engine.provenance import describe_environment
    from engine.record import write_record
    from results.curves import read_rows, thinned

    rows = read_rows(folder / "metrics.jsonl")
    record = {
        "run_id": frozen["run_id"],
        "experiment": config.experiment,
        "scale": config.scale,
        "seed": config.seed,
        "fingerprint": frozen["fingerprint"],
        "date": datetime.now(UTC).date().isoformat(),
        "final": outcome.final,
        "best": outcome.best,
        "wall_s": outcome.wall_s,
        "skipped_steps": outcome.skipped,
        "meters": outcome.meters,
        "signature": signature,
        "curves": thinned(rows),
        "parameters": sum(p.numel() for p in module.parameters()),
        "plan": {k: v for k, v in asdict(plan).items() if k != "schedule"},
        "environment": describe_environment(),
        "config": {k: v for k, v in frozen["config"].items() if k not in ("paths", "cluster")},
    }
    write_record(record_path(config, frozen["run_id"]), record)


def write_status(folder: Path, status: str, message: str, **more: Any) -> None:
    """Atomically: a reader sees the old status or the new one."""
    data = (json.dumps({"status": status, "message": message, **more}) + "\n").encode()
    try:
        write_atomically(folder / STATUS, data, durable=False)
    except OSError:
        with (folder / STATUS).open("r+b") as file:  # a full disk has room in the old one's place
            file.write(data)
            file.truncate()


def _die_with_parent() -> None:
    """A worker whose torchrun is killed gets SIGKILL from the kernel (Linux)."""
    be_killed_with_parent()
    parent = str(os.getppid())
    if sys.platform == "linux" and os.environ.get("TORCHRUN_PID", parent) != parent:
        sys.exit(1)  # it was killed already, and this one adopted


def be_killed_with_parent() -> None:
    """Asks the kernel to kill this process when its parent dies (Linux only)."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _keep_log(folder: Path, rank: int) -> TextIO:
    """Everything that is printed goes to logs/rank-N.log; the first rank's to the screen as well.

    The worker's process id stands beside it, so that the launcher can ask it to stop.
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


if __name__ == "__main__":
    sys.exit(main())
