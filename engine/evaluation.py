"""Evaluation: every example exactly once on any number of processes, then one closing formula."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import nn

from engine.distributed import Group
from engine.finite import NonFinite, find_non_finite_batch
from engine.precision import autocast
from tasks.base import Batch, Carry, Counts, DataProblem, Predictions, Shard, Task

SHARED = "All processes stop with this problem."


def shared(problem: Exception) -> Exception:
    """Marks a problem that every process raises, so that one of them can report it for all."""
    problem.add_note(SHARED)
    return problem


@torch.no_grad()
def evaluate(
    task: Task,
    model: nn.Module,
    split: str,
    group: Group,
    precision: str,
    should_stop: Callable[[], bool] = lambda: False,
    predictions: Predictions | None = None,
) -> dict[str, float] | None:
    """The metrics of a split, the same on every process; None if any received a stop signal.

    `model` is the bare module, not DDP's: nothing is communicated until the counts are gathered.
    Batches do not depend on the number of processes, and their counts are added without rounding
    in between: neither do the metrics, to the bit. `predictions` are filled where given, with those
    of all processes. NonFinite if a count is NaN or infinite.
    """
    was_training = model.training
    model.eval()
    counts: list[Counts] = []
    carry: Carry = None
    stopped, problem = False, None
    task.predictions = predictions
    try:
        for batch in task.eval_batches(split, Shard(group.rank, group.world)):
            batch = batch.to(group.device)
            with autocast(precision, group.device):
                some, carry = task.count(model, batch, carry)
            counts.append(some)
            problem = problem or _find_problem(some, batch, split)
            if should_stop():
                stopped = True
                break
    finally:
        task.predictions = None
        model.train(was_training)
    kept = {} if predictions is None else predictions.rows
    gathered = group.gather((counts, kept, stopped, problem))
    for *_, found in gathered:
        if found is not None:
            raise shared(found)
    if any(stop for *_, stop, _ in gathered):
        return None
    if predictions is not None:
        for _, rows, *_ in gathered:
            predictions.rows |= rows
    return task.summarize(split, add_up([some for counts, *_ in gathered for some in counts]))


def _find_problem(counts: Counts, batch: Batch, split: str) -> NonFinite | DataProblem | None:
    """Counts are numbers on the host: looking at them costs nothing."""
    for name, value in counts.items():
        if not math.isfinite(value):
            found = find_non_finite_batch(batch)
            what = f"{name} of a batch of {split} is {value}"
            return DataProblem(f"{what}: {found}") if found else NonFinite(what)
    return None


def add_up(counts: Iterable[Counts]) -> Counts:
    """Sums rounded once, so that the order of the parts does not matter."""
    parts: dict[str, list[float]] = {}
    for some in counts:
        for name, value in some.items():
            parts.setdefault(name, []).append(value)
    return {name: _sum(values) for name, values in parts.items()}


def _sum(values: list[float]) -> float:
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):  # of a diverged model: infinities of both signs
        return sum(values)
