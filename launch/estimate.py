"""How long runs will take: from records of runs like them, otherwise from counted operations."""

from __future__ import annotations

import heapq
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from engine.formats import format_time
from engine.records import FINISHED, RunRecord
from engine.rows import ROWS_FILE, RowTail
from launch.cost import NotCountable, count_cost, hours
from launch.run_spec import RunSpec
from launch.scheduler import Job

PARTS = ("train_every", "train_first")  # how much of the data: does not change the speed


class Estimator:
    """Hours of runs; the operations of a model are counted once."""

    def __init__(self, records: Iterable[RunRecord]) -> None:
        speeds: dict[str, list[float]] = {}  # hours per unit of the data
        for record in (record for record in records if record.status == FINISHED):
            speeds.setdefault(_kind(record.config), []).append(record.wall_s / record.units / 3600)
        self._speeds = {kind: median(found) for kind, found in speeds.items()}
        self._counted: dict[str, float] = {}
        self.measured = self.estimated = 0  # runs of either kind
        self.not_counted = 0  # models whose operations can't be counted: 0 hours

    def hours(self, spec: RunSpec) -> float:
        """Of one run, evaluations included where runs like it were measured; 0 if not countable."""
        kind, plan = _kind(asdict(spec.config)), spec.plan
        if kind in self._speeds:
            self.measured += 1
            return self._speeds[kind] * plan.units
        self.estimated += 1
        if kind not in self._counted:
            try:
                self._counted[kind] = hours(spec, count_cost(spec)) / plan.units
            except NotCountable:
                self._counted[kind] = 0.0
                self.not_counted += 1
        return self._counted[kind] * plan.units

    @property
    def source(self) -> str:
        """What the hours are estimated from."""
        missing = f", {self.not_counted} models not counted" if self.not_counted else ""
        if not self.estimated:
            return "from the speed of finished runs like these"
        if not self.measured:
            return f"if hardware.tflops are sustained{missing}"
        return f"from the speed of finished runs, or from hardware.tflops{missing}"


def _kind(config: dict[str, Any]) -> str:
    """What runs of the same speed have in common."""
    hardware = {key: config["hardware"][key] for key in ("device", "processes", "precision")}
    data = {key: value for key, value in config["data"].items() if key not in PARTS}
    same = [config["scale"], config["model"], data, config["batch"]["micro"], hardware]
    return json.dumps(same, sort_keys=True)


def makespan(hours: Sequence[float], slots: int) -> float:
    """Hours until all are done, each in the first slot that becomes free."""
    busy = [0.0] * slots
    for one in hours:
        heapq.heapreplace(busy, busy[0] + one)
    return max(busy)


class RemainingTime:
    """How long several runs still take: the work left, at the pace of the runs that have ended.

    Work is counted in expected hours, and of a run that was interrupted only what it has left.
    """

    def __init__(self, to_do: Iterable[RunSpec], slots: int, records: Iterable[RunRecord]) -> None:
        estimator = Estimator(records)
        specs = {spec.run_id: spec for spec in to_do}
        self.hours = {run_id: estimator.hours(spec) for run_id, spec in specs.items()}
        self._source, self._slots = estimator.source, slots
        self._steps = {run_id: spec.plan.steps for run_id, spec in specs.items()}
        self._rows = {key: RowTail(spec.folder / ROWS_FILE) for key, spec in specs.items()}
        self._before = {run_id: self._share_done(run_id) for run_id in specs}
        self._ended: set[str] = set()
        self._finished = 0
        self._took = self._did = 0.0  # seconds and expected hours of the runs that have ended

    def _share_done(self, run_id: str) -> float:
        """Of a run's steps, as far as they are logged."""
        return min(1.0, self._rows[run_id].read().get("step", 0) / self._steps[run_id])

    def beforehand(self) -> str:
        """Of all runs, before the first one is started."""
        left = [hours * (1 - self._before[run_id]) for run_id, hours in self.hours.items()]
        whole = makespan(sorted(left, reverse=True), self._slots)
        return f"about {format_time(3600 * whole)}, {self._source}"

    def expected(self, spec: RunSpec) -> float:
        """Hours of a run from its beginning; the mean of the others for one not foreseen."""
        return self.hours.get(spec.run_id, sum(self.hours.values()) / max(1, len(self.hours)))

    def ended(self, job: Job) -> None:
        """Prints a line after each run."""
        run_id = job.spec.run_id
        self._ended.add(run_id)
        self._finished += job.exit_status == 0
        if run_id in self.hours:
            done = 1.0 if job.exit_status == 0 else self._share_done(run_id)
            self._did += self.hours[run_id] * max(0.0, done - self._before[run_id])
            self._took += time.monotonic() - job.started
        counts = f"{self._finished} of {len(self.hours)} runs finished"
        left = self.left()
        print(f"{counts}, about {format_time(left)} left" if left else counts, flush=True)

    def left(self) -> float:
        """Seconds. A tenth of a run at the expected pace is added to the pace that was measured:

        the start of a run that had little left would count for too much otherwise.
        """
        work = [
            hours * (1 - self._share_done(run_id))
            for run_id, hours in self.hours.items()
            if run_id not in self._ended
        ]
        if not work:
            return 0.0
        prior = sum(self.hours.values()) / len(self.hours) / 10
        pace = (self._took + 3600 * prior) / (self._did + prior)  # seconds per expected hour
        return pace * max(sum(work) / self._slots, *work)
