"""Curves from the rows that runs log: read, put in order, thinned, and averaged over seeds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

AXES = ("step", "epoch", "units", "wall_s")
NOT_FINITE = ("NaN", "Infinity", "-Infinity")  # strings, because strict JSON has no such numbers

Row = dict[str, float]
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Run:
    """A run as its folder or W&B has it; `read` fetches the rows, after which they are `rows`."""

    run_id: str
    wandb_id: str
    config: dict[str, Any]
    status: str  # "finished", or what it is instead
    read: Callable[[], list[Row]]
    rows: tuple[Row, ...] = ()

    @property
    def is_finished(self) -> bool:
        return self.status == "finished"

    def value(self, key: str) -> str | None:
        """The text of a configuration's value; of a group such as `optimizer` its name."""
        value = self._look_up(self.full_key(key))
        return None if value is None or isinstance(value, dict) else str(value)

    def full_key(self, key: str) -> str:
        """`optimizer.name` for `optimizer`, and every other key as it is."""
        return f"{key}.name" if isinstance(self._look_up(key), dict) else key

    def all_keys(self) -> list[str]:
        """The dotted keys of the configuration, groups too."""

        def flat(node: Mapping[str, Any], prefix: str) -> list[str]:
            below = [flat(v, f"{prefix}{k}.") for k, v in node.items() if isinstance(v, dict)]
            return [f"{prefix}{k}" for k in node] + [name for names in below for name in names]

        return flat(self.config, "")

    def _look_up(self, key: str) -> Any:
        value: Any = self.config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value


@dataclass(frozen=True, eq=False)
class Curve:
    """A metric of one run along an axis; `xs` never decreases."""

    metric: str
    axis: str
    xs: Array
    ys: Array

    def best(self, higher_is_better: bool | None) -> int | None:
        """The index of the best value; None where none is the best."""
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


def read_run(folder: Path) -> Run:
    """A run from its folder (run.yaml, status.json, metrics.jsonl), without its rows yet.

    A ValueError names the file that is not as a run leaves it.
    """
    path = folder / "run.yaml"
    try:
        frozen = yaml.safe_load(path.read_text())
        run_id, config = str(frozen["run_id"]), dict(frozen["config"])
    except (yaml.YAMLError, KeyError, TypeError, ValueError) as problem:
        raise ValueError(f"{path} is not a run's: {' '.join(str(problem).split())}") from problem
    try:
        status = str(json.loads((folder / "status.json").read_text())["status"])
    except (OSError, ValueError, KeyError, TypeError):
        status = "unfinished"
    rows = folder / "metrics.jsonl"
    read = partial(read_rows, rows) if rows.exists() else list
    return Run(run_id, run_id.replace("/", "-"), config, status, read)


def read_rows(path: Path) -> list[Row]:
    """The rows of a metrics.jsonl in order; a torn last line is left out.

    Anything else that is no row is a ValueError that names the file and the line.
    """
    lines = path.read_bytes().split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(_read_row(line))
        except ValueError as problem:
            if number < len(lines):
                raise ValueError(f"{path}: line {number} is not a row: {problem}") from None
    return in_order(rows)


def in_order(rows: Iterable[Mapping[str, float]]) -> list[Row]:
    """Rows by step, a training row before an evaluation of its step; of equals the last one.

    A run that resumes, and its W&B mirror, may log the same step again.
    """
    latest = {(row["step"], _is_evaluation(row)): dict(row) for row in rows}
    return [latest[key] for key in sorted(latest)]


def curve(rows: Sequence[Mapping[str, float]], metric: str, axis: str) -> Curve:
    """A metric along an axis; rows that lack one of them are left out."""
    if axis not in AXES:
        raise ValueError(f"an axis is one of {', '.join(AXES)}, not {axis!r}")
    found = [(row[axis], row[metric]) for row in rows if metric in row and axis in row]
    points = np.array(found, dtype=np.float64).reshape(-1, 2)
    points = points[np.argsort(points[:, 0], kind="stable")]
    return Curve(metric, axis, points[:, 0], points[:, 1])


def thin(curve: Curve, points: int = 60) -> Curve:
    """At most so many points: the first, the last, the lowest, the highest, others evenly in x.

    What is measured on a few batches (a training loss, a speed) is averaged between them, because
    single points of noise would make another curve. An evaluation's numbers stay as they are.
    """
    if points < 4:
        raise ValueError(f"a thin curve has at least 4 points, not {points}")
    if len(curve.xs) <= points:
        return curve
    kept = _landmarks(curve.ys)
    room = points - len(kept)
    if is_averaged(curve.metric):
        xs, ys = _binned(np.delete(curve.xs, kept), np.delete(curve.ys, kept), room)
        xs, ys = np.concatenate([curve.xs[kept], xs]), np.concatenate([curve.ys[kept], ys])
        order = np.argsort(xs, kind="stable")
        return Curve(curve.metric, curve.axis, xs[order], ys[order])
    targets = np.linspace(curve.xs[0], curve.xs[-1], room + 2)[1:-1]
    nearest = [int(np.abs(curve.xs - target).argmin()) for target in targets]
    chosen = sorted({*kept, *nearest})
    return Curve(curve.metric, curve.axis, curve.xs[chosen], curve.ys[chosen])


def thinned(rows: Sequence[Row], points: int = 60) -> dict[str, dict[str, list[float]]]:
    """For a record: the training loss and all evaluations by step and epoch, six digits each.

    The steps depend on the rows' steps alone, so that runs of other seeds have the same.
    """
    names = {name for row in rows for name in row if "/" in name}
    kept = sorted(n for n in names if n == "train/loss" or not n.startswith(("train/", "speed/")))
    found = {}
    for metric in kept:
        own = [row for row in rows if metric in row]
        parts = [part for part in np.array_split(np.arange(len(own)), points) if len(part)]
        found[metric] = {
            "step": [own[part[-1]]["step"] for part in parts],
            "epoch": [_six_digits(own[part[-1]]["epoch"]) for part in parts],
            "value": [
                _six_digits(
                    float(np.mean([own[i][metric] for i in part]))
                    if is_averaged(metric)
                    else own[part[-1]][metric]
                )
                for part in parts
            ],
        }
    return found


def _six_digits(value: float) -> float:
    return float(f"{value:.6g}")


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
    with np.errstate(invalid="ignore"):  # an infinity has no deviation: NaN says so
        sd = values.std(axis=0, ddof=1) if n > 1 else np.full(len(xs), np.nan)
        return Band(first.metric, first.axis, xs, values.mean(axis=0), sd, n)


def is_averaged(metric: str) -> bool:
    """Whether single values are noise around what is meant: never those of an evaluation."""
    return metric in ("train/loss", "train/grad_norm") or metric.startswith("speed/")


def _read_row(line: bytes) -> Row:
    raw = json.loads(line)
    if not isinstance(raw, dict) or "step" not in raw:
        raise ValueError("a row is a JSON object with a step")
    return {key: _number(key, value) for key, value in raw.items()}


def _number(key: str, value: Any) -> float:
    if isinstance(value, str) and value in NOT_FINITE:
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{key} must be a number, not {value!r}")
    return value


def _is_evaluation(row: Mapping[str, float]) -> bool:
    return not any(key.startswith("train/") for key in row)


def _landmarks(ys: Array) -> list[int]:
    """Indices of the first, the last, the lowest and the highest."""
    found = {0, len(ys) - 1}
    if not np.isnan(ys).all():
        found |= {int(np.nanargmin(ys)), int(np.nanargmax(ys))}
    return sorted(found)


def _binned(xs: Array, ys: Array, bins: int) -> tuple[Array, Array]:
    """Means of x and y in bins of equal width; empty bins give no point."""
    if bins == 0:
        return xs[:0], ys[:0]
    edges = np.linspace(xs[0], xs[-1], bins + 1)[1:-1]
    index = np.searchsorted(edges, xs, side="right")
    groups = [index == number for number in np.unique(index)]
    return np.array([xs[g].mean() for g in groups]), np.array([ys[g].mean() for g in groups])


def _check_alike(curves: Sequence[Curve]) -> None:
    if not curves:
        raise ValueError("a band needs at least one curve")
    kinds = {(c.metric, c.axis) for c in curves}
    if len(kinds) > 1:
        raise ValueError(f"a band is of one metric along one axis, not of {sorted(kinds)}")
    if any(len(c.xs) == 0 for c in curves):
        raise ValueError(f"{curves[0].metric}: a run has no values of it")
