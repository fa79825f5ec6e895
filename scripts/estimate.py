"""How long runs will take: from records of runs like them, otherwise from counted operations."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

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
