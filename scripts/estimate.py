"""How long runs will take: from records of runs like them, otherwise from counted operations."""

from __future__ import annotations

import heapq
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from scripts.fleet import Job
from scripts.plan import count_cost
from scripts.supervise import Prepared


class Estimator:
    """Hours of runs; a model's operations are counted once."""

    def __init__(self, records: Iterable[dict[str, Any]]) -> None:
        self._speeds: dict[str, list[float]] = {}  # seconds per unit of the data
        for record in records:
            plan = record["plan"]
            units = plan["steps"] * plan["global_batch"]
            self._speeds.setdefault(_kind(record["config"]), []).append(record["wall_s"] / units)
        self._counted: dict[str, float] = {}
        self.measured = self.estimated = 0  # runs of either kind

    def hours(self, prepared: Prepared) -> float:
        """Of one run, evaluations included where runs like it were measured."""
        kind, plan = _kind(asdict(prepared.config)), prepared.plan
        if kind in self._speeds:
            self.measured += 1
            return median(self._speeds[kind]) * plan.units / 3600
        self.estimated += 1
        if kind not in self._counted:
            per_unit = count_cost(prepared).flops_per_step / plan.global_batch
            self._counted[kind] = per_unit / (prepared.config.hardware.tflops * 1e12)
        return self._counted[kind] * plan.units / plan.processes / 3600

    @property
    def source(self) -> str:
        """What the hours rest on."""
        if not self.estimated:
            return "from the speed of finished runs like these"
        if not self.measured:
            return "if hardware.tflops are sustained"
        return "from the speed of finished runs, or from hardware.tflops"


def _kind(config: dict[str, Any]) -> str:
    """What runs of the same speed have in common."""
    hardware = {key: config["hardware"][key] for key in ("device", "processes", "precision")}
    same = [config["scale"], config["model"], config["data"], config["batch"]["micro"], hardware]
    return json.dumps(same, sort_keys=True)


def makespan(hours: Sequence[float], slots: int) -> float:
    """Hours until all are done, each taken by the first slot that is free."""
    busy = [0.0] * slots
    for one in hours:
        heapq.heapreplace(busy, busy[0] + one)
    return max(busy)


class Progress:
    """How long is left: by what was expected, and how far off that was for the runs that ended."""

    def __init__(
        self, to_do: Iterable[Prepared], at_once: int, records: Iterable[dict[str, Any]]
    ) -> None:
        estimator = Estimator(records)
        self.hours = {one.run_id: estimator.hours(one) for one in to_do}
        self._source, self._at_once = estimator.source, at_once
        self._took, self._expected, self._ended = 0.0, 0.0, 0

    def beforehand(self) -> str:
        """All of it, before the first run is started."""
        whole = makespan(sorted(self.hours.values(), reverse=True), self._at_once)
        return f"about {_time(3600 * whole)}, {self._source}"

    def expected(self, prepared: Prepared) -> float:
        """Hours of a run; of one that was not foreseen, as many as of the others."""
        return self.hours.get(prepared.run_id, sum(self.hours.values()) / len(self.hours))

    def say(self, job: Job) -> None:
        """A line after each run."""
        self._ended += 1
        self._took += time.monotonic() - job.started
        self._expected += self.expected(job.prepared)
        if self._ended < len(self.hours):
            left = (sum(self.hours.values()) - self._expected) * self._took / self._expected
            when = _time(left / self._at_once)
            print(f"{self._ended} of {len(self.hours)} runs, about {when} left", flush=True)


def _time(seconds: float) -> str:
    if seconds >= 5400:
        return f"{seconds / 3600:.1f} hours"
    return f"{seconds / 60:.0f} minutes" if seconds >= 90 else "a minute"
