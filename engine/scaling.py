"""Smaller scales as multiples of the paper's numbers, so that rows keep their ratios.

A row of 200 epochs stays twice as long as one of 100, a batch of 8K eight times one of 1K, and a
warm-up of 500 steps the same part of its run. Multiplied once, before a run is planned: what is
frozen has plain numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Multiply:
    """What a scale multiplies the numbers of an experiment with; 1 everywhere is the paper."""

    epochs: float = 1.0  # durations in epochs, and in the task's units
    steps: float = 1.0  # durations in steps
    batch: float = 1.0  # batch.global_size
    lr: float = 1.0
    weight_decay: float = 1.0
    dropout: float = 1.0  # model.dropout, if the model has that one
    # Besides `lr` and `weight_decay`, by the optimizer's name.
    lr_of: dict[str, float] = field(default_factory=dict)
    weight_decay_of: dict[str, float] = field(default_factory=dict)


def multiply(raw: dict[str, Any], by: Multiply, problems: list[str]) -> None:
    """Changes a composed configuration; what can't be multiplied is left for the reader of it."""
    for holder, key in _durations(raw):
        holder[key] = _longer(holder[key], by)
    optimizer = raw.get("optimizer")
    if isinstance(optimizer, dict):
        factors = {"lr": by.lr, "weight_decay": by.weight_decay}
        for key, of in (("lr", by.lr_of), ("weight_decay", by.weight_decay_of)):
            own = of.get(str(optimizer.get("name")), 1.0)
            if isinstance(own, bool) or not isinstance(own, int | float):
                problems.append(f"multiply.{key}_of: factors must be numbers, not {own!r}")
            else:
                factors[key] *= own
        for name, factor in factors.items():
            if factor != 1 and isinstance(optimizer.get(name), int | float):
                optimizer[name] = float(f"{optimizer[name] * factor:.12g}")
    model = raw.get("model")
    if by.dropout != 1 and isinstance(model, dict) and isinstance(model.get("dropout"), float):
        model["dropout"] = float(f"{model['dropout'] * by.dropout:.12g}")
    batch = raw.get("batch")
    if by.batch != 1 and isinstance(batch, dict) and isinstance(batch.get("global_size"), int):
        exact = batch["global_size"] * by.batch
        if exact < 1 or abs(exact - round(exact)) > 1e-6:
            problems.append(
                f"multiply.batch={by.batch:g} makes no whole batch of {batch['global_size']}: "
                f"{exact:g}"
            )
        batch["global_size"] = max(1, round(exact))


def _durations(raw: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Where the durations of the recipe stand; not those of logs and checkpoints."""
    yield raw, "budget"
    schedule = raw.get("schedule")
    if isinstance(schedule, dict):
        yield schedule, "warmup"
        milestones = schedule.get("milestones")
        if isinstance(milestones, list):
            yield from ((milestones, i) for i in range(len(milestones)))


def _longer(text: Any, by: Multiply) -> Any:
    try:
        amount, unit = str(text).split()
        value = float(amount)
    except ValueError:
        return text
    if unit == "%":
        return text
    factor = by.steps if unit.startswith("step") else by.epochs
    return text if factor == 1 else f"{value * factor:.12g} {unit}"
