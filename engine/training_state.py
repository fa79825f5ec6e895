"""How far a run is, and how it ended."""

from __future__ import annotations

import math
from dataclasses import dataclass

from engine.plan import Plan


@dataclass
class FitResult:
    """How a run ended: "finished", "preempted" or "diverged"."""

    status: str
    step: int
    message: str
    final: dict[str, float]
    best: dict[str, float]
    last: dict[str, float]  # of the last weights, where the final splits had the best ones
    wall_s: float
    skipped: int
    meters: dict[str, float]  # medians over the logged rows of this start


@dataclass
class TrainingState:
    """All that changes in a run besides weights, optimizer and scaler; saved with these."""

    step: int = 0
    position: int = 0  # of the data: steps, and fp16's skipped ones
    skipped: int = 0
    wall_s: float = 0.0
    window_total: float = 0.0  # of the loss since the last logged row, as of the checkpoint
    window_weight: float = 0.0
    evaluated: int = -1  # the last step whose evaluation is done
    best_step: int = -1
    best_value: float = math.nan

    def epoch(self, plan: Plan) -> float:
        return self.step / plan.steps_per_epoch
