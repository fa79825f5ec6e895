"""Evaluation: every example exactly once on any number of processes, then one closing formula."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from engine.distributed import Group
from engine.precision import autocast
from tasks.base import Carry, Counts, Shard, Task


@torch.no_grad()
def evaluate(
    task: Task,
    model: nn.Module,
    split: str,
    group: Group,
    precision: str,
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[str, float] | None:
    """The metrics of a split, the same on every process; None if any was asked to stop meanwhile.

    `model` is the bare module, not DDP's: nothing is communicated until the counts are gathered.
    """
    was_training = model.training
    model.eval()
    counts: Counts = {}
    carry: Carry = None
    stopped = False
    for batch in task.eval_batches(split, Shard(group.rank, group.world)):
        with autocast(precision, group.device):
            some, carry = task.count(model, batch.to(group.device), carry)
        add_counts(counts, some)
        if should_stop():
            stopped = True
            break
    model.train(was_training)
    gathered = group.gather((counts, stopped))
    if any(stop for _, stop in gathered):
        return None
    whole: Counts = {}
    for part, _ in gathered:
        add_counts(whole, part)
    return task.summarize(split, whole)


def add_counts(total: Counts, some: Counts) -> None:
    """total += some."""
    for name, value in some.items():
        total[name] = total.get(name, 0.0) + value
