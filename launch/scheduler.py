"""Several runs, one after another or in parallel, each with a launcher and a slot of its own.

A slot is a share of the machine. Eight GPUs are eight slots of one, four of two, two of four or one
of eight, and a run sees the GPUs of its slot only. On a CPU a slot is one core per process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import FrameType

from engine.config import ConfigProblem, HardwareConfig
from engine.records import run_file_text
from engine.rows import ROWS_FILE, Row, RowTail
from launch import hardware as machine
from launch.config_files import ROOT
from launch.display import Display
from launch.entry import receive_stop_signals
from launch.exit_status import describe_exit
from launch.run_spec import RunSpec, describe
from launch.worker import be_killed_with_parent

GIGABYTES_PER_PROCESS = 1.5  # on a CPU, at a small scale
LAUNCHER = (sys.executable, "-m", "scripts.launch", "--frozen")
SECONDS_BETWEEN_POLLS = 0.1
THREADS = "hardware.threads="


@dataclass(frozen=True)
class Slot:
    """A share of the machine for one run at a time; `threads` of each process, None for its own."""

    name: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    threads: int | None = None


def find_slots(
    hardware: HardwareConfig,
    runs: int,
    at_most: int | None = None,
    *,
    overrides: Sequence[str] = (),
    must_exist: bool = True,
) -> list[Slot]:
    """The slots of this machine for runs of `hardware.processes` processes each.

    No more than there are runs, and `at_most` where that is given. All slots together have as many
    threads as there are cores, unless `overrides` set `hardware.threads`. A plan for GPUs may be
    made without them: then for a node of eight.
    """
    processes, cores = int(hardware.processes), machine.cores()
    threads = _threads_in(overrides)
    if hardware.device == "cuda":
        gpus = machine.visible_gpus()
        if not gpus and not must_exist:
            gpus = [str(number) for number in range(max(8, processes))]
        slots = gpu_slots(gpus, processes)
    else:
        fitting = cores // (processes * (threads or 1))
        if threads is None and fitting < runs < 2 * fitting:
            fitting = runs  # shares the cores evenly; one run left for the end would use one core
        memory = machine.available_memory() / 1e9
        fitting = min(fitting, int(memory / GIGABYTES_PER_PROCESS / processes))
        slots = [Slot(f"CPU slot {n}") for n in range(max(1, at_most or fitting))]
    slots = slots[: max(1, min(runs, at_most or len(slots)))]
    each = threads or max(1, cores // (len(slots) * processes))
    return [Slot(slot.name, slot.environment, each) for slot in slots]


def _threads_in(overrides: Sequence[str]) -> int | None:
    given = [text.removeprefix(THREADS) for text in overrides if text.startswith(THREADS)]
    return int(given[-1]) if given and given[-1].isdecimal() else None


def gpu_slots(gpus: Sequence[str], per_run: int) -> list[Slot]:
    """Neighbours together, which usually have the fastest links."""
    if per_run > len(gpus):
        raise ConfigProblem([f"gpus_per_run={per_run}, but {len(gpus)} GPUs are visible"])
    slots = []
    for first in range(0, len(gpus) - per_run + 1, per_run):
        own = ",".join(gpus[first : first + per_run])
        slots.append(Slot(f"GPU {own}", {machine.VISIBLE_GPUS: own}))
    return slots


@dataclass
class Job:
    """A run to be made, and how it ended."""

    spec: RunSpec
    log: Path
    label: str = ""
    exit_status: int | None = None  # None until it has ended
    started: float = 0.0
    slot: Slot = field(default_factory=Slot)
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    stop_signals: int = 0  # sent to it

    @property
    def name(self) -> str:
        seed = self.spec.config.seed
        return self.label or self.spec.config.experiment + (f" seed {seed}" if seed else "")

    @property
    def ending(self) -> str:
        return describe_exit(self.exit_status)

    @cached_property
    def _tail(self) -> RowTail:
        return RowTail(self.spec.folder / ROWS_FILE)

    def last_row(self) -> Row:
        """The newest values that the run has logged, or {}."""
        return self._tail.read()


def run_jobs(
    jobs: Iterable[Job | None],
    slots: Sequence[Slot],
    *,
    ended: Callable[[Job], None] | None = None,
    to_logs: bool | None = None,
) -> bool:
    """Runs all jobs, one in each slot at a time, also after failures. False after a stop signal.

    A job is taken from `jobs` when a slot is free for it, and `ended` is called at its end, so the
    next one may depend on it; None means that it does, and to ask again later. A single run at a
    time writes to the screen itself unless `to_logs`. Several write to their logs, and the screen
    shows a live table, or in a log a line now and then.
    """
    free = list(slots)
    to_logs = len(free) > 1 if to_logs is None else to_logs
    waiting: Iterator[Job | None] | None = iter(jobs)
    running: list[Job] = []
    with _count_stop_signals() as stop_signals, Display(enabled=to_logs) as display:
        try:
            while running or (waiting is not None and not stop_signals()):
                while free and waiting is not None and not stop_signals():
                    try:
                        job = next(waiting)
                    except StopIteration:
                        waiting = None
                        break
                    if job is None:
                        break
                    job.slot = free.pop(0)
                    _start(job, to_log=to_logs)
                    running.append(job)
                    display.started(job)
                time.sleep(SECONDS_BETWEEN_POLLS if running else 0)
                display.stopping(stop_signals())
                for job in list(running):
                    _stop(job, stop_signals())
                    assert job.process is not None
                    job.exit_status = job.process.poll()
                    display.update(job)
                    if job.exit_status is not None:
                        running.remove(job)
                        free.append(job.slot)
                        if ended is not None:
                            ended(job)
        finally:  # after an exception here, the runs save as well
            for job in running:
                _stop(job, 1)
            for job in running:
                if job.process is not None:
                    job.process.wait()
        return not stop_signals()


def _start(job: Job, *, to_log: bool) -> None:
    """Starts a launcher and gives it the frozen run: it need not compose and validate it again."""
    job.started = time.monotonic()
    spec = job.spec
    if job.slot.threads is not None:
        hardware = replace(spec.config.hardware, threads=job.slot.threads)
        spec = replace(spec, config=replace(spec.config, hardware=hardware))
    about = describe(spec, share=bool(job.slot.environment))
    if to_log:
        job.log.parent.mkdir(parents=True, exist_ok=True)
        job.log.write_text(f"{about}\n", encoding="utf-8")
    else:
        print(about, flush=True)
    with job.log.open("ab") if to_log else nullcontext() as output:
        job.process = subprocess.Popen(
            LAUNCHER,
            cwd=ROOT,
            env=os.environ | job.slot.environment,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT if to_log else None,
            start_new_session=True,  # Ctrl-C reaches this process only, which sends it on in order
            preexec_fn=be_killed_with_parent,
        )
    assert job.process.stdin is not None
    with suppress(OSError), job.process.stdin:  # a launcher that was killed at once
        job.process.stdin.write(run_file_text(spec.freeze()).encode())


def _stop(job: Job, stop_signals: int) -> None:
    """A launcher saves and stops at the first signal and stops at once at the second."""
    while job.stop_signals < stop_signals and job.process and job.process.poll() is None:
        job.stop_signals += 1
        os.kill(job.process.pid, signal.SIGTERM)


@contextmanager
def _count_stop_signals() -> Iterator[Callable[[], int]]:
    """The number of stop signals received; of SIGHUP the first, as a terminal may send two."""
    count = 0

    def receive(number: int, _: FrameType | None) -> None:
        nonlocal count
        count += number != signal.SIGHUP or not count

    before = receive_stop_signals(receive)
    try:
        yield lambda: count
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
