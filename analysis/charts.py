"""Charts as data: lines with common axes, and the colours that they are drawn in.

An optimizer has the same colour in every chart. Of several lines of one optimizer the first is
solid and the others are dashed, dotted and so on; in a chart of a single optimizer, whose lines
differ in something else, they have colours of their own that no other optimizer uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Literal, get_args

from analysis.paper import OPTIMIZERS

Dash = Literal["solid", "dashed", "dotted", "dashdot"]


@dataclass(frozen=True)
class Line:
    """Values along an axis; None where there is no finite value.

    The label of an optimizer's line is the optimizer's, perhaps with an addition: "SGD, 90 epochs".
    """

    label: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    sd: tuple[float, ...] | None = None  # half the band's width: a deviation, or of an interval
    colour: int | None = None  # an index of PALETTE; None: by the optimizer
    dash: Dash | None = None  # None: by its place among lines of the same colour


@dataclass(frozen=True)
class Chart:
    """Lines with common axes."""

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Style:
    """How a line is drawn."""

    colour: int
    dash: Dash


DASHES: tuple[Dash, ...] = get_args(Dash)

# Okabe and Ito's colours, which colour-blind people can tell apart, darker where they are pale on
# white and lighter on black; a grey and a violet beyond them. One for each optimizer, then others.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#b8578f", "#c98700", "#2e9bd6", "#6b7280", "#5b3fa8")
DARK_PALETTE = (
    *("#4fa8e0", "#ff8b4d", "#2fc79b", "#e08fc0", "#f0b840", "#9bd8ff", "#a8b0ba", "#b6a0f5"),
)
# By what is drawn: line-0 … line-7, and the page's ink, soft text, rules and background.
LIGHT_THEME = {f"line-{i}": colour for i, colour in enumerate(PALETTE)} | {
    "ink": "#22262b",
    "soft": "#5d656e",
    "rule": "#e2e3e0",
    "card": "#ffffff",
}
DARK_THEME = {f"line-{i}": colour for i, colour in enumerate(DARK_PALETTE)} | {
    "ink": "#e4e6e8",
    "soft": "#a0a8b1",
    "rule": "#30363d",
    "card": "#1c2025",
}


def optimizer_of(label: str) -> int | None:
    """The place of a label's optimizer among all, if it begins with one."""
    names = [name.lower() for name in OPTIMIZERS.values()]
    first = label.lower().partition(",")[0].partition(" ")[0]
    return names.index(first) if first in names else None


def styles_of(lines: Sequence[Line]) -> list[Style]:
    """A style for each line."""
    optimizers = [optimizer_of(line.label) for line in lines]
    of_one = len(set(optimizers)) == 1  # the lines differ in something else
    others = cycle(range(len(OPTIMIZERS), len(PALETTE)))
    styles: dict[int, Style] = {}
    # The line that is called by the optimizer's name alone is the solid one.
    for i in sorted(range(len(lines)), key=lambda i: lines[i].label not in OPTIMIZERS.values()):
        colour, optimizer = lines[i].colour, optimizers[i]
        if colour is None:
            colour = next(others) if optimizer is None or (of_one and styles) else optimizer
        before = sum(style.colour == colour for style in styles.values())
        styles[i] = Style(colour, lines[i].dash or DASHES[before % len(DASHES)])
    return [styles[i] for i in range(len(lines))]


def css_variables(theme: dict[str, str]) -> str:
    """A theme as declarations of CSS variables."""
    return " ".join(f"--{role}: {colour};" for role, colour in theme.items())
