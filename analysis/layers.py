"""Which layers move? Optimizer telemetry of groups of runs: a chart for each, and one table."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.charts import DASHES, PALETTE, Chart
from analysis.curves import Band, band
from analysis.logged_runs import CompareProblem, Group
from engine.rows import TELEMETRY

SHOWN = "update_ratio"  # norm of the update / norm of the weights
EACH_END = 12  # layers that are drawn where there are many: those that move most, and least

# Bands by quantity, layer and group of runs.
Bands = dict[tuple[str, str, str], Band]


@dataclass(frozen=True)
class LayerMovement:
    """How far the steps of each layer go, relative to its weights."""

    title: str
    charts: tuple[Chart, ...]  # one for each group of runs, a line for each layer
    table: list[list[str]]  # means over the runs; the first line is the head
    bands: Bands

    @property
    def csv(self) -> str:
        """All quantities of all layers in full precision."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["group", "quantity", "layer", "x", "mean", "sd", "n"])
        for (quantity, layer, group), found in self.bands.items():
            sds = found.sd.tolist() if found.n > 1 else [""] * len(found.xs)
            for x, y, sd in zip(found.xs.tolist(), found.mean.tolist(), sds, strict=True):
                writer.writerow([group, quantity, layer, x, y, sd, found.n])
        return text.getvalue()


def layer_movement(
    groups: Sequence[Group], axis: str, x: tuple[float, str], title: str
) -> LayerMovement | None:
    """None where no run has logged telemetry; `x` is the axis's factor and label."""
    bands = _bands(groups, axis)
    layers = list(dict.fromkeys(layer for quantity, layer, _ in bands if quantity == SHOWN))
    if not layers:
        return None
    names = list(dict.fromkeys(group for _, _, group in bands))
    shown = _most_telling(layers, bands)
    title = f"which layers move? · {title}"
    if len(shown) < len(layers):
        title += f" (of {len(layers)}, the {EACH_END} that move most and the {EACH_END} least)"
    charts = tuple(_chart(name, shown, bands, x, title) for name in names)
    lines = [["update / weights", *names]]
    for layer in shown:
        found = [bands.get((SHOWN, layer, name)) for name in names]
        lines.append([layer, *("–" if b is None else f"{_mean(b):.3g}" for b in found)])
    return LayerMovement(title, charts, lines, bands)


def _bands(groups: Sequence[Group], axis: str) -> Bands:
    bands: Bands = {}
    for group in groups:
        columns = [key for run in group.runs for row in run.rows for key in row]
        for column in dict.fromkeys(c for c in columns if c.startswith(TELEMETRY)):
            quantity, _, layer = column.removeprefix(TELEMETRY).partition("/")
            try:
                bands[quantity, layer, group.name] = band(group.curves(column, axis))
            except ValueError as problem:
                raise CompareProblem(f"{group.name}: {problem}: choose another --axis") from None
    return bands


def _mean(found: Band) -> float:
    return float(np.mean(found.mean))


def _most_telling(layers: list[str], bands: Bands) -> list[str]:
    """All layers, in the model's order; of many those at the ends."""
    if len(layers) <= 2 * EACH_END:
        return layers
    means = {
        layer: max(_mean(b) for (q, name, _), b in bands.items() if (q, name) == (SHOWN, layer))
        for layer in layers
    }
    ranked = sorted(layers, key=lambda layer: means[layer])
    chosen = {*ranked[:EACH_END], *ranked[-EACH_END:]}
    return [layer for layer in layers if layer in chosen]


def _chart(
    group: str, layers: Sequence[str], bands: Bands, x: tuple[float, str], title: str
) -> Chart:
    factor, label = x
    lines = []
    for place, layer in enumerate(layers):
        if (found := bands.get((SHOWN, layer, group))) is not None:
            dash = DASHES[place // len(PALETTE) % len(DASHES)]
            lines.append(found.line(layer, factor, place % len(PALETTE), dash))
    is_positive = all(y is not None and y > 0 for line in lines for y in line.y)
    return Chart(
        f"{group}: {title}", label, "norm of update / weights", (*lines,), log_y=is_positive
    )
