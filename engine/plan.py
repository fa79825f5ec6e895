"""From durations and batches to integers, once: the rest of the engine knows steps only."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from engine.config import ConfigProblem, RunConfig
from optim.schedules import Schedule

_DURATION = re.compile(r"\s*([0-9.]+(?:e[+-]?[0-9]+)?)\s*(%|[a-z]+)\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Duration:
    """An amount with its unit: epochs, steps, the task's unit in the plural, or % of all steps."""

    amount: float
    unit: str

    @classmethod
    def parse(cls, text: str, name: str, task_unit: str) -> Duration:
        """`100 epochs`, `500 steps`, `12e9 tokens`, `5 %`; ValueError says what would be right."""
        match = _DURATION.fullmatch(text)
        known = ("steps", "epochs", f"{task_unit}s", "%")
        if match:
            unit = match[2].lower()
            unit = unit if unit == "%" or unit.endswith("s") else unit + "s"
            if unit in known and _is_number(match[1]):
                return cls(float(match[1]), unit)
        raise ValueError(
            f"{name} must be a duration such as '100 epochs', with one of {', '.join(known)}, "
            f"not {text!r}"
        )

    def in_steps(self, steps_per_epoch: int, units_per_step: int, total: int | None) -> float:
        """Not yet rounded; `total` steps are what a percentage refers to."""
        if self.unit == "steps":
            return self.amount
        if self.unit == "epochs":
            return self.amount * steps_per_epoch
        if self.unit == "%":
            if total is None:
                raise ValueError("a budget can't be a percentage of itself")
            return self.amount / 100 * total
        return self.amount / units_per_step


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


@dataclass(frozen=True)
class Plan:
    """The integers of a run."""

    unit: str
    steps: int
    steps_per_epoch: int
    warmup: int
    global_batch: int
    micro: int
    slots: int  # micro-batches of one step over all processes
    processes: int
    accumulation: int  # micro-batches of one step per process
    eval_every: int
    checkpoint_every: int
    log_every: int
    schedule: Schedule

    @property
    def epochs(self) -> float:
        return self.steps / self.steps_per_epoch

    @property
    def units(self) -> int:
        return self.steps * self.global_batch


def slots_of(config: RunConfig, processes: int) -> int:
    """Micro-batches of a step over all processes; ConfigProblem if the numbers do not divide."""
    whole, micro = config.batch.global_size, config.batch.micro
    if whole % micro:
        raise ConfigProblem(
            [
                f"batch.global_size={whole} is not a multiple of batch.micro={micro}: "
                f"{whole} = {whole // micro} × {micro} + {whole % micro}"
            ]
        )
    slots = whole // micro
    if slots % processes:
        raise ConfigProblem(
            [
                f"batch.global_size={whole} = {slots} micro-batches of {micro} do not divide among "
                f"{processes} processes: {slots} = {slots // processes} × {processes} + "
                f"{slots % processes}; use a number of processes that divides {slots}"
            ]
        )
    return slots


def make_plan(config: RunConfig, unit: str, steps_per_epoch: int, processes: int) -> Plan:
    """All integers at once; ConfigProblem with everything that is wrong."""
    slots = slots_of(config, processes)
    whole = config.batch.global_size
    if steps_per_epoch < 1:
        raise ConfigProblem([f"batch.global_size={whole} is more than one epoch has"])
    problems: list[str] = []

    def steps_in(text: str, name: str, total: int | None, least: int) -> int:
        try:
            duration = Duration.parse(text, name, unit)
            exact = duration.in_steps(steps_per_epoch, whole, total)
        except ValueError as problem:
            problems.append(str(problem))
            return 1
        # A budget in tokens or images is spent in full; everything else to the nearest step.
        spent = math.ceil(exact - 1e-9) if duration.unit == f"{unit}s" else round(exact)
        if spent < least and exact > 0:
            spent = least
        if spent < least:
            problems.append(f"{name} must be at least one step, not {text!r}")
        return max(spent, least)

    total = steps_in(config.budget, "budget", None, 1)
    warmup = steps_in(config.schedule.warmup, "schedule.warmup", total, 0)
    eval_every = steps_in(config.evaluation.every, "evaluation.every", total, 1)
    checkpoint_every = steps_in(config.checkpoint.every, "checkpoint.every", total, 1)
    log_every = steps_in(config.tracking.log_every, "tracking.log_every", total, 1)
    milestones = tuple(
        steps_in(text, "schedule.milestones", total, 1) for text in config.schedule.milestones
    )
    schedule = None
    try:
        lr = config.optimizer.get("lr")
        if isinstance(lr, bool) or not isinstance(lr, int | float):
            raise ValueError(f"optimizer.lr must be a number, not {lr!r}")
        if not (math.isfinite(lr) and lr >= 0):
            raise ValueError(f"optimizer.lr must be finite and not negative, not {lr!r}")
        s = config.schedule
        schedule = Schedule(
            s.shape,
            float(lr),
            total,
            warmup,
            s.warmup_from,
            s.power,
            s.floor,
            s.floor_mode,
            s.start,
            milestones,
            s.factor,
        )
    except ValueError as problem:
        problems.append(str(problem))
    if problems or schedule is None:
        raise ConfigProblem(problems)
    return Plan(
        unit=unit,
        steps=total,
        steps_per_epoch=steps_per_epoch,
        warmup=warmup,
        global_batch=whole,
        micro=config.batch.micro,
        slots=slots,
        processes=processes,
        accumulation=slots // processes,
        eval_every=eval_every,
        checkpoint_every=checkpoint_every,
        log_every=log_every,
        schedule=schedule,
    )
