"""The report's charts: curves of records along the epochs, means over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from analysis.charts import Chart, Dash, Line
from analysis.curves import Band, Curve, band, record_curve
from analysis.metrics import axis_label
from analysis.paper import Figure, Series, Table
from engine.records import RunRecord


def table_charts(
    table: Table,
    labels: Mapping[str, str],
    records: Sequence[RunRecord],
    elsewhere: AbstractSet[str],
) -> tuple[Chart, ...]:
    """Training loss and the validation metric along the epochs, for each scale and data set.

    Metrics that a figure of the same runs shows (`elsewhere`) are left out.
    """
    kind = next(iter(table.tolerance)).rpartition("/")[2]
    charts = []
    for (scale, data), own in _by_data_set(records).items():
        along = _evaluated_along(own, kind)
        for metric in [name for name in ("train/loss", along) if name and name not in elsewhere]:
            lines = _lines(own, labels, [Series(metric, "")])
            name = "training loss" if metric == "train/loss" else axis_label(metric)
            log_y = kind == "ppl" and metric == along
            if lines:
                title = f"{data} ({scale}): {name}"
                charts.append(Chart(title, "epoch", name, lines, log_y=log_y))
    return tuple(charts)


def figure_charts(
    figure: Figure, labels: Mapping[str, str], records: Sequence[RunRecord]
) -> tuple[Chart, ...]:
    """A figure's series along the epochs, for each scale and data set."""
    shown = [record for record in records if record.experiment in figure.experiments]
    wanted = {experiment: labels[experiment] for experiment in figure.experiments}
    charts = []
    for (scale, data), own in _by_data_set(shown).items():
        lines = _lines(own, wanted, figure.series)
        if lines:
            charts.append(Chart(f"{data} ({scale})", "epoch", figure.y, lines, log_y=figure.log_y))
    return tuple(charts)


def _by_data_set(records: Iterable[RunRecord]) -> dict[tuple[str, str], list[RunRecord]]:
    """By scale and data set, the paper's first."""
    found: dict[tuple[str, str], list[RunRecord]] = {}
    for record in records:
        found.setdefault((record.scale, record.data), []).append(record)
    return dict(sorted(found.items(), key=lambda item: (item[0][0] != "paper", item[0])))


def _evaluated_along(records: Sequence[RunRecord], kind: str) -> str | None:
    """The metric of this kind that was measured during the runs, not only at their end."""
    points: dict[str, int] = {}
    for record in records:
        for metric, curve in record.curves.items():
            if metric.rpartition("/")[2] == kind and not metric.startswith("train/"):
                points[metric] = max(points.get(metric, 0), len(curve["value"]))
    return min(points, key=lambda metric: (-points[metric], metric), default=None)


def _lines(
    records: Sequence[RunRecord], labels: Mapping[str, str], series: Sequence[Series]
) -> tuple[Line, ...]:
    """A line for each experiment and metric; of several metrics the first is dashed."""
    lines = []
    for experiment, label in labels.items():
        own = [record for record in records if record.experiment == experiment]
        for place, one in enumerate(series):
            found = [record_curve(record, one.metric, one.exponential) for record in own]
            curves = [curve for curve in found if curve is not None]
            if not curves:
                continue
            if len(series) == 1:
                lines.append(_mean(curves).line(label))
            else:
                dash: Dash = "dashed" if place == 0 else "solid"
                lines.append(_mean(curves).line(f"{label}, {one.label}", dash=dash))
    return tuple(lines)


def _mean(curves: Sequence[Curve]) -> Band:
    """Over seeds; the first alone where the others were evaluated at no common place."""
    try:
        return band(curves)
    except ValueError:
        return band(curves[:1])
