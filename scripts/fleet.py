"""Several runs, one after another or side by side, each a launcher of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from rich import progress as bars

from engine.tracking import read_rows
from scripts.supervise import EXIT, ROOT, Prepared, read_status
from scripts.train import be_killed_with_parent

SECONDS_BETWEEN_LOOKS = 0.5
SECONDS_BETWEEN_LINES = 30.0
PREEMPTED = EXIT["preempted"]


@dataclass
class Job:
    """A run to be made: the words that its launcher is called with, and how it ended."""

    prepared: Prepared
    arguments: list[str]
    log: Path
    exit_status: int | None = None  # None until it has ended
    started: float = 0.0
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        seed = self.prepared.config.seed
        return self.prepared.config.experiment + (f" seed {seed}" if seed else "")

    def last_row(self) -> dict[str, Any]:
        """What the run last wrote down, or {}."""
        try:
            rows = read_rows(self.prepared.folder / "metrics.jsonl")
        except (OSError, ValueError):
            return {}
        merged: dict[str, Any] = {}
        for row in rows:
            merged |= row
        return merged


def run_jobs(jobs: Sequence[Job], at_once: int) -> bool:
    """Runs all, the given number at a time; goes on past failures. False if asked to stop.

    A single run at a time writes to the screen itself. Of several there is a bar each on a
    terminal, or a line now and then; their own words go to their logs.
    """
    waiting = list(jobs)
    running: list[Job] = []
    with _stop_requests(running) as asked, _Display(enabled=at_once > 1) as display:
        while (waiting and not asked()) or running:
            while waiting and len(running) < at_once and not asked():
                job = waiting.pop(0)
                _start(job, to_log=at_once > 1)
                running.append(job)
                display.started(job)
            time.sleep(SECONDS_BETWEEN_LOOKS if at_once > 1 else 0.1)
            for job in list(running):
                assert job.process is not None
                job.exit_status = job.process.poll()
                display.look_at(job)
                if job.exit_status is not None:
                    running.remove(job)
        return not asked()


def _start(job: Job, *, to_log: bool) -> None:
    command = [sys.executable, "-m", "scripts.launch", *job.arguments]
    job.started = time.monotonic()
    output = None
    if to_log:
        job.log.parent.mkdir(parents=True, exist_ok=True)
        output = job.log.open("wb")
    job.process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=output,
        stderr=subprocess.STDOUT if to_log else None,
        start_new_session=True,  # Ctrl-C reaches this process alone, which passes it on in order
        preexec_fn=be_killed_with_parent,
    )
    if output is not None:
        output.close()


@contextmanager
def _stop_requests(running: list[Job]) -> Iterator[Any]:
    """Passes SIGTERM, SIGINT and SIGUSR1 on to the launchers, which save and stop."""
    requests = 0

    def pass_on(number: int, _: FrameType | None) -> None:
        nonlocal requests
        requests += 1
        if requests == 1:
            print("stopping all runs after their step; once more to stop at once", flush=True)
        for job in running:
            if job.process is not None and job.process.poll() is None:
                os.kill(job.process.pid, signal.SIGTERM)

    watched = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    before = {number: signal.signal(number, pass_on) for number in watched}
    try:
        yield lambda: requests > 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Display:
    """What a reader sees of runs that are made side by side."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._told: dict[str, float] = {}
        self._bars: bars.Progress | None = None
        self._tasks: dict[str, bars.TaskID] = {}
        if enabled and sys.stdout.isatty():
            self._bars = bars.Progress(
                bars.TextColumn("{task.description}", markup=False),
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

    def started(self, job: Job) -> None:
        steps = job.prepared.plan.steps
        if self._bars is not None:
            self._tasks[job.name] = self._bars.add_task(job.name, total=steps, values="")
        elif self._enabled:
            self._told[job.name] = time.monotonic()
            print(f"{job.name}: started, {steps:,} steps", flush=True)

    def look_at(self, job: Job) -> None:
        if not self._enabled:
            return
        row = job.last_row()
        if self._bars is not None:
            values = describe_row(job, row)
            self._bars.update(self._tasks[job.name], completed=row.get("step", 0), values=values)
            if job.exit_status is not None:
                self._bars.stop_task(self._tasks[job.name])
        now = time.monotonic()
        if job.exit_status is not None:
            took = now - job.started
            status = read_status(job.prepared.folder).get("status", "failed")
            line = f"{job.name}: {status} after {took:.0f} s  {describe_row(job, row)}"
            (self._bars.console.print if self._bars is not None else print)(line)
        elif self._bars is None and now - self._told[job.name] > SECONDS_BETWEEN_LINES:
            self._told[job.name] = now
            share = 100 * row.get("step", 0) // job.prepared.plan.steps
            print(f"{job.name}: {share} %  {describe_row(job, row)}", flush=True)


def describe_row(job: Job, row: dict[str, Any]) -> str:
    """The last loss, and the headline where it was evaluated."""
    headline = job.prepared.task.headline.name
    words = []
    if "train/loss" in row:
        words.append(f"loss {row['train/loss']:.3f}")
    if headline in row:
        words.append(f"{headline} {row[headline]:.2f}")
    return "  ".join(words)
