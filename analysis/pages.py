"""The report's pages: REPORT.md, the block of the README, report.html."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup

from analysis.charts import DARK_THEME, LIGHT_THEME, Chart, css_variables, styles_of
from analysis.charts_draw import FONT, draw_svg
from analysis.claims import FAILS, HOLDS, TESTED, UNDECIDED
from analysis.folders import RESULTS
from analysis.report_views import RECORD_HEAD, SCALE_NOTE, Report, is_run_small, record_cells
from analysis.summaries import NOT_RUN
from analysis.tables import numbers_table
from analysis.templating import Markdown, render_html, render_markdown
from analysis.verdicts import DIFFERS, REPRODUCED
from engine.records import RunRecord

# The class of a verdict's badge.
LOOKS = {REPRODUCED: "good", TESTED: "good", HOLDS: "good", DIFFERS: "off", FAILS: "off"}
LOOKS |= {UNDECIDED: "open", NOT_RUN: "none"}
COMMON = {
    "scale_note": SCALE_NOTE,
    "not_run": NOT_RUN,
    "numbers_table": numbers_table,
    "record_head": list(RECORD_HEAD),
    "record_cells": record_cells,
}


def render_report(report: Report, results: Path = RESULTS) -> str:
    """`REPORT.md`: everything but the charts."""

    def link(record: RunRecord) -> Markdown:
        return Markdown(address_in(results)(record))

    return render_markdown("report.md.j2", report=report, link=link, **COMMON)


def render_readme(report: Report) -> str:
    """The block of the README: every optimizer's first row of each task's first table."""
    return render_markdown("readme.md.j2", report=report, **COMMON).rstrip("\n")


def render_page(report: Report, folder: Path = RESULTS, results: Path = RESULTS) -> str:
    """`report.html`, self-contained, to be written to a folder."""
    return render_page_of(
        "report.html.j2",
        report=report,
        link=address_in(folder),
        root=_prefix(results.parent, folder),
        data=_prefix(results, folder),
        looks=LOOKS,
        is_run_small=is_run_small,
        **COMMON,
    )


def render_page_of(template: str, **values: object) -> str:
    """A page with the style and the charts that all have in common."""
    return render_html(
        template,
        light=Markup(css_variables(LIGHT_THEME)),
        dark=Markup(css_variables(DARK_THEME)),
        font=Markup(FONT),
        draw_svg=_draw,
        styles_of=styles_of,
        **values,
    )


def markers(name: str) -> tuple[str, str]:
    """What stands before and after a rendered block of the README."""
    return f"<!-- {name}:begin -->", f"<!-- {name}:end -->"


def replace_block(text: str, name: str, block: str) -> str:
    """The text with a block between its markers; ValueError where these are not there once."""
    begin, end = markers(name)
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"needs {begin} and {end}, once each and in this order")
    before, rest = text.split(begin)
    return f"{before}{begin}\n{block}\n{end}{rest.split(end)[1]}"


def address_in(folder: Path) -> Callable[[RunRecord], str]:
    """From a record to the address of its file, relative to a folder."""

    def address(record: RunRecord) -> str:
        if record.path is None:
            return record.url
        return quote(os.path.relpath(record.path, folder))

    return address


def _draw(chart: Chart) -> Markup:
    return Markup(draw_svg(chart))  # which escapes its texts


def _prefix(path: Path, folder: Path) -> str:
    """Before addresses below a path: "", or something that ends with a slash."""
    found = os.path.relpath(path, folder)
    return "" if found == "." else f"{quote(found)}/"
