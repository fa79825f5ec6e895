"""A comparison of runs: tables, charts, CSV files and a page of their curves."""

from __future__ import annotations

import csv
import io
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis.charts import DASHES, PALETTE, Chart, Line, optimizer_of
from analysis.charts_draw import draw_png
from analysis.curves import Band, band
from analysis.logged_runs import CompareProblem, Group, LoggedRun, closest
from analysis.metrics import find_metric
from analysis.paper import read_paper
from analysis.tables import text_table
from analysis.templating import render_html
from engine.formats import format_time, slug
from engine.rows import TELEMETRY

DECADES = 2  # that positive values must span for a logarithmic axis
UPDATE_RATIO = "update_ratio"  # norm of the update / norm of the weights
EACH_END = 12  # layers that are drawn where there are many: those that move most, and least


@dataclass(frozen=True)
class Compared:
    """Some curves of the groups: bands, charts and a table."""

    name: str  # a metric's, or "layers"
    title: str
    bands: dict[tuple[str, ...], Band]
    keys: tuple[str, ...]  # what the bands' keys are
    charts: dict[str, Chart]  # by name
    table: list[list[str]]  # the first line is the head

    @property
    def csv(self) -> str:
        """The numbers in full precision; one run has no standard deviation."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*self.keys, "x", "mean", "sd", "n"])
        for key, shown in self.bands.items():
            sds = shown.sd.tolist() if shown.n > 1 else [""] * len(shown.xs)
            for x, y, sd in zip(shown.xs.tolist(), shown.mean.tolist(), sds, strict=True):
                writer.writerow([*key, x, y, sd, shown.n])
        return text.getvalue()


@dataclass(frozen=True)
class Comparison:
    """Everything that is shown of some groups of runs."""

    title: str  # task, scale and data: small numbers must not be taken for the paper's
    metrics: tuple[Compared, ...]
    notes: tuple[str, ...]
    layers: Compared | None = None  # where the runs have optimizer telemetry

    @property
    def parts(self) -> list[Compared]:
        return [*self.metrics, *([self.layers] if self.layers else [])]

    def __str__(self) -> str:
        tables = [text_table(one.table, one.title) for one in self.parts]
        return "\n\n".join([*tables, *(["\n".join(self.notes)] if self.notes else [])])

    def files(self, folder: Path) -> dict[Path, bytes]:
        """A page, a picture of each chart, and the numbers of each metric and of the layers."""
        stem = folder / slug(self.title)
        page = render_html("compare.html.j2", comparison=self)
        found = {Path(f"{stem}.html"): page.encode()}
        for one in self.parts:
            found[Path(f"{stem}-{slug(one.name)}.csv")] = one.csv.encode()
            for name, chart in one.charts.items():
                found[Path(f"{stem}-{slug(name)}.png")] = draw_png(chart)
        return found


def compare(groups: Sequence[Group], metrics: Sequence[str], axis: str, unit: str) -> Comparison:
    """The metrics of groups of runs along an axis; `unit` is what the task counts: "image"."""
    _check_logged(metrics, groups)
    title = title_of(groups[0].runs[0])
    compared = [_compare(groups, metric, axis, unit, title) for metric in dict.fromkeys(metrics)]
    last = max(float(shown.xs[-1]) for one in compared for shown in one.bands.values())
    layers = _layer_movement(groups, axis, _x_unit(axis, unit, last), title)
    return Comparison(title, tuple(compared), tuple(_notes(groups)), layers)


def wandb_request(
    comparison: Comparison, runs: Sequence[LoggedRun], options: Namespace
) -> dict[str, Any]:
    """What a W&B report of the same runs and groups is made of."""
    entity, name = (runs[0].value(f"tracking.{key}") or "" for key in ("entity", "project"))
    return {
        "project": options.from_wandb or f"{entity}/{name}",
        "title": comparison.title,
        "run_ids": [run.wandb_id for run in runs],
        "metrics": [one.name for one in comparison.metrics],
        "axis": options.axis,
        "group_key": runs[0].full_key(options.group_by),
    }


def title_of(run: LoggedRun) -> str:
    """Task, scale and data."""
    return f"{run.value('task')}, scale {run.value('scale')}, {run.value('data')}"


def _check_logged(metrics: Sequence[str], groups: Sequence[Group]) -> None:
    rows = [row for group in groups for run in group.runs for row in run.rows]
    known = list(dict.fromkeys(key for row in rows for key in row if "/" in key))
    if not known:
        raise CompareProblem("these runs have logged nothing yet")
    for metric in metrics:
        if metric not in known:
            raise CompareProblem(f"no run has logged {metric!r}{closest(metric, known)}")


def _notes(groups: Sequence[Group]) -> list[str]:
    """What a reader must know to read the tables correctly."""
    notes = []
    for group in groups:
        recipes = sorted({run.run_id.rpartition("-s")[0] for run in group.runs})
        if len(recipes) > 1:
            notes.append(
                f"{group.name}: ± is over {len(recipes)} recipes, not over seeds alone "
                f"({', '.join(recipes)})"
            )
    if not all(group.is_finished for group in groups):
        notes.append("Unfinished runs are dotted and not included in any mean.")
    return notes


def _compare(groups: Sequence[Group], metric: str, axis: str, unit: str, title: str) -> Compared:
    groups_with = [group for group in groups if group.curves(metric, axis)]
    bands = {group.name: _band(group, metric, axis) for group in groups_with}
    if not bands:
        raise CompareProblem(f"no row has both {metric} and {axis}: choose another --axis")
    title = f"{metric} · {title}"
    chart = _chart(groups_with, bands, metric, axis, unit, title)
    by_key: dict[tuple[str, ...], Band] = {(name,): shown for name, shown in bands.items()}
    table = _table(groups, metric, axis)
    return Compared(metric, title, by_key, ("group",), {metric: chart}, table)


def _band(group: Group, metric: str, axis: str) -> Band:
    try:
        return band(group.curves(metric, axis))
    except ValueError as problem:
        raise CompareProblem(f"{group.name}: {problem}: choose another --axis") from None


def _chart(
    groups: Sequence[Group],
    bands: dict[str, Band],
    metric: str,
    axis: str,
    unit: str,
    title: str,
) -> Chart:
    """The curves of the groups, and the paper's numbers at the paper's own scale."""
    factor, x_label = _x_unit(axis, unit, max(float(shown.xs[-1]) for shown in bands.values()))
    colours = _colours(groups)
    lines, papers = [], []
    for group in groups:
        shown, colour = bands[group.name], colours.get(group.name)
        label = f"{group.name} (n={shown.n})" if shown.n > 1 else group.name
        line = shown.line(label, factor, colour, None if group.is_finished else "dotted")
        lines.append(line)
        number = paper_number(group, metric) if group.is_finished else None
        if number is not None:
            label, ends = f"{group.name}, the paper: {number:g}", (line.x[0], line.x[-1])
            papers.append(Line(label, ends, (number, number), None, colour, "dashdot"))
    known = find_metric(metric)
    named = f"{metric}, {known.unit}" if known and known.unit else metric
    log_y = (known is None or known.unit != "%") and spans_decades([*bands.values()])
    return Chart(title, x_label, named, (*lines, *papers), log_y=log_y)


def _colours(groups: Sequence[Group]) -> dict[str, int]:
    """By the groups' optimizers, if they have several and few groups have the same one."""
    found = {group.name: optimizer_of(group.common("optimizer") or "") for group in groups}
    known = {name: place for name, place in found.items() if place is not None}
    finished = [known[group.name] for group in groups if group.is_finished and group.name in known]
    most = max((finished.count(place) for place in finished), default=0)
    return known if len(set(finished)) > 1 and most <= 2 else {}  # solid and dashed


def spans_decades(bands: Sequence[Band]) -> bool:
    """Whether positive values span so many powers of ten that a linear axis would hide some."""
    values = np.concatenate([shown.mean for shown in bands])
    values = values[np.isfinite(values)]
    return bool(len(values) and values.min() > 0 and values.max() / values.min() >= 10**DECADES)


def _x_unit(axis: str, unit: str, last: float) -> tuple[float, str]:
    """A factor for the values of the axis, and its label with the unit that results."""
    if axis == "wall_s":
        for seconds, name in ((3600.0, "h"), (60.0, "min")):
            if last >= 3 * seconds:
                return 1 / seconds, f"wall time, {name}"
        return 1.0, "wall time, s"
    if axis == "units":
        for size, name in ((1e9, "billions"), (1e6, "millions")):
            if last >= 3 * size:
                return 1 / size, f"{name} of {unit}s seen"
        return 1.0, f"{unit}s seen"
    return 1.0, axis


def paper_number(group: Group, metric: str) -> float | None:
    """What the paper prints for a group that is one of its rows, run in full."""
    experiment = group.common("experiment")
    if experiment is None or group.common("scale") != "paper":
        return None
    rows = [row for table in read_paper() for row in table.rows if row.experiment == experiment]
    return next((row.metrics[metric] for row in rows if metric in row.metrics), None)


def _table(groups: Sequence[Group], metric: str, axis: str) -> list[list[str]]:
    """A line for each group; its best is the mean of its runs' best values, and of their places."""
    lines = [["group", "runs", "final", "best", f"at {axis}", "wall time"]]
    known = find_metric(metric)
    for group in groups:
        curves = group.curves(metric, axis)
        found = [(c, c.best(known.higher_is_better if known else None)) for c in curves]
        bests = [(c, at) for c, at in found if at is not None]
        times = [run.rows[-1]["wall_s"] for run in group.runs if run.rows]
        lines.append(
            [
                group.name,
                str(len(group.runs)),
                _mean([c.ys[-1] for c in curves], with_spread=True),
                _mean([c.ys[at] for c, at in bests]),
                _mean([c.xs[at] for c, at in bests]),
                format_time(float(np.mean(times))) if times else "–",
            ]
        )
    return lines


def _mean(values: Sequence[float], with_spread: bool = False) -> str:
    if not values:
        return "–"
    spread = f" ± {np.std(values, ddof=1):.3g}" if with_spread and len(values) > 1 else ""
    return f"{np.mean(values):.4g}{spread}"


# --- Which layers move? ---------------------------------------------------------------------------


def _layer_movement(
    groups: Sequence[Group], axis: str, x: tuple[float, str], title: str
) -> Compared | None:
    """How far the steps of each layer go, relative to its weights: a chart for each group.

    None where no run has logged telemetry; `x` is the axis's factor and label.
    """
    bands: dict[tuple[str, ...], Band] = {}
    ratios: dict[str, dict[str, Band]] = {}  # by layer and group
    for group in groups:
        columns = [key for run in group.runs for row in run.rows for key in row]
        for column in dict.fromkeys(c for c in columns if c.startswith(TELEMETRY)):
            quantity, _, layer = column.removeprefix(TELEMETRY).partition("/")
            found = bands[group.name, quantity, layer] = _band(group, column, axis)
            if quantity == UPDATE_RATIO:
                ratios.setdefault(layer, {})[group.name] = found
    if not ratios:
        return None
    shown = _most_telling(ratios)
    title = f"which layers move? · {title}"
    if len(shown) < len(ratios):
        title += f" (of {len(ratios)}, the {EACH_END} that move most and the {EACH_END} least)"
    names = list(dict.fromkeys(group for group, *_ in bands))
    table = [["update / weights", *names]]
    for layer in shown:
        own = [ratios[layer].get(name) for name in names]
        table.append([layer, *("–" if b is None else f"{b.mean.mean():.3g}" for b in own)])
    charts = {
        f"layers {name}": _layer_chart(
            {layer: ratios[layer].get(name) for layer in shown}, x, f"{name}: {title}"
        )
        for name in names
    }
    return Compared("layers", title, bands, ("group", "quantity", "layer"), charts, table)


def _most_telling(ratios: Mapping[str, Mapping[str, Band]]) -> list[str]:
    """All layers, in the model's order; of many those at the ends."""
    if len(ratios) <= 2 * EACH_END:
        return list(ratios)
    ranked = sorted(ratios, key=lambda layer: max(b.mean.mean() for b in ratios[layer].values()))
    chosen = {*ranked[:EACH_END], *ranked[-EACH_END:]}
    return [layer for layer in ratios if layer in chosen]


def _layer_chart(bands: Mapping[str, Band | None], x: tuple[float, str], title: str) -> Chart:
    """A line for each layer that the group has."""
    factor, label = x
    lines = []
    for place, (layer, found) in enumerate(bands.items()):
        if found is not None:
            dash = DASHES[place // len(PALETTE) % len(DASHES)]
            lines.append(found.line(layer, factor, place % len(PALETTE), dash))
    is_positive = all(y is not None and y > 0 for line in lines for y in line.y)
    return Chart(title, label, "norm of update / weights", (*lines,), log_y=is_positive)
