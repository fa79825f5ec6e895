"""Progress of a run: a bar on a terminal, a plain line now and then in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import TextIO

from rich import progress as bars
from rich.console import Console, RenderableType
from rich.text import Text

from engine.formats import format_duration
from tasks.bars import BarOrLines


class Progress(BarOrLines):
    """Shows where a run is, what it last reported, and how long it will still take.

    `unit` is what the throughput counts ("image"). A value that an update does not give keeps
    showing its last one; a note is shown with its own update only. In a log there is one line for
    the first update, one for the last step, and at most one every `interval` seconds between.
    """

    def __init__(
        self,
        total_steps: int,
        start_step: int = 0,
        unit: str = "step",
        description: str = "",
        stream: TextIO | None = None,
        interval: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(stream, lambda terminal: _make_bar(terminal, clock))
        self._total = total_steps
        self._units = unit if unit.endswith("s") else f"{unit}s"
        self._interval = interval
        self._clock = clock
        self._shown: dict[str, str] = {}
        self._first: tuple[float, int] | None = None  # time and step of the first update
        self._printed: tuple[float, int] | None = None  # of the last line in a log
        if self._bar is not None:
            self._task = self._bar.add_task(
                description, total=total_steps, completed=start_step, values="", left="-:--"
            )

    def update(
        self,
        step: int,
        *,
        loss: float | None = None,
        lr: float | None = None,
        units_per_s: float | None = None,
        note: str | None = None,
    ) -> None:
        if loss is not None:
            self._shown["loss"] = f"loss {_short(loss)}"
        if lr is not None:
            self._shown["lr"] = f"lr {lr:#.3g}"
        if units_per_s is not None:
            digits = 0 if units_per_s >= 10 else 1
            self._shown["rate"] = f"{units_per_s:,.{digits}f} {self._units}/s"
        left = self._left(step)
        shown = [self._shown[key] for key in ("loss", "lr", "rate") if key in self._shown]
        if self._bar is not None:
            values = "  ".join([*shown, note] if note else shown)
            self._bar.update(self._task, completed=step, values=values, left=left or "-:--")
        elif self._is_due(step):
            where = f"step {step}/{self._total} ({100 * step // max(self._total, 1)} %)"
            line = [where, *shown, *([f"{left} left"] if left else []), note or ""]
            self.write_line("  ".join(line).rstrip())

    def _is_due(self, step: int) -> bool:
        now = self._clock()
        if self._printed is not None:
            then, last_step = self._printed
            is_last = step >= self._total and step != last_step
            if not is_last and now - then < self._interval:
                return False
        self._printed = now, step
        return True

    def _left(self, step: int) -> str | None:
        """From the mean pace since the first update, as the first step also warms up."""
        now = self._clock()
        if self._first is None:
            self._first = now, step
        since, first_step = self._first
        if step >= self._total:
            return "0:00"
        if step == first_step:
            return None
        return format_duration((now - since) / (step - first_step) * (self._total - step))


class _Bar(bars.Progress):
    """The values stand below the bar, so that both fit 80 columns."""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        yield from (Text(task.fields["values"], overflow="ellipsis") for task in self.tasks)


def _make_bar(stream: TextIO, clock: Callable[[], float]) -> bars.Progress:
    return _Bar(
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(bar_width=None),
        bars.TaskProgressColumn(),
        bars.MofNCompleteColumn(),
        bars.TimeElapsedColumn(),
        bars.TextColumn("{task.fields[left]} left", markup=False),
        console=Console(file=stream),
        refresh_per_second=4,
        get_time=clock,
        expand=True,
        redirect_stdout=sys.stdout.isatty(),  # not when it goes to a file
    )


def _short(value: float) -> str:
    return f"{value:.2e}" if value and not 0.01 <= abs(value) < 1e5 else f"{value:.3f}"
