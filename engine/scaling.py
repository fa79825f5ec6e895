"""Smaller scales as multiples of the paper's numbers, so that rows keep their ratios.

A row of 200 epochs stays twice as long as one of 100, a batch of 8K eight times one of 1K, and a
warm-up of 500 steps the same share of its run. Learning rates and weight decays may be given as
such, the paper's and the one used instead; rows with another rate keep their ratio to the paper's.
Applied once, before a run is planned: the frozen run has plain numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.config import NOT_SCIENCE


@dataclass(frozen=True)
class Multiply:
    """The factors of a scale; 1 everywhere is the paper."""

    epochs: float = 1.0  # durations in epochs, and in the task's units
    steps: float = 1.0  # durations in steps
    batch: float = 1.0  # batch.global_size
    lr: float = 1.0
    weight_decay: float = 1.0
    dropout: float = 1.0  # model.dropout, if the model has that one
    # By the optimizer's name: {paper: 0.4, here: 0.2}.
    lr_of: dict[str, dict[str, float]] = field(default_factory=dict)
    weight_decay_of: dict[str, dict[str, float]] = field(default_factory=dict)


def covers(name: str, key: str) -> bool:
    """Whether a dotted key is, or lies below, another one."""
    return key == name or key.startswith(f"{name}.")


def multiply(
    raw: dict[str, Any], by: Multiply, problems: list[str], keep: Sequence[str] = ()
) -> None:
    """Changes a composed configuration, but not the keys to `keep` and what lies below them.

    Values of wrong types are left for the schema to refuse.
    """

    def kept(key: str) -> bool:
        return any(covers(name, key) for name in keep)

    for name, holder, key in _durations(raw):
        if not kept(name):
            holder[key] = _longer(holder[key], by)
    optimizer = raw.get("optimizer")
    if isinstance(optimizer, dict):
        for key, factor, by_name in (
            ("lr", by.lr, by.lr_of),
            ("weight_decay", by.weight_decay, by.weight_decay_of),
        ):
            paper, here = _instead(key, by_name, str(optimizer.get("name")), problems)
            differs = (factor != 1 or here != paper) and not kept(f"optimizer.{key}")
            if differs and isinstance(optimizer.get(key), int | float):
                optimizer[key] = float(f"{optimizer[key] * factor * here / paper:.12g}")
    model = raw.get("model")
    drops = by.dropout != 1 and not kept("model.dropout")
    if drops and isinstance(model, dict) and isinstance(model.get("dropout"), float):
        model["dropout"] = float(f"{model['dropout'] * by.dropout:.12g}")
    batch = raw.get("batch")
    resizes = by.batch != 1 and not kept("batch.global_size")
    if resizes and isinstance(batch, dict) and isinstance(batch.get("global_size"), int):
        exact = batch["global_size"] * by.batch
        if exact < 1 or abs(exact - round(exact)) > 1e-6:
            problems.append(
                f"multiply.batch={by.batch:g} makes no whole batch of {batch['global_size']}: "
                f"{exact:g}"
            )
        batch["global_size"] = max(1, round(exact))


def _instead(
    key: str, by_name: dict[str, dict[str, float]], optimizer: str, problems: list[str]
) -> tuple[float, float]:
    """The paper's value and the one used here, for an optimizer; equal where none are given."""
    for name, given in by_name.items():
        if set(given) != {"paper", "here"} or not all(value > 0 for value in given.values()):
            problems.append(
                f"multiply.{key}_of.{name} must be like {{paper: 0.4, here: 0.2}}, not {given!r}"
            )
            return 1.0, 1.0
    found = by_name.get(optimizer, {"paper": 1.0, "here": 1.0})
    return found["paper"], found["here"]


def _durations(raw: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """The recipe's durations: dotted key, container and key; not those of logs and checkpoints."""
    yield "budget", raw, "budget"
    schedule = raw.get("schedule")
    if isinstance(schedule, dict):
        yield "schedule.warmup", schedule, "warmup"
        milestones = schedule.get("milestones")
        if isinstance(milestones, list):
            yield from (("schedule.milestones", milestones, i) for i in range(len(milestones)))


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


def changes(paper: dict[str, Any], used: dict[str, Any]) -> dict[str, list[Any]]:
    """The parts of the recipe in which two composed configurations differ; None where missing."""
    before, after = flat(paper), flat(used)
    apart = ("scale", "experiment", "multiply", *NOT_SCIENCE)
    return {
        key: [before.get(key), after.get(key)]
        for key in dict.fromkeys([*after, *before])
        if before.get(key) != after.get(key) and not any(covers(name, key) for name in apart)
    }


def flat(nested: dict[str, Any], where: str = "") -> dict[str, Any]:
    """Nested dicts as one, by dotted keys."""
    found: dict[str, Any] = {}
    for key, value in nested.items():
        name = f"{where}.{key}" if where else key
        found |= flat(value, name) if isinstance(value, dict) and value else {name: value}
    return found
