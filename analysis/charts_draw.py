"""The one chart drawer: matplotlib draws, as SVG for pages and as PNG for slides.

An SVG chart has its text as text, colours as CSS variables (`--line-0`, `--ink` …), so that it
follows the page from light to dark, and values that show when a point is hovered. Coordinates are
rounded to a tenth of a pixel; nothing depends on the time, a random number or a path.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import groupby
from typing import Any
from xml.etree import ElementTree

from analysis.charts import (
    DARK_THEME,
    LIGHT_THEME,
    Chart,
    Line,
    Style,
    css_variables,
    styles_of,
)
from engine.formats import format_number

WIDTH, HEIGHT = 480, 290  # of one chart, in pixels
LEFT, RIGHT, TOP, BOTTOM = 68, 24, 12, 44  # around its axes
TITLE, LEGEND, GAP = 26, 34, 18  # heights of a title and of a legend's row, space between charts
LEGEND_ROW = 20  # height of each further row
ENTRY, LETTER = 44, 7.2  # widths in a legend: of a line with the space around it, of a letter
COLUMNS = 2  # of a panel
FEW = 5  # values along an axis that have a tick each
APART = 30  # pixels between two such ticks
POINTS = 16  # of a line that show their values
FONT_SIZE = 12.5  # pixels, of all but titles
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"

# Stand-ins for the colours of a theme, replaced by CSS variables in the text of an SVG picture.
STAND_INS = {role: f"#0000{i:02x}" for i, role in enumerate(LIGHT_THEME, start=0x10)}
SETTINGS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "novograd",
    "text.parse_math": False,  # a name with dollar signs is not a formula
    "axes.unicode_minus": False,
    "font.size": FONT_SIZE,
}


def draw_svg(chart: Chart) -> str:
    """A chart without title and legend, to stand in a page that has them and the theme."""
    with _settings():
        figure = _figure(WIDTH, HEIGHT)
        hints = _draw(figure, chart, (LEFT, TOP), STAND_INS)
        return _svg(figure, hints, f'role="img" aria-label="{_attribute(chart.title)}"')


def draw_panel(charts: Sequence[Chart]) -> str:
    """Charts side by side below one legend: an SVG file that stands alone, light and dark."""
    columns = min(COLUMNS, len(charts))
    rows = -(-len(charts) // columns)
    cell = TITLE + HEIGHT + GAP
    width = columns * (WIDTH + GAP) + GAP
    entries = _legend_entries(charts)
    side_by_side = _fitting(entries, width - 2 * GAP)
    legend = LEGEND + LEGEND_ROW * (-(-len(entries) // side_by_side) - 1)
    height = legend + rows * cell
    with _settings():
        figure = _figure(width, height)
        hints: list[list[str]] = []
        for i, chart in enumerate(charts):
            left, top = GAP + i % columns * (WIDTH + GAP), legend + i // columns * cell
            _title(figure, chart.title, (left + 4, top + 16), STAND_INS)
            hints += _draw(figure, chart, (left + LEFT, top + TITLE + TOP), STAND_INS)
        _legend(figure, entries, (GAP / width, 1 - 8 / height), STAND_INS, side_by_side)
        style = (
            f":root {{ {css_variables(LIGHT_THEME)} }} @media (prefers-color-scheme: dark) "
            f"{{ :root {{ {css_variables(DARK_THEME)} }} }} text {{ font-family: {FONT}; }}"
        )
        size = f'width="{width}" height="{height}"'
        background = '<rect width="100%" height="100%" style="fill: var(--card)"/>'
        return _svg(figure, hints, size, f"<style>{style}</style>\n{background}") + "\n"


def draw_png(chart: Chart, theme: Mapping[str, str] = LIGHT_THEME) -> bytes:
    """A chart with its title and legend as a PNG file, at twice the size."""
    rows = len(chart.lines)
    width, height = 640, TITLE + HEIGHT + GAP + LEGEND_ROW * rows
    with _settings():
        figure = _figure(width, height, theme["card"])
        _title(figure, chart.title, (12, 20), theme)
        _draw(figure, chart, (LEFT, TITLE + TOP), theme, width - LEFT - RIGHT)
        at = (0.02, (LEGEND_ROW * rows + GAP) / height)
        _legend(figure, _legend_entries([chart]), at, theme, columns=1)
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=144, metadata={"Software": None})
    return file.getvalue()


# --- What is drawn --------------------------------------------------------------------------------


def _settings() -> AbstractContextManager[Any]:
    import matplotlib as mpl  # here and below: a command that draws nothing does not wait for it

    return mpl.rc_context(SETTINGS)


def _figure(width: float, height: float, background: str = "none") -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width / 72, height / 72), dpi=72, facecolor=background)


def _draw(
    figure: Any,
    chart: Chart,
    corner: tuple[float, float],
    theme: Mapping[str, str],
    width: float = WIDTH - LEFT - RIGHT,
) -> list[list[str]]:
    """Axes and lines with the upper left corner there; returns what to show of marked points."""
    whole_width, whole_height = figure.get_size_inches() * 72
    height = HEIGHT - TOP - BOTTOM
    place = (
        corner[0] / whole_width,
        1 - (corner[1] + height) / whole_height,
        width / whole_width,
        height / whole_height,
    )
    axes = figure.add_axes(place, facecolor="none")
    _limits(axes, chart)
    _ticks(axes, chart, width)
    _dress(axes, chart, theme)
    hints = []
    for line, style in zip(chart.lines, styles_of(chart.lines), strict=True):
        hints += list(_line(axes, line, style, chart, theme))
    return hints


def _limits(axes: Any, chart: Chart) -> None:
    """The x axis just as long as the lines, the y axis a little longer."""
    xs = [x for line in chart.lines for x in line.x if x > 0 or not chart.log_x]
    ys = [y for line in chart.lines for y in _heights(line) if y > 0 or not chart.log_y]
    axes.set_xscale("log" if chart.log_x else "linear")
    axes.set_yscale("log" if chart.log_y else "linear")
    axes.set_xlim(*_extent(xs, chart.log_x, 0.0))
    axes.set_ylim(*_extent(ys, chart.log_y, 0.05))


def _heights(line: Line) -> Iterator[float]:
    for y, sd in zip(line.y, line.sd or (0.0,) * len(line.y), strict=True):
        if y is not None:
            yield from (y - sd, y, y + sd)


def _extent(values: Sequence[float], log: bool, margin: float) -> tuple[float, float]:
    low, high = (min(values), max(values)) if values else (1.0, 10.0)
    if low == high:
        return (low / 2, high * 2) if log else (low - 0.5, high + 0.5)
    if log:
        factor = (high / low) ** margin
        return low / factor, high * factor
    return low - margin * (high - low), high + margin * (high - low)


def _ticks(axes: Any, chart: Chart, width: float) -> None:
    from matplotlib import ticker

    for axis, log in ((axes.xaxis, chart.log_x), (axes.yaxis, chart.log_y)):
        axis.set_major_locator(_log_ticks(axis) if log else ticker.MaxNLocator(6, steps=[1, 2, 5]))
        axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: tick_label(value)))
        axis.set_minor_locator(ticker.NullLocator())
    kept: list[float] = []
    to_pixels = axes.transData.transform
    for value in sorted({x for line in chart.lines for x in line.x if x > 0 or not chart.log_x}):
        if not kept or to_pixels((value, 1))[0] - to_pixels((kept[-1], 1))[0] >= APART:
            kept.append(value)
    if 1 <= len(kept) <= FEW:
        axes.xaxis.set_major_locator(ticker.FixedLocator(kept))


def _log_ticks(axis: Any) -> Any:
    from matplotlib import ticker

    low, high = axis.get_view_interval()
    decades = math.log10(high / low)
    if decades < 0.7:
        return ticker.MaxNLocator(5, steps=[1, 2, 5])
    return ticker.LogLocator(subs=(1.0, 2.0, 5.0) if decades < 2.5 else (1.0,), numticks=8)


def tick_label(value: float) -> str:
    """Short, as on an axis: 0.001, 1e-5, 25,000."""
    return re.sub(r"e([+-])0*", r"e\1", format_number(float(f"{value:.4g}"))).replace("e+", "e")


def _dress(axes: Any, chart: Chart, theme: Mapping[str, str]) -> None:
    axes.grid(axis="y", color=theme["rule"], linewidth=1, clip_on=False)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", left=False, labelcolor=theme["soft"], pad=6)
    axes.tick_params(axis="x", bottom=False, pad=6)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(theme["soft"])
    axes.xaxis.set_label_coords(0.5, -37 / (HEIGHT - TOP - BOTTOM))
    axes.set_xlabel(printable(chart.x_label), color=theme["soft"], va="baseline")
    box = axes.get_window_extent()
    axes.yaxis.set_label_coords(-(LEFT - 14) / box.width, 0.5)
    axes.set_ylabel(printable(chart.y_label), color=theme["soft"], va="baseline")


def _line(
    axes: Any, line: Line, style: Style, chart: Chart, theme: Mapping[str, str]
) -> Iterator[list[str]]:
    """Band, line, points with values, and crosses at the top where a value is not finite."""
    colour = theme[f"line-{style.colour}"]
    shown = [y is not None and (y > 0 or not chart.log_y) for y in line.y]
    low = axes.get_ylim()[0]
    for visible, part in groupby(range(len(shown)), key=shown.__getitem__):
        places = list(part)
        if not visible:
            continue
        xs, ys = [line.x[i] for i in places], [line.y[i] or 0.0 for i in places]
        if line.sd is not None:
            sds = [line.sd[i] for i in places]
            upper = [y + sd for y, sd in zip(ys, sds, strict=True)]
            lower = [max(y - sd, low) for y, sd in zip(ys, sds, strict=True)]
            if len(xs) == 1:  # a bar rather than a band
                bar = {"color": colour, "alpha": 0.3, "linewidth": 6}
                axes.plot([xs[0], xs[0]], [*lower, *upper], clip_on=False, **bar)
            else:
                band = {"facecolor": colour, "alpha": 0.15, "linewidth": 0}
                axes.fill([*xs, *xs[::-1]], [*upper, *lower[::-1]], clip_on=False, **band)
        axes.plot(xs, ys, color=colour, linestyle=style.dash, linewidth=2, clip_on=False)
    every = math.ceil(len(line.x) / POINTS)
    marked = [i for i, ok in enumerate(shown) if ok and (len(line.x) - 1 - i) % every == 0]
    lost = [i for i, y in enumerate(line.y) if y is None]
    if marked:
        looks = {"marker": "o", "markersize": 5, "markeredgecolor": theme["card"]}
        ys = [line.y[i] or 0.0 for i in marked]
        axes.plot(
            [line.x[i] for i in marked], ys, linestyle="", color=colour, clip_on=False, **looks
        )
        yield [_hint(line, i) for i in marked]
    if lost:
        top = axes.get_xaxis_transform()
        xs = [line.x[i] for i in lost]
        looks = {"marker": "x", "markersize": 8, "markeredgewidth": 2, "transform": top}
        axes.plot(xs, [0.98] * len(xs), linestyle="", color=colour, clip_on=False, **looks)
        yield [_hint(line, i) for i in lost]


def _hint(line: Line, i: int) -> str:
    y, at = line.y[i], tick_label(line.x[i])
    if y is None:
        return f"{line.label}: not finite at {at}"
    spread = f" ± {tick_label(line.sd[i])}" if line.sd and line.sd[i] else ""
    return f"{line.label}: {tick_label(y)}{spread} at {at}"


def _title(figure: Any, text: str, at: tuple[float, float], theme: Mapping[str, str]) -> None:
    width, height = figure.get_size_inches() * 72
    where = at[0] / width, 1 - at[1] / height
    figure.text(*where, printable(text), color=theme["ink"], fontsize=14.5)


def _legend_entries(charts: Sequence[Chart]) -> list[tuple[str, Style]]:
    """Every label once, in the order of the colours."""
    known: dict[str, Style] = {}
    for chart in charts:
        for line, style in zip(chart.lines, styles_of(chart.lines), strict=True):
            known.setdefault(printable(line.label), style)
    return sorted(known.items(), key=lambda item: item[1].colour)


def _fitting(entries: Sequence[tuple[str, Style]], width: float) -> int:
    """How many of them a legend of that width has side by side."""
    longest = max((len(label) for label, _ in entries), default=0)
    return max(1, int(width / (ENTRY + LETTER * longest)))


def _legend(
    figure: Any,
    entries: Sequence[tuple[str, Style]],
    at: tuple[float, float],
    theme: Mapping[str, str],
    columns: int,
) -> None:
    from matplotlib.lines import Line2D

    figure.legend(
        [
            Line2D([], [], color=theme[f"line-{s.colour}"], linestyle=s.dash, linewidth=2)
            for _, s in entries
        ],
        [f" {label}" if label.startswith("_") else label for label, _ in entries],
        loc="upper left",
        bbox_to_anchor=at,
        ncols=columns,
        frameon=False,
        borderpad=0,
        borderaxespad=0,
        labelcolor=theme["ink"],
    )


def printable(text: str) -> str:
    """On one line, without control characters, which XML does not allow."""
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split()))


# --- A small SVG ----------------------------------------------------------------------------------

SVG = "{http://www.w3.org/2000/svg}"
VARIABLES = {colour: f"var(--{role})" for role, colour in STAND_INS.items()}


def _svg(figure: Any, hints: list[list[str]], attributes: str, head: str = "") -> str:
    """What matplotlib draws, without its groups, identifiers, metadata and superfluous digits."""
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata={"Date": None}, transparent=True)
    root = ElementTree.fromstring(file.getvalue())
    values = iter(hints)
    shapes = [shape for group in root.iter(f"{SVG}g") for shape in _shapes(group, values)]
    assert next(values, None) is None, "a line of points was not drawn"
    body = "\n".join([head, *shapes] if head else shapes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{root.get("viewBox")}" '
        f'font-size="{FONT_SIZE}" {attributes}>\n{body}\n</svg>'
    )


def _shapes(group: Any, hints: Iterator[list[str]]) -> Iterator[str]:
    """The elements right below a group, smaller."""
    points = group.findall(f"{SVG}use")
    if points:
        for point, hint in zip(points, next(hints), strict=True):
            yield _point(point, hint)
    for path in group.findall(f"{SVG}path"):
        style = _style(path)
        if "var(" in style:  # else it is a transparent background
            yield f'<path d="{_short(path.get("d", ""))}" {style}/>'
    for text in group.findall(f"{SVG}text"):
        yield _text(text)


def _point(element: Any, hint: str) -> str:
    """A marker: a circle, or a cross, which has no fill."""
    style = _style(element)
    x, y = (_round(element.get(key)) for key in ("x", "y"))
    title = f"<title>{_attribute(hint)}</title>"
    if "fill" in style:
        return f'<circle cx="{x}" cy="{y}" r="2.6" {style}>{title}</circle>'
    return f'<path d="M{x} {y}m-4-4l8 8m0-8l-8 8" {style}>{title}</path>'


def _text(element: Any) -> str:
    turned = re.search(r"rotate\((-90)", element.get("transform", ""))
    x, y = (_round(element.get(key)) for key in ("x", "y"))
    place = f'transform="translate({x} {y}) rotate(-90)"' if turned else f'x="{x}" y="{y}"'
    found = _properties(element)
    anchor = f' text-anchor="{found["text-anchor"]}"' if "text-anchor" in found else ""
    large = found["font-size"] != f"{FONT_SIZE}px"
    kept = {k: found[k] for k in ("fill", *(["font-size"] if large else [])) if k in found}
    return f"<text {place}{anchor} {_written(kept)}>{_attribute(element.text or '')}</text>"


def _style(element: Any) -> str:
    found = _properties(element)
    found.pop("stroke-linecap", None)
    found["stroke-linejoin"] = "round" if found.get("stroke-width") == "2" else ""
    return _written({key: value for key, value in found.items() if value})


def _properties(element: Any) -> dict[str, str]:
    parts = [part.split(": ", 1) for part in element.get("style", "").split("; ") if part]
    return {key: VARIABLES.get(value, value) for key, value in parts}


def _written(properties: Mapping[str, str]) -> str:
    return f'style="{"; ".join(f"{k}: {v}" for k, v in properties.items())}"'


def _short(path: str) -> str:
    """`M 58.00001 3 L 5 6 z` as `M58 3L5 6z`."""
    rounded = re.sub(r"-?\d+(\.\d+)?(e-?\d+)?", lambda m: _round(m[0]), path)
    return re.sub(r"\s*([A-Za-z])\s*", r"\1", rounded).strip()


def _round(number: str) -> str:
    return f"{round(float(number), 1) + 0.0:g}"  # without a negative zero


def _attribute(text: str) -> str:
    return printable(text).replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
