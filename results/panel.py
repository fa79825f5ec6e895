"""All charts of a study as one picture, an SVG file that stands alone: for pages in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from results.claims import Chart, Line
from results.svg import CHART_STYLE, HEIGHT, WIDTH, entry_shape, places_of, shapes_of

COLUMNS = 2
TITLE, LEGEND, GAP = 26, 34, 18  # heights of a title and of the legend, room between
KEY = 30  # the width of a line's mark in the legend
LETTER = 8.2  # about the width of one in the legend

STYLE = """
:root { --card: #ffffff; --ink: #22262b; --soft: #5d656e; --rule: #e2e3e0; }
@media (prefers-color-scheme: dark) { :root {
  --card: #15181c; --ink: #e4e6e8; --soft: #a0a8b1; --rule: #30363d; } }
svg { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
.card { fill: var(--card); }
.chart .title { fill: var(--ink); font-size: 14.5px; font-weight: 500; }
.chart .label { fill: var(--ink); font-size: 13.5px; }
"""


def draw_panel(charts: Sequence[Chart]) -> str:
    """Charts side by side below one legend."""
    columns = min(COLUMNS, len(charts))
    rows = -(-len(charts) // columns)
    cell = TITLE + HEIGHT + GAP
    width, height = columns * (WIDTH + GAP) + GAP, LEGEND + rows * cell
    parts = [*_legend(charts)]
    for i, chart in enumerate(charts):
        left = GAP + i % columns * (WIDTH + GAP)
        top = LEGEND + i // columns * cell
        shapes = "\n".join(shapes_of(chart))
        parts.append(
            f'<g transform="translate({left} {top})">\n'
            f'<text class="title" x="4" y="16">{escape(chart.title)}</text>\n'
            f'<g transform="translate(0 {TITLE})">\n{shapes}\n</g></g>'
        )
    inside = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}">\n<style>{CHART_STYLE}{STYLE}</style>\n'
        f'<rect class="card" width="{width}" height="{height}"/>\n'
        f'<g class="chart">\n{inside}\n</g>\n</svg>\n'
    )


def _legend(charts: Sequence[Chart]) -> Iterator[str]:
    """Every label once, in the order of its colour."""
    known: dict[str, tuple[int, Line]] = {}
    for chart in charts:
        for place, line in places_of(chart.lines):
            known.setdefault(line.label, (place, line))
    left = float(GAP)
    for label, (place, line) in sorted(known.items(), key=lambda item: item[1][0]):
        yield f'<g transform="translate({left:.0f} 16)">{entry_shape(line, place)}</g>'
        yield f'<text class="label" x="{left + KEY:.0f}" y="25">{escape(label)}</text>'
        left += KEY + LETTER * len(label) + GAP
