"""Seconds spent in one part of the work, on a device that works beside the host too."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class Stopwatch:
    """Adds up what runs inside `running`; nothing waits for a device until it is read."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._open: list[tuple[Any, Any]] = []  # events of a GPU: begin and end

    @contextmanager
    def running(self, device: torch.device) -> Iterator[None]:
        if device.type != "cuda":
            before = time.perf_counter()
            yield
            self._seconds += time.perf_counter() - before
            return
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        yield
        end.record()
        self._open.append((begin, end))

    def read(self) -> float:
        """The seconds since the last reading."""
        for begin, end in self._open:
            end.synchronize()
            self._seconds += begin.elapsed_time(end) / 1000
        seconds, self._seconds, self._open = self._seconds, 0.0, []
        return seconds
