"""Wall time over all starts of a run, and how fast it trains."""

from __future__ import annotations

import time
from collections import defaultdict
from statistics import median

from engine.gpu_meters import GpuMeters
from tasks.base import Task


class Clock:
    """Evaluations and checkpoints take wall time, and count for no speed."""

    def __init__(
        self, already: float, task: Task, processes: int, gpu: GpuMeters | None = None
    ) -> None:
        self._already, self._start = already, time.perf_counter()
        self._task, self._processes = task, processes
        self._since, self.units = self._start, 0
        self.data_wait_s = 0.0  # spent waiting for batches
        self._gpu = gpu
        self._seen: defaultdict[str, list[float]] = defaultdict(list)

    def wall_s(self) -> float:
        return self._already + time.perf_counter() - self._start

    def meters(self) -> dict[str, float]:
        """Since the last call or pause: units a second, the share of waiting for data, and more."""
        now = time.perf_counter()
        seconds = max(now - self._since, 1e-9)
        speed = self.units / seconds
        found = {"speed/units_per_s": speed, "speed/data_wait": self.data_wait_s / seconds}
        if self._gpu is not None:
            found |= self._gpu.read(speed)
        found |= self._task.meters(seconds, self._processes)
        self._since, self.units, self.data_wait_s = now, 0, 0.0
        for name, value in found.items():
            self._seen[name].append(value)
        return {name: round(value, 4) for name, value in found.items()}

    def pause(self) -> None:
        """What went before does not count for a speed."""
        self._since, self.units, self.data_wait_s = time.perf_counter(), 0, 0.0
        self._task.meters(1.0, self._processes)

    def medians(self) -> dict[str, float]:
        """Of all meters since this start."""
        return {name: round(median(values), 4) for name, values in self._seen.items()}
