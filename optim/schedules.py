"""Learning-rate schedules as pure functions of the step.

t counts updates from 0 to T-1 (T = `total`), of which the first W = `warmup` are warm-up. A
schedule knows no epochs and keeps no state: resuming needs nothing but the step.

    constant     lr
    cosine       floor + (lr - floor) (1 + cos(pi u)) / 2        u = (t - W) / (T - W)
    polynomial   floor + (lr - floor) (1 - u)^power              or max(lr (1 - u)^power, floor)
    staircase    lr factor^k                                     k milestones are at or before t
    warm-up      start + (lr - start) t / W   ("zero"),   or   lr (t + 1) / (W + 1)   ("above_zero")

The two forms of the warm-up and of the floor are those of the codes behind the paper's tables:
OpenSeq2Seq (ImageNet, Table 4) starts at zero and adds the floor; NeMo (Tables 5, 6) starts above
zero; the first Jasper release in PyTorch (Table 5) cuts off at the floor. The staircase, and a
warm-up that starts at a rate of its own, are Goyal et al.'s (Table 2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SHAPES = ("constant", "cosine", "polynomial", "staircase")
WARMUPS = ("zero", "above_zero")
FLOORS = ("add", "cut")


@dataclass(frozen=True)
class Schedule:
    """The learning rate of every step: `schedule(t)`."""

    shape: str
    lr: float
    total: int
    warmup: int = 0
    warmup_from: str = "zero"
    power: float = 2.0
    floor: float = 0.0
    floor_mode: str = "add"
    start: float = 0.0
    milestones: tuple[int, ...] = ()
    factor: float = 0.1

    def __post_init__(self) -> None:
        for name, allowed in (
            ("shape", SHAPES),
            ("warmup_from", WARMUPS),
            ("floor_mode", FLOORS),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"schedule: {name} must be one of {allowed}, not {getattr(self, name)!r}"
                )
        for name in ("lr", "power", "floor", "start", "factor"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(
                    f"schedule: {name} must be finite and not negative, not {getattr(self, name)!r}"
                )
        if self.total < 1:
            raise ValueError(f"schedule: total must be at least 1 step, not {self.total}")
        if not 0 <= self.warmup < self.total:
            raise ValueError(
                f"schedule: warmup must be at least 0 and less than total={self.total}, "
                f"not {self.warmup}"
            )
        for name in ("floor", "start"):
            if getattr(self, name) > self.lr:
                raise ValueError(f"schedule: {name}={getattr(self, name)} is above lr={self.lr}")
        if list(self.milestones) != sorted(set(self.milestones)):
            raise ValueError(f"schedule: milestones must increase, not {self.milestones}")
        if bool(self.milestones) != (self.shape == "staircase"):
            raise ValueError("schedule: milestones belong to the staircase, and it needs some")

    def __call__(self, step: int) -> float:
        if step < 0:
            raise ValueError(f"schedule: step must not be negative, got {step}")
        if step < self.warmup:
            if self.warmup_from == "zero":
                return self.start + (self.lr - self.start) * step / self.warmup
            return self.lr * (step + 1) / (self.warmup + 1)
        if self.shape in ("constant", "staircase"):
            return self.lr * self.factor ** sum(step >= m for m in self.milestones)
        done = min((step - self.warmup) / (self.total - self.warmup), 1.0)
        if self.shape == "cosine":
            decay = 0.5 * (1.0 + math.cos(math.pi * done))
        else:
            decay = (1.0 - done) ** self.power
        if self.floor_mode == "cut":
            return max(self.lr * decay, self.floor)
        return self.floor + (self.lr - self.floor) * decay


def warmup_steps(warmup: int | float, total: int) -> int:
    """Warm-up given in steps (an int) or as a fraction of all steps (a float below 1), in steps."""
    if isinstance(warmup, bool) or not 0 <= warmup < math.inf:
        raise ValueError(f"warm-up must be a number of steps or a fraction, not {warmup!r}")
    if isinstance(warmup, int):
        return warmup
    if warmup >= 1:
        raise ValueError(
            f"warm-up as a fraction must be below 1, not {warmup}; write steps as an integer"
        )
    return round(warmup * total)
