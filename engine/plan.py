"""Converts durations and batches to integers, once: the rest of the engine counts steps only."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from engine.config import BatchConfig, ConfigProblem, RunConfig, ScheduleConfig
from optim.schedules import Schedule

_DURATION = re.compile(r"\s*([0-9.]+(?:e[+-]?[0-9]+)?)\s*(%|[a-z]+)\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Duration:
    """An amount with its unit: epochs, steps, the task's unit in the plural, or % of all steps."""

    amount: float
    unit: str

    @classmethod
    def parse(cls, text: str, name: str, task_unit: str) -> Duration:
        """`100 epochs`, `500 steps`, `12e9 tokens`, `5 %`; ValueError with what would be right."""
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
    micro_batches: int  # micro-batches of one step over all processes
    processes: int
    accumulation: int  # micro-batches of one step per process
    eval_every: int
    checkpoint_every: int
    log_every: int
    schedule: Schedule
    optimizer_every: int = 0  # optimizer telemetry, at logged steps only; 0 is off

    @property
    def epochs(self) -> float:
        return self.steps / self.steps_per_epoch

    @property
    def units(self) -> int:
        return self.steps * self.global_batch


def micro_batches_of(config: RunConfig, processes: int) -> int:
    """Micro-batches of a step over all processes; ConfigProblem if the numbers do not divide."""
    problems = batch_problems(config.batch, processes)
    if problems:
        raise ConfigProblem(problems)
    return config.batch.global_size // config.batch.micro


def batch_problems(batch: BatchConfig, processes: int) -> list[str]:
    """Why a global batch can't be divided into micro-batches, and these among processes."""
    whole, micro = batch.global_size, batch.micro
    if whole % micro:
        return [
            f"batch.global_size={whole} is not a multiple of batch.micro={micro}: "
            f"{whole} = {whole // micro} × {micro} + {whole % micro}"
        ]
    count = whole // micro
    if count % processes:
        return [
            f"batch.global_size={whole} = {count} micro-batches of {micro} do not divide among "
            f"{processes} processes: {count} = {count // processes} × {processes} + "
            f"{count % processes}; use a number of processes that divides {count}"
        ]
    return []


def durations_of(values: Mapping[str, Any]) -> dict[str, str]:
    """The durations of a configuration's sections, by their dotted keys."""
    found = {"budget": values.get("budget")}
    for section, key in (
        ("schedule", "warmup"),
        ("evaluation", "every"),
        ("checkpoint", "every"),
        ("tracking", "log_every"),
        ("tracking", "optimizer_every"),
    ):
        found[f"{section}.{key}"] = getattr(values.get(section), key, None)
    for number, text in enumerate(getattr(values.get("schedule"), "milestones", ())):
        found[f"schedule.milestones[{number}]"] = text
    return {name: text for name, text in found.items() if text is not None}


def duration_problems(values: Mapping[str, Any], unit: str) -> list[str]:
    """What is wrong with the texts of durations, whatever the length of an epoch is."""
    problems = []
    for name, text in durations_of(values).items():
        try:
            duration = Duration.parse(text, name, unit)
            duration.in_steps(1, 1, None if name == "budget" else 1)
        except ValueError as problem:
            problems.append(str(problem))
    return problems


def schedule_problems(schedule: ScheduleConfig | None, lr: Any) -> list[str]:
    """What is wrong with a learning rate and its schedule (if known), whatever its length is."""
    if isinstance(lr, bool) or not isinstance(lr, int | float):
        return [f"optimizer.lr must be a number, not {lr!r}"]
    if not (math.isfinite(lr) and lr >= 0):
        return [f"optimizer.lr must be finite and not negative, not {lr!r}"]
    if schedule is None:
        return []
    try:
        _make_schedule(schedule, float(lr), 2, 0, (1,) if schedule.milestones else ())
    except ValueError as problem:
        return [str(problem)]
    return []


def _make_schedule(
    given: ScheduleConfig, lr: float, total: int, warmup: int, milestones: tuple[int, ...]
) -> Schedule:
    return Schedule(
        given.shape,
        lr,
        total,
        warmup,
        given.warmup_from,
        given.power,
        given.floor,
        given.floor_mode,
        given.start,
        milestones,
        given.factor,
    )


def make_plan(config: RunConfig, unit: str, steps_per_epoch: int, processes: int) -> Plan:
    """All integers at once; ConfigProblem with everything that is wrong."""
    micro_batches = micro_batches_of(config, processes)
    whole = config.batch.global_size
    if steps_per_epoch < 1:
        few = f"batch.global_size={whole} {unit}s is more than one epoch has"
        raise ConfigProblem([f"{few}: use a smaller batch, or more of the data"])
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
    telemetry = config.tracking.optimizer_every
    measured = steps_in(telemetry, "tracking.optimizer_every", total, 1) if telemetry else 0
    milestones = tuple(
        steps_in(text, "schedule.milestones", total, 1) for text in config.schedule.milestones
    )
    lr = config.optimizer.get("lr")
    problems += schedule_problems(config.schedule, lr)
    schedule = None
    if not problems:
        try:
            schedule = _make_schedule(config.schedule, float(lr or 0), total, warmup, milestones)
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
        micro_batches=micro_batches,
        processes=processes,
        accumulation=micro_batches // processes,
        eval_every=eval_every,
        checkpoint_every=checkpoint_every,
        log_every=log_every,
        schedule=schedule,
        optimizer_every=math.ceil(measured / log_every) * log_every,
    )


def reach(plan: Plan, beta1: float, tensors: Iterable[tuple[int, float]]) -> float:
    """How many times its initial norm NovoGrad can move a tensor in a run, averaged over weights.

    mean learning rate × steps / (1 - β1) / initial norm: a normalised gradient has the length 1,
    and momentum adds up 1 / (1 - β1) of them. `tensors` have a number of weights and an initial
    norm; those that start at 0 do not count. With a small reach a shrunk recipe stays near its
    initial weights, which the paper's recipes leave far behind.
    """
    counted = [(weights, norm) for weights, norm in tensors if norm > 0]
    if not counted:
        return math.nan
    distance = math.fsum(map(plan.schedule, range(plan.steps))) / (1 - beta1)
    return distance * sum(n / norm for n, norm in counted) / sum(n for n, _ in counted)
