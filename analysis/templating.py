"""Pages from `templates/*.j2`: every value is escaped, unless it is Markdown or Markup already."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from analysis.charts import DARK_THEME, LIGHT_THEME, css_variables, styles_of
from analysis.charts_draw import FONT, draw_svg
from engine.formats import format_number

TEMPLATES = Path(__file__).parent / "templates"
# Emphasis, code, links, table cells, maths and struck text; an underscore within a word is none.
SPECIAL = re.compile(r"[\\`*\[\]|$~]|(?<![^\W_])_|_(?![^\W_])")
AT_THE_START = re.compile(r"^(\d*)([#+=.)-])(?=[#+=\s-]|$)")  # headings, lists, rules


class Markdown(str):
    """Text that is Markdown: inserted as it is."""

    __slots__ = ()


def escape(value: Any) -> Markdown:
    """Any value as text that Markdown shows as it stands, also within a table."""
    if isinstance(value, Markdown):
        return value
    text = " ".join(str(value).split())
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = SPECIAL.sub(lambda found: f"\\{found[0]}", text)
    return Markdown(AT_THE_START.sub(r"\1\\\2", text))


def prose(text: str) -> Markdown:
    """Markdown of our own, on one line."""
    return Markdown(" ".join(text.split()))


def markdown_table(head: Sequence[Any], rows: Iterable[Sequence[Any]]) -> Markdown:
    """A table with escaped cells."""
    lines = [head, [Markdown("---")] * len(head), *rows]
    cells = [[re.sub(r"(?<!\\)\|", r"\|", escape(cell)) for cell in line] for line in lines]
    return Markdown("\n".join(f"| {' | '.join(line)} |" for line in cells))


def size(count: float) -> str:
    """Bytes with a decimal unit."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{format_number(count / factor, 3)} {unit}"
    return f"{count:.0f} B"


def render_markdown(template: str, **values: Any) -> str:
    """A page; blank lines that empty parts leave are removed."""
    text = _environment(is_html=False).get_template(template).render(**values)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def render_html(template: str, **values: Any) -> str:
    """A page with the style and charts of all, without its statements' blank lines."""
    text = _environment(is_html=True).get_template(template).render(**values)
    return re.sub(r"\n\s*\n", "\n", text).strip() + "\n"


@cache
def _environment(is_html: bool) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=is_html,
        finalize=None if is_html else escape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"table": markdown_table, "zip": zip}
    if is_html:
        environment.globals |= {
            "light": Markup(css_variables(LIGHT_THEME)),
            "dark": Markup(css_variables(DARK_THEME)),
            "font": Markup(FONT),
            "draw_svg": lambda chart: Markup(draw_svg(chart)),  # which escapes its texts
            "styles_of": styles_of,
        }
    environment.filters |= {
        "prose": prose,
        "escape_markdown": escape,
        "code": lambda text: Markdown(f"`{text}`"),
        "sentence": lambda text: text[:1].upper() + text[1:],
        "number": format_number,
        "size": size,
        "whole": lambda number: f"{number:,}",
        "cell": lambda cell: "–" if cell is None else str(cell),
    }
    return environment
