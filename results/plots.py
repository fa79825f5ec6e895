"""Pictures of curves, and the page that holds them: PNG by matplotlib, HTML without a network."""

from __future__ import annotations

import base64
import csv
import html
import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import ticker
from matplotlib.figure import Figure as Canvas

from results.curves import Array, Band, Curve

# Okabe and Ito's colours, which colour-blind people tell apart; yellow, pale on white, is left out.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")  # for more groups than colours
UNITS = {"top1": "%", "top5": "%", "wer": "%", "cer": "%", "loss": "nats", "ppl": "perplexity"}
DECADES = 2  # that positive values must span for a logarithmic axis
FEW = 40  # points of a line that are marked one by one, of longer ones every tenth of the line
LIGHT = {"ink": "#1f2328", "faint": "#d8dee4", "paper": "#ffffff"}
DARK = {"ink": "#e6edf3", "faint": "#333b44", "paper": "#161b22"}


@dataclass(frozen=True, eq=False)
class Figure:
    """What a picture shows: `groups` in the order of their colours.

    `references` are the paper's numbers by group. `unfinished` groups are dotted. `unit` is what
    the task counts: "image", "token".
    """

    title: str
    groups: Mapping[str, Band | Curve]
    unit: str = "unit"
    references: Mapping[str, float] | None = None
    unfinished: Collection[str] = ()


def draw(figure: Figure, path: Path) -> None:
    """Writes the picture as a PNG file, whole or not at all."""
    data = png(figure)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(data)
    temporary.replace(path)


@lru_cache(maxsize=16)  # the file and the page show the same picture
def png(figure: Figure, dark: bool = False) -> bytes:
    """The picture as the bytes of a PNG file."""
    look = DARK if dark else LIGHT
    canvas = Canvas(figsize=(7.6, 4.4), dpi=150, layout="constrained", facecolor=look["paper"])
    axes = canvas.subplots()
    _draw_lines(axes, figure)
    _dress(axes, figure, look)
    buffer = io.BytesIO()
    canvas.savefig(buffer, format="png")
    return buffer.getvalue()


def page(title: str, figures: Sequence[Figure], tables: Sequence[str], notes: Sequence[str]) -> str:
    """A self-contained HTML page: each picture in a light and a dark version above its table."""
    parts = [f"<h1>{html.escape(title)}</h1>"]
    for figure, table in zip(figures, tables, strict=True):
        light, dark = (_data_uri(png(figure, dark=is_dark)) for is_dark in (False, True))
        parts.append(
            f"<figure><picture>"
            f'<source media="(prefers-color-scheme: dark)" srcset="{dark}">'
            f'<img alt="{html.escape(figure.title)}" src="{light}"></picture></figure>{table}'
        )
    parts += [f"<p>{html.escape(note)}</p>" for note in notes]
    return PAGE.format(title=html.escape(title), body="\n".join(parts))


def html_table(lines: Sequence[Sequence[str]]) -> str:
    """A table of texts; the first line is its head."""
    head, *body = lines
    rows = ["".join(f"<th>{html.escape(cell)}</th>" for cell in head)]
    rows += ["".join(f"<td>{html.escape(cell)}</td>" for cell in line) for line in body]
    return "<table>" + "".join(f"<tr>{row}</tr>" for row in rows) + "</table>"


def text_table(lines: Sequence[Sequence[str]]) -> str:
    """The same for a terminal."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = [[cell.ljust(w) for cell, w in zip(line, widths, strict=True)] for line in lines]
    return "\n".join("  " + "   ".join(line).rstrip() for line in padded)


def csv_of(figure: Figure) -> str:
    """The numbers of a figure in full precision; one run has no standard deviation."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["group", "x", "mean", "sd", "n"])
    for name, shown in figure.groups.items():
        ys = _ys(shown).tolist()
        sds = shown.sd.tolist() if isinstance(shown, Band) and shown.n > 1 else [""] * len(ys)
        n = shown.n if isinstance(shown, Band) else 1
        for x, y, sd in zip(shown.xs.tolist(), ys, sds, strict=True):
            writer.writerow([name, x, y, sd, n])
    return text.getvalue()


def readable_time(seconds: float) -> str:
    """A duration in the unit that a person would choose."""
    for size, unit in ((3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def _draw_lines(axes: Any, figure: Figure) -> None:
    factor, _ = _x_unit(figure)
    references = figure.references or {}
    for number, (name, shown) in enumerate(figure.groups.items()):
        xs, ys = shown.xs * factor, _ys(shown)
        colour = COLOURS[number % len(COLOURS)]
        label = f"{name} (n={shown.n})" if isinstance(shown, Band) and shown.n > 1 else name
        axes.plot(
            xs,
            ys,
            color=colour,
            label=label,
            linewidth=1.8,
            linestyle=":" if name in figure.unfinished else "-",
            marker=MARKERS[number // len(COLOURS) % len(MARKERS)],
            markevery=1 if len(xs) <= FEW else len(xs) // 10,
            markersize=4,
        )
        if isinstance(shown, Band) and shown.n > 1:
            axes.fill_between(
                xs, ys - shown.sd, ys + shown.sd, color=colour, alpha=0.2, linewidth=0
            )
        if name in references:
            axes.axhline(
                references[name],
                color=colour,
                linestyle="--",
                linewidth=1.2,
                label=f"{name}, the paper: {references[name]:g}",
            )


def _dress(axes: Any, figure: Figure, look: Mapping[str, str]) -> None:
    metric = next(iter(figure.groups.values())).metric
    unit = UNITS.get(metric.split("/")[-1])
    axes.set_facecolor(look["paper"])
    axes.set_title(figure.title, loc="left", color=look["ink"], fontsize=11)
    axes.set_xlabel(_x_unit(figure)[1], color=look["ink"])
    axes.set_ylabel(f"{metric} ({unit})" if unit else metric, color=look["ink"])
    if unit != "%" and spans_decades([_ys(shown) for shown in figure.groups.values()]):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
    axes.xaxis.set_major_locator(ticker.MaxNLocator(nbins=8, integer=_is_whole(figure)))
    axes.grid(color=look["faint"], linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", colors=look["ink"], length=0)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(look["faint"])
    legend = axes.legend(frameon=True, fontsize=9, labelcolor=look["ink"], loc="best")
    legend.get_frame().set(facecolor=look["paper"], edgecolor="none", alpha=0.8)


def spans_decades(values: Sequence[Array]) -> bool:
    """Whether positive values span so many powers of ten that a linear axis would hide some."""
    finite = np.concatenate(values)
    finite = finite[np.isfinite(finite)]
    return bool(len(finite) and finite.min() > 0 and finite.max() / finite.min() >= 10**DECADES)


def _ys(shown: Band | Curve) -> Array:
    return shown.mean if isinstance(shown, Band) else shown.ys


def _x_unit(figure: Figure) -> tuple[float, str]:
    """A factor for the numbers of the axis, and its label with the unit that results."""
    axis = next(iter(figure.groups.values())).axis
    last = max(float(shown.xs[-1]) for shown in figure.groups.values())
    if axis == "wall_s":
        for seconds, name in ((3600.0, "h"), (60.0, "min")):
            if last >= 3 * seconds:
                return 1 / seconds, f"wall time ({name})"
        return 1.0, "wall time (s)"
    if axis == "units":
        for size, name in ((1e9, "billions"), (1e6, "millions")):
            if last >= 3 * size:
                return 1 / size, f"{figure.unit}s seen ({name})"
        return 1.0, f"{figure.unit}s seen"
    return 1.0, axis


def _is_whole(figure: Figure) -> bool:
    """Whether the numbers at the ticks of the x axis can only be integers."""
    return next(iter(figure.groups.values())).axis == "step"


def _data_uri(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --ink: #1f2328; --faint: #d8dee4; --paper: #ffffff; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: #e6edf3; --faint: #333b44; --paper: #161b22; }}
}}
body {{ max-width: 60rem; margin: 2rem auto; padding: 0 1rem; background: var(--paper);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }}
h1 {{ font-size: 1.4rem; }}
figure {{ margin: 2rem 0 0.5rem; }}
img {{ max-width: 100%; height: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.9rem; }}
th, td {{ text-align: left; padding: 0.3rem 1rem 0.3rem 0; border-bottom: 1px solid var(--faint); }}
</style>
</head>
<body>
{body}
</body>
</html>
"""
