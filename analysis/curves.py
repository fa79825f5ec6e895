"""Curves along runs, and their means over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.charts import Dash, Line
from engine.records import RunRecord

AXES = ("step", "epoch", "units", "wall_s")

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Curve:
    """A metric of one run along an axis; `xs` never decreases."""

    metric: str
    axis: str
    xs: Array
    ys: Array

    def best(self, higher_is_better: bool | None) -> int | None:
        """The index of the best value; None for a metric without a better direction."""
        if higher_is_better is None or np.isnan(self.ys).all():
            return None
        return int(np.nanargmax(self.ys if higher_is_better else -self.ys))


@dataclass(frozen=True, eq=False)
class Band:
    """A metric of n runs along an axis: mean, and standard deviation with n - 1 (NaN for one)."""

    metric: str
    axis: str
    xs: Array
    mean: Array
    sd: Array
    n: int

    def line(
        self,
        label: str,
        factor: float = 1.0,
        colour: int | None = None,
        dash: Dash | None = None,
    ) -> Line:
        """As a line of a chart, with the x axis in other units."""
        ys = tuple(float(y) if math.isfinite(y) else None for y in self.mean)
        sds = tuple(float(sd) if math.isfinite(sd) else 0.0 for sd in self.sd)
        xs = tuple((self.xs * factor).tolist())
        return Line(label, xs, ys, sds if self.n > 1 else None, colour, dash)


def curve(rows: Sequence[Mapping[str, float]], metric: str, axis: str) -> Curve:
    """A metric along an axis; rows that lack one of them are left out."""
    if axis not in AXES:
        raise ValueError(f"an axis is one of {', '.join(AXES)}, not {axis!r}")
    found = [(row[axis], row[metric]) for row in rows if metric in row and axis in row]
    points = np.array(found, dtype=np.float64).reshape(-1, 2)
    points = points[np.argsort(points[:, 0], kind="stable")]
    return Curve(metric, axis, points[:, 0], points[:, 1])


def record_curve(record: RunRecord, metric: str, exponential: bool = False) -> Curve | None:
    """A metric, or its exponential, along the epochs of a record; None where there is none."""
    found = record.curves.get(metric)
    if not found or not found["epoch"]:
        return None
    xs, ys = (np.array(found[key], dtype=np.float64) for key in ("epoch", "value"))
    with np.errstate(over="ignore"):
        return Curve(metric, "epoch", xs, np.exp(ys) if exponential else ys)


def band(curves: Sequence[Curve]) -> Band:
    """Mean and standard deviation of the same metric of several runs.

    Runs that have the same points are averaged there. Otherwise all are interpolated linearly at
    the union of their points, as far as every one of them reaches; nothing is extrapolated.
    """
    _check_alike(curves)
    first = curves[0]
    if all(np.array_equal(c.xs, first.xs) for c in curves):
        xs = first.xs
        values = np.stack([c.ys for c in curves])
    else:
        low, high = max(c.xs[0] for c in curves), min(c.xs[-1] for c in curves)
        if low > high:
            raise ValueError(f"{first.metric}: the runs have no {first.axis} in common")
        xs = np.unique(np.concatenate([c.xs for c in curves]))
        xs = xs[(low <= xs) & (xs <= high)]
        values = np.stack([np.interp(xs, c.xs, c.ys) for c in curves])
    n = len(curves)
    with np.errstate(invalid="ignore"):  # an infinity has no deviation: it becomes NaN
        sd = values.std(axis=0, ddof=1) if n > 1 else np.full(len(xs), np.nan)
        return Band(first.metric, first.axis, xs, values.mean(axis=0), sd, n)


def _check_alike(curves: Sequence[Curve]) -> None:
    if not curves:
        raise ValueError("a band needs at least one curve")
    kinds = {(c.metric, c.axis) for c in curves}
    if len(kinds) > 1:
        raise ValueError(f"a band is of one metric along one axis, not of {sorted(kinds)}")
    if any(len(c.xs) == 0 for c in curves):
        raise ValueError(f"{curves[0].metric}: a run has no values of it")
