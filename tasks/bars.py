"""A bar on a terminal, plain lines in a log: what all displays of progress begin and end with."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self, TextIO

from rich import progress as bars


class BarOrLines:
    """Has a bar if the stream is a terminal that can show one; shown inside a `with` block."""

    def __init__(self, stream: TextIO | None, make_bar: Callable[[TextIO], bars.Progress]) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._bar: bars.Progress | None = None
        if self._stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown"):
            self._bar = make_bar(self._stream)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def write_line(self, line: str, stream: TextIO | None = None) -> None:
        """Above the bar if there is one, otherwise to the stream of this display or to another."""
        if self._bar is not None:
            self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
            return
        with suppress(OSError):  # a reader that has gone away must not end the work
            print(line, file=self._stream if stream is None else stream, flush=True)
