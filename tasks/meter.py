"""How far the making of data has come: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TextIO

from rich import progress as bars
from rich.console import Console
from rich.filesize import decimal

from tasks.bars import BarOrLines

INTERVAL = 10.0  # seconds between two lines of a log
REDRAW = 0.1  # seconds between two changes of the bar


class Meter(BarOrLines):
    """A report(what, done, total) in bytes: a bar on a terminal, a line now and then in a log.

    In a log each thing that is done has a first line, a last one, and one every ten seconds.
    """

    def __init__(
        self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(stream, _make_bar)
        self._clock = clock
        self._what = ""
        self._began = (0.0, 0)  # time and bytes at the first report of what is being done
        self._shown = (0.0, -1)  # of the last one that was shown

    def __call__(self, what: str, done: int, total: int) -> None:
        now = self._clock()
        is_first = what != self._what
        if is_first:
            self._what, self._began = what, (now, done)
            if self._bar is not None:
                self._task = self._bar.add_task(what, total=total, completed=done)
        then, last = self._shown
        is_last = done >= total and done != last
        interval = REDRAW if self._bar is not None else INTERVAL
        if not is_first and not is_last and now - then < interval:
            return
        self._shown = now, done
        if self._bar is not None:
            self._bar.update(self._task, completed=done)
        else:
            self.write_line(f"{what}: {self._line(now, done, total)}")

    def say(self, line: str) -> None:
        """A line on standard output, above the bar if there is one."""
        self.write_line(line, sys.stdout)

    def _line(self, now: float, done: int, total: int) -> str:
        began, first = self._began
        line = f"{decimal(done)} of {decimal(total)} ({100 * done // max(total, 1)} %)"
        if not first < done < total:
            return line
        seconds = (now - began) / (done - first) * (total - done)
        return f"{line}, {timedelta(seconds=round(seconds))} left"


def _make_bar(stream: TextIO) -> bars.Progress:
    return bars.Progress(
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(),
        bars.TaskProgressColumn(),
        bars.DownloadColumn(),
        bars.TransferSpeedColumn(),
        bars.TimeRemainingColumn(),
        console=Console(file=stream),
        speed_estimate_period=120,
    )
