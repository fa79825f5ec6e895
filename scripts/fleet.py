"""Several runs, one after another or side by side, each a launcher of its own in its own slot."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from rich import progress as bars

from engine.record import from_json
from scripts.supervise import BUSY, EXIT, ROOT, Prepared
from scripts.train import be_killed_with_parent

LAUNCHER = (sys.executable, "-m", "scripts.launch")
SECONDS_BETWEEN_POLLS = 0.1
SECONDS_BETWEEN_LOOKS = 0.5
SECONDS_BETWEEN_LINES = 30.0  # of a young run; an old one has less news
PREEMPTED = EXIT["preempted"]
DIVERGED = EXIT["diverged"]
_ENDINGS = {number: name for name, number in EXIT.items()} | {
    2: "bad configuration or data",
    BUSY: "in use by another process",
}


@dataclass(frozen=True)
class Slot:
    """A part of the machine that one run at a time has for itself."""

    name: str = ""
    environment: dict[str, str] = field(default_factory=dict)


class Tail:
    """The last values of a growing metrics.jsonl; each look reads what is new."""

    AT_FIRST = 1 << 16  # bytes from the end

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file, self._offset = 0, 0  # the inode, which changes where a resumed run cuts back
        self._merged: dict[str, Any] = {}

    def read(self) -> dict[str, Any]:
        """The newest value of every key, as far as seen."""
        with suppress(OSError), self._path.open("rb") as file:
            found = os.fstat(file.fileno())
            if found.st_ino != self._file or found.st_size < self._offset:
                self._file, self._merged = found.st_ino, {}
                self._offset = max(0, found.st_size - self.AT_FIRST)
            file.seek(self._offset)
            *whole, torn = file.read().split(b"\n")
            for line in whole:
                with suppress(ValueError):  # the first may begin in the middle
                    row = from_json(json.loads(line))
                    self._merged |= row if isinstance(row, dict) else {}
            self._offset = file.tell() - len(torn)
        return self._merged


@dataclass
class Job:
    """A run to be made: the words that its launcher is called with, and how it ended."""

    prepared: Prepared
    arguments: list[str]
    log: Path
    label: str = ""
    exit_status: int | None = None  # None until it has ended
    started: float = 0.0
    slot: Slot = field(default_factory=Slot)
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    told: int = 0  # requests to stop that were passed on
    tail: Tail | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        seed = self.prepared.config.seed
        return self.label or self.prepared.config.experiment + (f" seed {seed}" if seed else "")

    @property
    def ending(self) -> str:
        """How it ended, in a word or some."""
        status = self.exit_status
        if status is None:
            return "not ended"
        return f"killed by signal {-status}" if status < 0 else _ENDINGS.get(status, "failed")

    def last_row(self) -> dict[str, Any]:
        """What the run last wrote down, or {}."""
        if self.tail is None:
            self.tail = Tail(self.prepared.folder / "metrics.jsonl")
        return self.tail.read()


def run_jobs(
    jobs: Iterable[Job | None],
    slots: int | Sequence[Slot],
    *,
    ended: Callable[[Job], None] | None = None,
    to_logs: bool | None = None,
) -> bool:
    """Runs all, one in each slot at a time; goes on past failures. False if asked to stop.

    A job is taken from `jobs` when a slot is free for it, and `ended` is called at its end: what
    comes next may depend on what came before. None says that it does: ask again later. A single
    run at a time writes to the screen itself unless `to_logs`. Of several there is a line each in a
    live table on a terminal, or a line now and then; their own words go to their logs.
    """
    free = [Slot()] * slots if isinstance(slots, int) else list(slots)
    to_logs = len(free) > 1 if to_logs is None else to_logs
    waiting: Iterator[Job | None] | None = iter(jobs)
    running: list[Job] = []
    with _stop_requests() as requests, _Display(enabled=to_logs) as display:
        try:
            while running or (waiting is not None and not requests()):
                while free and waiting is not None and not requests():
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
                display.asked_to_stop(requests())
                for job in list(running):
                    _pass_on(job, requests())
                    assert job.process is not None
                    job.exit_status = job.process.poll()
                    display.look_at(job)
                    if job.exit_status is not None:
                        running.remove(job)
                        free.append(job.slot)
                        if ended is not None:
                            ended(job)
        finally:  # empty but after an error of ours: then the runs save, too
            for job in running:
                _pass_on(job, 1)
            for job in running:
                if job.process is not None:
                    job.process.wait()
        return not requests()


def _start(job: Job, *, to_log: bool) -> None:
    job.started = time.monotonic()
    output = None
    if to_log:
        job.log.parent.mkdir(parents=True, exist_ok=True)
        output = job.log.open("wb")
    job.process = subprocess.Popen(
        [*LAUNCHER, *job.arguments],
        cwd=ROOT,
        env=os.environ | job.slot.environment,
        stdout=output,
        stderr=subprocess.STDOUT if to_log else None,
        start_new_session=True,  # Ctrl-C reaches this process alone, which passes it on in order
        preexec_fn=be_killed_with_parent,
    )
    if output is not None:
        output.close()


def _pass_on(job: Job, requests: int) -> None:
    """To a launcher, which saves and stops at the first and stops at once at the second."""
    while job.told < requests and job.process is not None and job.process.poll() is None:
        job.told += 1
        os.kill(job.process.pid, signal.SIGTERM)


@contextmanager
def _stop_requests() -> Iterator[Callable[[], int]]:
    """How often SIGTERM, SIGINT or SIGUSR1 has come."""
    requests = 0

    def receive(number: int, _: FrameType | None) -> None:
        nonlocal requests
        requests += 1

    watched = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    before = {number: signal.signal(number, receive) for number in watched}
    try:
        yield lambda: requests
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Display:
    """What a reader sees of runs that are made side by side."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._requests = 0
        self._told: dict[int, float] = {}  # by the job's identity: when it was last told of
        self._bars: bars.Progress | None = None
        self._tasks: dict[int, bars.TaskID] = {}
        if enabled and sys.stdout.isatty():
            self._bars = bars.Progress(
                bars.TextColumn("{task.description}", markup=False),
                bars.TextColumn("{task.fields[slot]}", markup=False),
                bars.BarColumn(),
                bars.TaskProgressColumn(),
                bars.TimeElapsedColumn(),
                bars.TextColumn("{task.fields[values]}", markup=False),
            )

    def __enter__(self) -> _Display:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def asked_to_stop(self, requests: int) -> None:
        """Says so once; also where runs write to the screen themselves."""
        if requests and not self._requests:
            print("stopping all runs after their step; once more to stop at once", flush=True)
        self._requests = requests

    def started(self, job: Job) -> None:
        if not self._enabled:
            return
        steps, where = job.prepared.plan.steps, job.slot.name
        self._told[id(job)] = time.monotonic()
        if self._bars is not None:
            task = self._bars.add_task(job.name, total=steps, slot=where, values="")
            self._tasks[id(job)] = task
        else:
            print(f"{job.name}: started{where and f' on {where}'}, {steps:,} steps", flush=True)

    def look_at(self, job: Job) -> None:
        """In a live table twice a second; in a log now and then; at its end in both."""
        if not self._enabled:
            return
        now = time.monotonic()
        since = now - self._told[id(job)]
        if job.exit_status is not None:
            took = now - job.started
            line = f"{job.name}: {job.ending} after {took:.0f} s  {describe_row(job)}".rstrip()
            if self._bars is not None:
                self._bars.remove_task(self._tasks[id(job)])
                self._bars.console.print(line, markup=False, highlight=False)
            else:
                print(line, flush=True)
        elif self._bars is not None and since > SECONDS_BETWEEN_LOOKS:
            self._told[id(job)] = now
            done, values = job.last_row().get("step", 0), describe_row(job)
            self._bars.update(self._tasks[id(job)], completed=done, values=values)
        elif self._bars is None and since > max(SECONDS_BETWEEN_LINES, (now - job.started) / 20):
            self._told[id(job)] = now
            share = 100 * job.last_row().get("step", 0) // job.prepared.plan.steps
            print(f"{job.name}: {share} %  {describe_row(job)}".rstrip(), flush=True)


def describe_row(job: Job) -> str:
    """The last loss, and the headline where it was evaluated."""
    row, headline = job.last_row(), job.prepared.task.headline.name
    words = []
    if "train/loss" in row:
        words.append(f"loss {row['train/loss']:.3f}")
    if headline in row:
        words.append(f"{headline} {row[headline]:.2f}")
    return "  ".join(words)
