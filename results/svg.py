"""Charts as SVG: small, still, and in the page's own colours.

Colours are CSS variables (`--line-0` …), so a chart follows the page from light to dark. Hovering a
point shows its values. The legend is HTML beside the picture: it wraps where there is little room.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape

from results.claims import Chart, Line
from results.names import OPTIMIZERS

WIDTH, HEIGHT = 480, 290
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 12, 44
COLOURS = 8  # lines beyond these repeat the colours, dashed
FEW = 5  # values along an axis: each has a tick
ROOM = 30  # between two ticks
POINTS = 16  # of a line that can be hovered
CROSS = 4  # half the size of the mark of a value that is not finite

# Okabe and Ito's colours, which colour-blind people tell apart, darker on white where they are pale
# and lighter on black; a grey and a violet for what goes beyond them.
CHART_STYLE = """
:root {
  --line-0: #0072b2; --line-1: #d55e00; --line-2: #009e73; --line-3: #b8578f;
  --line-4: #c98700; --line-5: #2e9bd6; --line-6: #6b7280; --line-7: #5b3fa8; }
@media (prefers-color-scheme: dark) { :root {
  --line-0: #4fa8e0; --line-1: #ff8b4d; --line-2: #2fc79b; --line-3: #e08fc0;
  --line-4: #f0b840; --line-5: #9bd8ff; --line-6: #a8b0ba; --line-7: #b6a0f5; } }
figcaption { font-size: .9rem; font-weight: 500; margin-bottom: .3rem; }
.chart > svg { display: block; width: 100%; height: auto; max-width: 40rem; }
.chart .line { fill: none; stroke: var(--own); stroke-width: 2; stroke-linejoin: round; }
.chart .dashed { stroke-dasharray: 5 4; }
.chart .band { fill: var(--own); opacity: .15; stroke: none; }
.chart circle { fill: var(--own); stroke: var(--card); stroke-width: 1; }
.chart circle:hover { stroke: var(--ink); }
.chart .lost { fill: none; stroke: var(--own); stroke-width: 2; }
.chart .grid { stroke: var(--rule); fill: none; } .chart .axis { stroke: var(--soft); fill: none; }
.chart text { fill: var(--soft); font-size: 12.5px; }
@media (max-width: 32rem) { .chart text { font-size: 16px; } }
.chart .end { text-anchor: end; } .chart .mid { text-anchor: middle; }
.legend { list-style: none; margin: .4rem 0 0; padding: 0; display: flex; flex-wrap: wrap;
  gap: .15rem 1rem; font-size: .86rem; }
.key { width: 1.4rem; height: .5rem; margin-right: .4rem; vertical-align: middle; }
"""


@dataclass(frozen=True)
class Axis:
    """From values to places on the picture."""

    low: float
    high: float
    start: float
    end: float
    log: bool
    ticks: tuple[float, ...]

    def at(self, value: float) -> float:
        """Where a value lies."""
        low, high, value = (
            (math.log10(v) for v in (self.low, self.high, value))
            if self.log
            else (self.low, self.high, value)
        )
        return self.start + (value - low) / (high - low) * (self.end - self.start)


def draw(chart: Chart) -> str:
    """A <figure> with title, picture and legend."""
    title = escape(chart.title)
    picture = "\n".join(shapes_of(chart))
    legend = "".join(_entry(line, place) for place, line in places_of(chart.lines))
    return (
        f'<figure class="chart">\n<figcaption>{title}</figcaption>\n'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">\n{picture}\n</svg>\n'
        f'<ul class="legend">{legend}</ul>\n</figure>'
    )


def shapes_of(chart: Chart) -> Iterator[str]:
    """Axes and lines, on a picture of WIDTH × HEIGHT."""
    values = sorted({value for line in chart.lines for value in line.x})
    x = make_axis(values, chart.log_x, (LEFT, WIDTH - RIGHT), tight=True)
    own = _apart(values, x)
    if 2 <= len(own) <= FEW:
        x = replace(x, ticks=own)
    y = make_axis(_heights(chart), chart.log_y, (HEIGHT - BOTTOM, TOP), tight=False)
    yield from _grid(chart, x, y)
    for place, line in places_of(chart.lines):
        yield from _line(line, place, x, y)


def _apart(values: Sequence[float], axis: Axis) -> tuple[float, ...]:
    """Values without those whose numbers would overlap the one before."""
    kept: list[float] = []
    for value in values:
        if not kept or axis.at(value) - axis.at(kept[-1]) >= ROOM:
            kept.append(value)
    return tuple(kept)


def places_of(lines: Sequence[Line]) -> list[tuple[int, Line]]:
    """Lines with the places of their colours: an optimizer has the same one in all charts."""
    names = [*OPTIMIZERS.values()]
    if not any(line.label in names for line in lines):
        return [*enumerate(lines)]
    others = [line.label for line in lines if line.label not in names]
    order = [*names, *others]
    return [(order.index(line.label), line) for line in lines]


def make_axis(
    values: Iterable[float], log: bool, ends: tuple[float, float], *, tight: bool
) -> Axis:
    """An axis for some values, with ticks; room is left around them unless it is tight."""
    known = [value for value in values if not log or value > 0]
    low, high = (min(known), max(known)) if known else (1.0, 10.0)
    if log:
        if low == high:
            low, high = low / 2, high * 2
        room = 1.0 if tight else (high / low) ** 0.05
        low, high = low / room, high * room
    else:
        if low == high:
            low, high = low - 0.5, high + 0.5
        room = 0.0 if tight else 0.05 * (high - low)
        low, high = low - room, high + room
    ticks = log_ticks(low, high) if log else linear_ticks(low, high)
    return Axis(low, high, *ends, log, ticks)


def linear_ticks(low: float, high: float) -> tuple[float, ...]:
    """About five round numbers: multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(step for step in (power, 2 * power, 5 * power, 10 * power) if step >= rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return tuple(round(i * step, 12) for i in range(first, last + 1))


def log_ticks(low: float, high: float) -> tuple[float, ...]:
    """Powers of ten; with 2 and 5 between them, or round numbers, where that would be few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 2, 5)):
        ticks = [float(f"{factor}e{power}") for power in powers for factor in factors]
        inside = tuple(tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9))
        if len(inside) >= 3:
            every = math.ceil(len(inside) / 8)
            return inside[::every]
    return linear_ticks(low, high)


def number(value: float) -> str:
    """Short, as on an axis: 0.001, 1e-5, 25,000."""
    if value and (abs(value) < 1e-3 or abs(value) >= 1e6):
        mantissa, exponent = f"{value:.3e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{value:,.4f}".rstrip("0").rstrip(".")


def _heights(chart: Chart) -> Iterator[float]:
    """All values with their deviations; on a logarithmic axis only what it can show."""
    for line in chart.lines:
        for value, sd in zip(line.y, line.sd or (0.0,) * len(line.y), strict=True):
            if value is not None:
                yield from (value, value + sd)
                if not chart.log_y or value - sd > 0:
                    yield value - sd


def _grid(chart: Chart, x: Axis, y: Axis) -> Iterator[str]:
    for tick in y.ticks:
        at = f"{y.at(tick):.1f}"
        yield f'<path class="grid" d="M{LEFT} {at}H{WIDTH - RIGHT}"/>'
        yield f'<text class="tick end" x="{LEFT - 6}" y="{at}" dy="4">{number(tick)}</text>'
    bottom = HEIGHT - BOTTOM
    for tick in x.ticks:
        at = f"{x.at(tick):.1f}"
        yield f'<path class="axis" d="M{at} {bottom}v4"/>'
        yield f'<text class="tick mid" x="{at}" y="{bottom + 17}">{number(tick)}</text>'
    yield f'<path class="axis" d="M{LEFT} {bottom}H{WIDTH - RIGHT}"/>'
    middle = (LEFT + WIDTH - RIGHT) / 2
    yield f'<text class="name mid" x="{middle:.0f}" y="{HEIGHT - 8}">{escape(chart.x_label)}</text>'
    up = (TOP + bottom) / 2
    yield (
        f'<text class="name mid" transform="translate(12 {up:.0f}) rotate(-90)">'
        f"{escape(chart.y_label)}</text>"
    )


def _line(line: Line, place: int, x: Axis, y: Axis) -> Iterator[str]:
    look = _look(line, place)
    if line.sd is not None:
        for part in _parts(line, y):
            upper = [(x.at(line.x[i]), y.at(_y(line, i) + line.sd[i])) for i in part]
            lower = [(x.at(line.x[i]), y.at(_lowest(line, i, y))) for i in reversed(part)]
            yield f'<path class="band" {look} d="{_path(upper + lower)}Z"/>'
    parts = [[(x.at(line.x[i]), y.at(_y(line, i))) for i in part] for part in _parts(line, y)]
    shape = "".join(_path(points) for points in parts)
    yield f'<path class="{_line_class(line, place)}" {look} d="{shape}"/>'
    every = math.ceil(len(line.x) / POINTS)
    for i, value in enumerate(line.y):
        left = f"{x.at(line.x[i]):.1f}"
        if value is None:
            shape = f"M{left} {TOP}m-{CROSS} 0l{2 * CROSS} {2 * CROSS}m0 -{2 * CROSS}"
            shape += f"l-{2 * CROSS} {2 * CROSS}"
            hint = f"{line.label}: not finite at {number(line.x[i])}"
            yield f'<path class="lost" {look} d="{shape}"><title>{escape(hint)}</title></path>'
        elif (len(line.x) - 1 - i) % every == 0 and _can_show(value, y):
            spread = f" ± {number(line.sd[i])}" if line.sd and line.sd[i] else ""
            hint = f"{line.label}: {number(value)}{spread} at {number(line.x[i])}"
            yield (
                f'<circle {look} cx="{left}" cy="{y.at(value):.1f}" r="2.6">'
                f"<title>{escape(hint)}</title></circle>"
            )


def _parts(line: Line, y: Axis) -> Iterator[list[int]]:
    """Indices of stretches without gaps."""
    part: list[int] = []
    for i, value in enumerate(line.y):
        if value is not None and _can_show(value, y):
            part.append(i)
        elif part:
            yield part
            part = []
    if part:
        yield part


def _can_show(value: float, y: Axis) -> bool:
    return not y.log or value > 0


def _y(line: Line, i: int) -> float:
    value = line.y[i]
    assert value is not None
    return value


def _lowest(line: Line, i: int, y: Axis) -> float:
    """The band's lower end, cut at the bottom of a logarithmic axis."""
    value = _y(line, i) - (line.sd[i] if line.sd else 0.0)
    return max(value, y.low) if y.log else value


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{left:.1f} {top:.1f}" for left, top in points)


def _look(line: Line, place: int) -> str:
    colour = place if line.colour is None else line.colour
    return f'style="--own: var(--line-{colour % COLOURS})"'


def _line_class(line: Line, place: int) -> str:
    repeated = (place if line.colour is None else line.colour) >= COLOURS
    return "line dashed" if line.dashed or repeated else "line"


def entry_shape(line: Line, place: int) -> str:
    """A line's mark in a legend, 22 × 8."""
    return f'<path class="{_line_class(line, place)}" {_look(line, place)} d="M1 4H21"/>'


def _entry(line: Line, place: int) -> str:
    path = entry_shape(line, place)
    key = f'<svg class="key" viewBox="0 0 22 8" aria-hidden="true">{path}</svg>'
    return f"<li>{key}{escape(line.label)}</li>"
