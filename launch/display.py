"""What a reader sees of several runs: a live table on a terminal, otherwise a line now and then."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Self

from rich import progress as bars

from engine.formats import format_time

if TYPE_CHECKING:
    from launch.scheduler import Job

SECONDS_BETWEEN_UPDATES = 0.5  # of the table
SECONDS_BETWEEN_LINES = 30.0  # about a run that has just started; longer runs have fewer


class Display:
    """Shows runs as they start, proceed and end; shows nothing if not enabled."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._is_live = enabled and sys.stdout.isatty()
        self._stop_signals = 0
        self._shown: dict[int, float] = {}  # when each job, by its identity, was last shown
        self._tasks: dict[int, bars.TaskID] = {}
        self._bars = bars.Progress(
            bars.TextColumn("{task.description}", markup=False),
            bars.TextColumn("{task.fields[slot]}", markup=False),
            bars.BarColumn(),
            bars.TaskProgressColumn(),
            bars.TimeElapsedColumn(),
            bars.TextColumn("{task.fields[values]}", markup=False),
            disable=not self._is_live,
        )

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def stopping(self, stop_signals: int) -> None:
        """A message at the first stop signal, also where runs write to the screen themselves."""
        if stop_signals and not self._stop_signals:
            print("stopping all runs after their step; signal again to stop at once", flush=True)
        self._stop_signals = stop_signals

    def started(self, job: Job) -> None:
        if not self._enabled:
            return
        steps, where = job.spec.plan.steps, job.slot.name
        self._shown[id(job)] = time.monotonic()
        self._tasks[id(job)] = self._bars.add_task(job.name, total=steps, slot=where, values="")
        if not self._is_live:
            print(f"{job.name}: started{where and f' on {where}'}, {steps:,} steps", flush=True)

    def update(self, job: Job) -> None:
        """Twice a second in a live table, now and then in a log, and at the run's end."""
        if not self._enabled:
            return
        now = time.monotonic()
        between = max(SECONDS_BETWEEN_LINES, (now - job.started) / 20)
        if job.exit_status is not None:
            self._bars.remove_task(self._tasks[id(job)])
            took = format_time(now - job.started)
            print(
                f"{job.name}: {job.ending} after {took}  {describe_row(job)}".rstrip(), flush=True
            )
        elif now - self._shown[id(job)] > (SECONDS_BETWEEN_UPDATES if self._is_live else between):
            self._shown[id(job)] = now
            done, values = job.last_row().get("step", 0), describe_row(job)
            self._bars.update(self._tasks[id(job)], completed=done, values=values)
            if not self._is_live:
                share = 100 * done // job.spec.plan.steps
                print(f"{job.name}: {share:.0f} %  {values}".rstrip(), flush=True)


def describe_row(job: Job) -> str:
    """The last loss, and the headline metric once it was evaluated."""
    row, headline = job.last_row(), job.spec.task.headline.name
    parts = []
    if "train/loss" in row:
        parts.append(f"loss {row['train/loss']:.3f}")
    if headline in row:
        parts.append(f"{headline} {row[headline]:.2f}")
    return "  ".join(parts)
