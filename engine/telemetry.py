"""Optimizer telemetry: what a step did to each layer group, as columns of a logged row.

    optimizer/gradient_norm/<group>        of the gradient as the step used it: after clipping, LARC
    optimizer/second_moment_root/<group>   √v; for Adam and its kin of the sum over all elements
    optimizer/update_ratio/<group>         norm of the update / norm of the weights

A group's norm is that of all its tensors together. A group without a quantity (SGD has no v, a
tensor of zeros no ratio) has no such column.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from engine.rows import TELEMETRY
from optim.statistics import Statistics


def layer_group(name: str) -> str:
    """`blocks.3` for `blocks.3.body.0.weight`, `head` for `head.bias`.

    The path up to the first number; the first part of a path that has none.
    """
    parts = name.split(".")
    numbers = [place for place, part in enumerate(parts) if part.isdecimal()]
    return ".".join(parts[: numbers[0] + 1]) if numbers else parts[0]


def telemetry_row(found: Statistics, by: str) -> dict[str, float]:
    """The columns of a row; `by` is "layer" for layer groups or "tensor". Waits for the device."""
    groups: dict[str, list[list[float]]] = {}
    for name, values in zip(found.names, found.values.tolist(), strict=True):
        groups.setdefault(name if by == "tensor" else layer_group(name), []).append(values)
    row: dict[str, dict[str, float]] = {}
    for group, members in groups.items():
        gradients, roots, updates, weights = zip(*members, strict=True)
        row.setdefault("gradient_norm", {})[group] = math.hypot(*gradients)
        known = [root for root in roots if not math.isnan(root)]
        if known:
            row.setdefault("second_moment_root", {})[group] = math.hypot(*known)
        if (norm := math.hypot(*weights)) != 0:
            row.setdefault("update_ratio", {})[group] = math.hypot(*updates) / norm
    return dict(_columns(row))


def _columns(row: dict[str, dict[str, float]]) -> Iterable[tuple[str, float]]:
    for quantity, values in row.items():
        for group, value in values.items():
            yield f"{TELEMETRY}{quantity}/{group}", value
