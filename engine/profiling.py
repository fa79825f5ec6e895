"""`hardware.profile=START:STOP`: a trace of some steps of the first process.

From step START on, up to and without STOP: torch's profiler on the CPU and on the GPU, written to
`profile/` in the run's folder for chrome://tracing or Perfetto, and NVTX ranges by step for Nsight.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile


def parse_range(text: str) -> tuple[int, int]:
    """`10:15` to (10, 15), as engine.config has checked it."""
    start, _, stop = text.partition(":")
    return int(start), int(stop)


class StepProfile:
    """Watches the steps of a range; costs nothing outside of it."""

    def __init__(self, steps: str | None, folder: Path, device: torch.device) -> None:
        self._start, self._stop = parse_range(steps) if steps else (-1, -1)
        self._folder, self._on_gpu = folder, device.type == "cuda"
        self._profile: profile | None = None

    @contextmanager
    def watch(self, step: int) -> Iterator[None]:
        """Around one step."""
        if not self._start <= step < self._stop:
            yield
            return
        if self._profile is None:
            activities = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * self._on_gpu]
            if not self._on_gpu:  # kineto reports that it finds no GPU as an error
                os.environ.setdefault("KINETO_LOG_LEVEL", "99")
            # acc_events: torch warns about events of earlier cycles, of which there are none here.
            self._profile = profile(activities=activities, acc_events=True)
            self._profile.start()
        if self._on_gpu:
            torch.cuda.nvtx.range_push(f"step {step}")  # type: ignore[no-untyped-call]
        try:
            with torch.profiler.record_function(f"step {step}"):
                yield
        finally:
            if self._on_gpu:
                torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]
        if step + 1 == self._stop:
            self.close()

    def close(self) -> None:
        """Writes what there is; also called at the end of a run that stops inside the range."""
        if self._profile is None:
            return
        if self._on_gpu:
            torch.cuda.synchronize()
        self._profile.stop()
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"steps-{self._start}-{self._stop}.json.gz"
        self._profile.export_chrome_trace(str(self._folder / name))
        self._profile, self._start = None, self._stop
