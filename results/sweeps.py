"""What came out of a sweep: its runs, the best of each group, and how wide the good range is."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

WITHIN = 0.05  # of the best: still good
DONE = ("finished", "diverged")


@dataclass(frozen=True)
class SweepRun:
    """One point of a sweep with one seed."""

    run_id: str
    status: str  # "finished", "diverged", which is a result, "failed" or "missing"
    axes: dict[str, Any]  # its value on each axis, the experiment among them
    seed: int
    optimizer: str
    lr: float
    weight_decay: float
    final: float | None  # the metric at the end of the run
    best: float | None  # and at its best evaluation
    wall_s: float | None
    log: str = ""  # of a failed run


@dataclass(frozen=True)
class SweepResults:
    """All runs of a sweep."""

    sweep: str
    fingerprint: str
    scale: str
    metric: str
    higher_is_better: bool
    group_by: list[str]
    along: str | None
    runs: list[SweepRun]


@dataclass(frozen=True)
class Sensitivity:
    """The range of an axis around its best value where results stay within 5 % of the best."""

    low: float
    high: float
    open_below: bool  # the range may go on where nothing was measured
    open_above: bool

    @property
    def decades(self) -> float:
        return math.log10(self.high / self.low)

    def __str__(self) -> str:
        least = "≥ " if self.open_below or self.open_above else ""
        return f"{least}{self.decades:.2f} decades ({self.low:g} … {self.high:g})"


@dataclass(frozen=True)
class Group:
    """Runs that compete: the best of them, and the sensitivity along an axis."""

    values: dict[str, Any]
    best: float | None  # mean over seeds of the final metric; None if nothing finished
    at: dict[str, Any]  # the other axes' values there
    seeds: int
    runs: int
    diverged: int
    missing: int
    sensitivity: Sensitivity | None


def to_json(results: SweepResults) -> str:
    """Strict JSON, with the groups for who reads no Python."""
    found = asdict(results) | {"groups": [asdict(group) for group in groups_of(results)]}
    for group in found["groups"]:
        if group["sensitivity"] is not None:
            reach = Sensitivity(**group["sensitivity"])
            group["sensitivity"]["decades"] = round(reach.decades, 6)
    return json.dumps(found, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def to_csv(results: SweepResults) -> str:
    """A line for each run, a column for each axis."""
    axes = list(dict.fromkeys(key for run in results.runs for key in run.axes))
    names = ["run_id", *axes, "seed", "optimizer", "lr", "weight_decay", "status"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    own = [name for name in names if name != "seed" or "seed" not in axes]
    writer.writerow([*own, f"final {results.metric}", f"best {results.metric}", "wall_s"])
    for run in results.runs:
        row = asdict(run) | run.axes
        writer.writerow([*(row[name] for name in own), run.final, run.best, run.wall_s])
    return text.getvalue()


def read_results(path: Path) -> SweepResults:
    """What `to_json` wrote."""
    raw = json.loads(path.read_text())
    raw.pop("groups")
    return SweepResults(**raw | {"runs": [SweepRun(**run) for run in raw["runs"]]})


def groups_of(results: SweepResults) -> list[Group]:
    """In the order in which they first appear."""
    members: dict[str, list[SweepRun]] = {}
    for run in results.runs:
        key = json.dumps([run.axes.get(name) for name in results.group_by])
        members.setdefault(key, []).append(run)
    return [_group(results, runs) for runs in members.values()]


def _group(results: SweepResults, runs: Sequence[SweepRun]) -> Group:
    points: dict[str, list[SweepRun]] = {}
    for run in runs:
        place = {key: value for key, value in run.axes.items() if key != "seed"}
        points.setdefault(json.dumps(place, sort_keys=True), []).append(run)
    sign = 1.0 if results.higher_is_better else -1.0
    scored = [(sign * _value(seeds, results.higher_is_better), seeds) for seeds in points.values()]
    finite = [(score, seeds) for score, seeds in scored if math.isfinite(score)]
    score, seeds = max(finite, key=lambda pair: pair[0], default=(None, list(runs[:1])))
    others = [key for key in seeds[0].axes if key not in (*results.group_by, "seed")]
    return Group(
        values={key: runs[0].axes.get(key) for key in results.group_by},
        best=None if score is None else sign * score,
        at={} if score is None else {key: seeds[0].axes[key] for key in others},
        seeds=0 if score is None else len(seeds),
        runs=len(runs),
        diverged=sum(run.status == "diverged" for run in runs),
        missing=sum(run.status not in DONE for run in runs),
        sensitivity=_sensitivity_of(results, [(sign * s, own) for s, own in scored]),
    )


def _value(seeds: Sequence[SweepRun], higher_is_better: bool) -> float:
    """The mean over seeds; the worst there is if one diverged, NaN if one is not there."""
    if any(run.status not in DONE for run in seeds):
        return math.nan
    finals = [run.final for run in seeds if run.status == "finished" and run.final is not None]
    if len(finals) == len(seeds) and all(map(math.isfinite, finals)):
        return fmean(finals)
    return -math.inf if higher_is_better else math.inf


def _sensitivity_of(
    results: SweepResults, points: Sequence[tuple[float, Sequence[SweepRun]]]
) -> Sensitivity | None:
    """Along one axis; of points that differ in other axes the best stands for its value there."""
    along = results.along
    values: dict[float, float] = {}
    choose = max if results.higher_is_better else min
    for value, seeds in points:
        place = seeds[0].axes.get(along) if along else None
        if isinstance(place, bool) or not isinstance(place, int | float) or place <= 0:
            return None
        known = values.get(place, math.nan)
        measured = [v for v in (value, known) if not math.isnan(v)]
        values[place] = choose(measured, default=math.nan)
    return sensitivity(values, results.higher_is_better)


def sensitivity(
    values: Mapping[float, float], higher_is_better: bool, within: float = WITHIN
) -> Sensitivity | None:
    """From results by the axis' value: infinite where a run diverged, NaN where there is none.

    Only what was measured counts, so the range is at least this wide. None where there are not two
    values, or nothing to be the best.
    """
    places = sorted(values)
    finite = [place for place in places if math.isfinite(values[place])]
    if len(places) < 2 or not finite:
        return None
    sign = 1.0 if higher_is_better else -1.0
    peak = max(finite, key=lambda place: sign * values[place])
    least = sign * values[peak] - within * abs(values[peak])

    def reach(way: Sequence[float]) -> tuple[float, bool]:
        """How far it stays good, and whether that is only the end of what was measured."""
        last = peak
        for place in way:
            if math.isnan(values[place]):
                return last, True
            if sign * values[place] < least:
                return last, False
            last = place
        return last, True

    middle = places.index(peak)
    low, open_below = reach(places[:middle][::-1])
    high, open_above = reach(places[middle + 1 :])
    return Sensitivity(low, high, open_below, open_above)


def text_table(results: SweepResults) -> str:
    """The best of each group, for a terminal."""
    groups = groups_of(results)
    keys = list(dict.fromkeys(key for group in groups for key in group.at))
    head = [*results.group_by, results.metric, *(f"at {key}" for key in keys)]
    lines = [[*head, *([f"within 5 % along {results.along}"] if results.along else []), "runs"]]
    for group in groups:
        line = [_cell(value) for value in group.values.values()]
        spread = f" (n={group.seeds})" if group.seeds > 1 else ""
        line.append("-" if group.best is None else f"{group.best:.2f}{spread}")
        line += [_cell(group.at[key]) if key in group.at else "-" for key in keys]
        if results.along:
            line.append("-" if group.sensitivity is None else str(group.sensitivity))
        counts = [(group.diverged, "diverged"), (group.missing, "not there")]
        words = [f"{number} {word}" for number, word in counts if number]
        lines.append([*line, ", ".join([str(group.runs), *words])])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _cell(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
