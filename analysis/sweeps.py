"""What came out of a sweep: its runs, the best of each group, and how wide the good range is."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from analysis.metrics import metric_of, quality, quality_sign
from analysis.sensitivity import Sensitivity, sensitivity
from analysis.statistics import WITHIN
from analysis.tables import text_table
from analysis.trials import DIVERGED, TrialResult
from tasks.files import write_atomically


@dataclass(frozen=True)
class SweepResults:
    """All trials of a sweep."""

    sweep: str
    scale: str
    metric: str
    group_by: list[str]
    along: str | None
    results: tuple[TrialResult, ...] = ()

    def of(self, results: Sequence[TrialResult]) -> SweepResults:
        """The same sweep with these results."""
        return replace(self, results=tuple(results))

    @property
    def axes(self) -> list[str]:
        return list(dict.fromkeys(key for one in self.results for key in one.trial.axes))


@dataclass(frozen=True)
class Group:
    """Trials that compete: the best of them, and the sensitivity along an axis."""

    values: dict[str, Any]
    best: float | None  # mean over seeds of the final metric; None if nothing finished
    at: dict[str, Any]  # the other axes' values there
    seeds: int
    runs: int
    diverged: int
    missing: int
    sensitivity: Sensitivity | None


def save_results(folder: Path, results: SweepResults) -> None:
    """results.json and results.csv."""
    for name, text in (("results.json", to_json(results)), ("results.csv", to_csv(results))):
        write_atomically(folder / name, text.encode(), durable=False)


def to_json(results: SweepResults) -> str:
    """Strict JSON: the runs, and the groups."""
    groups = []
    for group in groups_of(results):
        found = asdict(group)
        if group.sensitivity is not None:
            found["sensitivity"]["decades"] = round(group.sensitivity.decades, 6)
        groups.append(found)
    keys = ("sweep", "scale", "metric", "group_by", "along")
    runs = [{"axes": dict(one.trial.axes), **_run(one)} for one in results.results]
    head = {key: getattr(results, key) for key in keys}
    text = json.dumps(
        head | {"runs": runs, "groups": groups}, indent=2, ensure_ascii=False, allow_nan=False
    )
    return text + "\n"


def to_csv(results: SweepResults) -> str:
    """A line for each run, a column for each axis."""
    text = io.StringIO()
    axes = results.axes
    rows = [{**_run(one), **one.trial.axes} for one in results.results]
    names = ["run_id", *axes, *(name for name in (rows[0] if rows else ()) if name not in axes)]
    writer = csv.DictWriter(text, list(dict.fromkeys(names)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _run(one: TrialResult) -> dict[str, Any]:
    record = one.record
    best = None if record is None else record.best.get(one.trial.metric)
    return {
        "run_id": one.run_id,
        "seed": one.trial.seed if record is None else record.seed,
        "optimizer": None if record is None else record.optimizer,
        "lr": one.option("lr"),
        "weight_decay": one.option("weight_decay"),
        "status": one.status,
        "final": one.value,
        "best": best if best is not None and math.isfinite(best) else None,
        "wall_s": None if record is None else record.wall_s,
    }


def groups_of(results: SweepResults) -> list[Group]:
    """In the order in which they first appear."""
    members: dict[str, list[TrialResult]] = {}
    for one in results.results:
        key = json.dumps([one.trial.axes.get(name) for name in results.group_by])
        members.setdefault(key, []).append(one)
    return [_group(results, own) for own in members.values()]


def _group(results: SweepResults, own: Sequence[TrialResult]) -> Group:
    points: dict[str, list[TrialResult]] = {}
    for one in own:
        place = {key: value for key, value in one.trial.axes.items() if key != "seed"}
        points.setdefault(json.dumps(place, sort_keys=True), []).append(one)
    sign = metric_of(results.metric).sign
    means = [(mean, seeds) for seeds in points.values() if (mean := _mean(seeds)) is not None]
    finite = [(mean, seeds) for mean, seeds in means if not math.isnan(mean)]
    best, seeds = max(finite, key=lambda pair: sign * pair[0], default=(None, list(own[:1])))
    others = [key for key in seeds[0].trial.axes if key not in (*results.group_by, "seed")]
    return Group(
        values={key: own[0].trial.axes.get(key) for key in results.group_by},
        best=best,
        at={} if best is None else {key: seeds[0].trial.axes[key] for key in others},
        seeds=0 if best is None else len(seeds),
        runs=len(own),
        diverged=sum(one.status == DIVERGED for one in own),
        missing=sum(not one.is_done for one in own),
        sensitivity=_sensitivity(results, list(points.values())),
    )


def _mean(seeds: Sequence[TrialResult]) -> float | None:
    """The mean over seeds; None if one diverged, NaN if one is missing."""
    if not all(one.is_done for one in seeds):
        return math.nan
    values = [one.value for one in seeds if one.value is not None]
    return fmean(values) if len(values) == len(seeds) else None


def _sensitivity(
    results: SweepResults, points: Sequence[Sequence[TrialResult]]
) -> Sensitivity | None:
    """Along one axis; of points that differ in other axes the best one counts."""
    found: dict[float, float | None] = {}
    sign = quality_sign(results.metric)

    def rank(value: float | None) -> tuple[int, float]:
        """A number before a diverged run before one that is missing."""
        if value is None:
            return 1, 0.0
        return (0, 0.0) if math.isnan(value) else (2, sign * value)

    for seeds in points:
        place = seeds[0].trial.axes.get(results.along or "")
        if isinstance(place, bool) or not isinstance(place, int | float) or place <= 0:
            return None
        mean = _mean(seeds)
        value = mean if mean is None or math.isnan(mean) else quality(results.metric, mean)
        found[place] = max(found.get(place, math.nan), value, key=rank)
    return sensitivity(results.metric, found)


def best_table(results: SweepResults) -> str:
    """The best of each group, for a terminal."""
    groups = groups_of(results)
    keys = list(dict.fromkeys(key for group in groups for key in group.at))
    along = [f"within {100 * WITHIN:g} % along {results.along}"] if results.along else []
    head = [*results.group_by, results.metric, *(f"at {key}" for key in keys), *along, "runs"]
    lines = [head]
    for group in groups:
        seeds = f" (n={group.seeds})" if group.seeds > 1 else ""
        best = "-" if group.best is None else metric_of(results.metric).format(group.best) + seeds
        at = [_cell(group.at[key]) if key in group.at else "-" for key in keys]
        wide = ["-" if group.sensitivity is None else str(group.sensitivity)] if along else []
        counts = ((group.diverged, "diverged"), (group.missing, "missing"))
        runs = [str(group.runs), *(f"{number} {name}" for number, name in counts if number)]
        lines.append([*map(_cell, group.values.values()), best, *at, *wide, ", ".join(runs)])
    return text_table(lines)


def _cell(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
