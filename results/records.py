"""Records of runs as the report shows them, and the curves along them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from results.claims import Chart, Line
from results.ledger import RUNS
from results.schema import Figure, Series, Table, metric_of, split_of

SCALES = ("paper", "mini")  # smaller ones only show that something runs


class ReportProblem(ValueError):
    """A record that the report can't use."""


@dataclass(frozen=True)
class Run:
    """A record, as far as the report shows it."""

    run_id: str
    experiment: str
    scale: str
    data: str
    seed: int
    fingerprint: str
    final: dict[str, float]
    curves: dict[str, dict[str, list[float]]]
    commit: str
    machine: str
    date: str
    wall_s: float
    steps: int
    file: str  # relative to results/


def read_runs(folder: Path = RUNS) -> list[Run]:
    """All records below a folder but those of the smallest scale, in the order of their ids."""
    runs: dict[str, Run] = {}
    for path in sorted(folder.rglob("*.json")):
        try:
            run = _read_run(json.loads(path.read_text()), path.relative_to(folder.parent))
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise ReportProblem(f"{path}: not a record: {problem!r}") from problem
        if run.run_id in runs:
            raise ReportProblem(f"{path}: {run.run_id} is in {runs[run.run_id].file} as well")
        runs[run.run_id] = run
    return [runs[name] for name in sorted(runs) if runs[name].scale in SCALES]


def _read_run(raw: Any, file: Path) -> Run:
    environment = raw["environment"]
    hardware, versions = environment["hardware"], environment["versions"]
    machine = hardware.get("name") or f"{hardware['count']} × {hardware['names'][0]}"
    commit = (environment["commit"] or "unknown")[:10]
    return Run(
        run_id=raw["run_id"],
        experiment=raw["experiment"],
        scale=raw["scale"],
        data=raw["config"]["data"]["name"],
        seed=raw["seed"],
        fingerprint=raw["fingerprint"],
        final={metric: float(value) for metric, value in raw["final"].items()},
        curves={
            metric: {axis: [float(value) for value in values] for axis, values in curve.items()}
            for metric, curve in raw.get("curves", {}).items()
        },
        commit=commit + (" and changes" if environment["dirty"] else ""),
        machine=f"{machine}, torch {versions['torch']}",
        date=raw.get("date", ""),
        wall_s=float(raw["wall_s"]),
        steps=raw["plan"]["steps"],
        file=file.as_posix(),
    )


def _data_sets(runs: Iterable[Run]) -> list[tuple[str, str]]:
    """Scales and data sets, the paper's first."""
    return sorted(
        {(run.scale, run.data) for run in runs}, key=lambda pair: (SCALES.index(pair[0]), pair)
    )


def table_charts(
    table: Table, labels: Mapping[str, str], runs: Sequence[Run], elsewhere: AbstractSet[str]
) -> tuple[Chart, ...]:
    """Training loss and the validation metric, along the epochs, for each data set.

    Without the metrics that figures of the same runs show.
    """
    kind = next(iter(table.tolerance)).rpartition("/")[2]
    charts = []
    for scale, data in _data_sets(runs):
        of_data = [run for run in runs if (run.scale, run.data) == (scale, data)]
        points: dict[str, int] = {}
        for run in of_data:
            for metric, curve in run.curves.items():
                if metric.rpartition("/")[2] == kind and not metric.startswith("train/"):
                    points[metric] = max(points.get(metric, 0), len(curve["value"]))
        # What was measured along the run, not the other splits at its end.
        along = min(points, key=lambda metric: (-points[metric], metric), default=None)
        chosen = [name for name in ("train/loss", along) if name and name not in elsewhere]
        for metric in chosen:
            lines = _lines(of_data, labels, [Series(metric, "")])
            if lines:
                name = "training loss" if metric == "train/loss" else _axis(metric)
                charts.append(
                    Chart(
                        f"{data} ({scale}): {name}",
                        "epoch",
                        name,
                        lines,
                        log_y=kind == "ppl" and metric == along,
                    )
                )
    return tuple(charts)


def _axis(metric: str) -> str:
    kind = metric_of(metric)
    return f"{split_of(metric)} {kind.name}" + (f", {kind.unit}" if kind.unit else "")


def figure_charts(
    figure: Figure, labels: Mapping[str, str], runs: Sequence[Run]
) -> tuple[Chart, ...]:
    """Its series, along the epochs, for each data set."""
    own = [run for run in runs if run.experiment in figure.experiments]
    wanted = {experiment: labels[experiment] for experiment in figure.experiments}
    charts = []
    for scale, data in _data_sets(own):
        of_data = [run for run in own if (run.scale, run.data) == (scale, data)]
        lines = _lines(of_data, wanted, figure.series)
        if lines:
            charts.append(Chart(f"{data} ({scale})", "epoch", figure.y, lines, log_y=figure.log_y))
    return tuple(charts)


def _lines(
    runs: Sequence[Run], labels: Mapping[str, str], series: Sequence[Series]
) -> tuple[Line, ...]:
    """A line for each experiment and metric, over its seeds; a colour for each experiment.

    With several metrics the first is dashed.
    """
    lines = []
    for colour, (experiment, label) in enumerate(labels.items()):
        for number, one in enumerate(series):
            curves = [
                run.curves[one.metric]
                for run in runs
                if run.experiment == experiment and one.metric in run.curves
            ]
            # Seeds of one configuration are measured at the same steps; if not, the first stands.
            curves = [curve for curve in curves if curve["step"] == curves[0]["step"]]
            if not curves or not curves[0]["step"]:
                continue
            values = [[_finite(v, one.exponential) for v in curve["value"]] for curve in curves]
            points = list(zip(*values, strict=True))
            y = tuple(None if None in point else fmean(point) for point in points)
            sd = (
                tuple(0.0 if None in point else stdev(point) for point in points)
                if len(curves) > 1
                else None
            )
            name = f"{label}, {one.label}" if one.label and len(series) > 1 else label
            dashed = len(series) > 1 and number == 0
            lines.append(Line(name, tuple(curves[0]["epoch"]), y, sd, colour, dashed))
    return tuple(lines)


def _finite(value: float, exponential: bool) -> float | None:
    if exponential:
        value = math.exp(value) if value < 700 else math.inf
    return value if math.isfinite(value) else None
