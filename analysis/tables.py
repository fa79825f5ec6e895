"""Tables for a terminal, drawn by rich, and texts that tables of all formats have in common."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from analysis.charts import optimizer_of
from analysis.metrics import metric_of, split_of
from analysis.paper import OPTIMIZERS, Table
from analysis.summaries import NOT_RUN, make_cell
from engine.formats import format_number
from engine.records import RunRecord

UNLIMITED = 10_000  # columns of an output that is not a terminal


def text_table(lines: Sequence[Sequence[str]], title: str = "") -> str:
    """A table as plain text; the first line is its head.

    On a terminal, cells are wrapped so that the table fits. In a pipe or a file, every row is one
    line, however long. There are no colour codes in either.
    """
    head, *body = lines
    table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1))
    for name in head:
        table.add_column(Text(name), overflow="fold", no_wrap=not sys.stdout.isatty())
    for line in body:
        table.add_row(*(Text(cell) for cell in line))
    file = io.StringIO()
    width = None if sys.stdout.isatty() else UNLIMITED
    console = Console(file=file, width=width, color_system=None, highlight=False, emoji=False)
    console.print(table)
    rows = [line.rstrip() for line in file.getvalue().splitlines()]
    return "\n".join(([title] if title else []) + [f"  {row}".rstrip() for row in rows])


def paper_table(table: Table, records: Sequence[RunRecord]) -> str:
    """A table of the paper beside what was run; every other scale has columns of its own."""
    metrics = list(table.tolerance)
    shown = {row.experiment or row.rerun for row in table.rows}
    small = sorted(
        {(r.scale, r.data) for r in records if r.experiment in shown and r.scale != "paper"}
    )
    columns = [("paper", None), *small]
    head = ["", f"paper, {heading_of(metrics)}", "ours, paper scale"]
    lines = [head + [f"ours, {scale}: {data}" for scale, data in small]]
    for row in table.rows:
        experiment = row.experiment or row.rerun
        paper = " / ".join(metric_text(row.metrics, metric) for metric in metrics)
        cells = [row.row + (" (cited)" if row.cited else ""), paper]
        for scale, data in columns:
            own = [r for r in records if r.experiment == experiment and r.scale == scale]
            own = [r for r in own if data is None or r.data == data]
            same = f"see {row.same_as}" if row.same_as and scale == "paper" else ""
            cells.append(str(make_cell(own, metrics)) if experiment else same)
        lines.append(cells)
    return text_table(lines, f"Table {table.table}. {table.caption}")


def metric_text(metrics: Mapping[str, float], name: str) -> str:
    """A metric with its own digits, or a dash."""
    return metric_of(name).format(metrics[name]) if name in metrics else "–"


def heading_of(metrics: Sequence[str]) -> str:
    """`dev-clean / test-clean WER, %`; `top-1 / top-5, %`."""
    kinds = list(dict.fromkeys(metric_of(metric) for metric in metrics))
    unit = f", {kinds[0].unit}" if kinds[0].unit else ""
    if len(kinds) == 1 and len(metrics) > 1:
        return f"{' / '.join(split_of(metric) for metric in metrics)} {kinds[0].label}{unit}"
    return " / ".join(kind.label for kind in kinds) + unit


def numbers_table(
    numbers: Mapping[str, float | Mapping[str, float]],
) -> tuple[list[str], list[list[str]]]:
    """Head and rows of a table of numbers with names in one or two levels; optimizers in order."""
    found = dict.fromkeys(name for v in numbers.values() if isinstance(v, Mapping) for name in v)
    columns = sorted(found, key=lambda name: 99 if (at := optimizer_of(name)) is None else at)
    rows = []
    for name, value in numbers.items():
        if isinstance(value, Mapping):
            rows.append([name, *(format_number(value[c]) if c in value else "" for c in columns)])
        else:
            rows.append([name, format_number(value), *[""] * (len(columns) - 1)])
    return ["", *(columns or ["value"])], rows


def headline_numbers(
    numbers: Mapping[str, Mapping[str, float]],
) -> tuple[list[str], list[list[str]]]:
    """The same for the study's headline: "43.7 ± 0.7" of each optimizer, "+2.1 [+1.0, +3.2]"."""
    found = [name for name in OPTIMIZERS.values() if any(name in own for own in numbers.values())]
    rows = []
    for data, own in numbers.items():
        cells = [data]
        for name in found:
            spread = f" ± {own[f'{name} ±']:.1f}" if f"{name} ±" in own else ""
            cells.append(f"{own[name]:.1f}{spread}" if name in own else "")
        cells.append(_with_interval(own, "lead, %") if "low" in own else NOT_RUN)
        rows.append(cells)
    return ["", *found, "lead, %"], rows


def leads_by_passes(
    numbers: Mapping[str, Mapping[str, float]],
) -> tuple[list[str], list[list[str]]]:
    """The same for the study of passes: data sets in rows, numbers of passes in columns.

    Its names are "cifar10, 1.5 passes".
    """
    found: dict[str, dict[float, str]] = {}
    for name, own in numbers.items():
        data, _, passes = name.removesuffix(" passes").rpartition(", ")
        found.setdefault(data, {})[float(passes)] = _with_interval(own, "difference, %")
    columns = sorted({at for cells in found.values() for at in cells})
    rows = [[data, *(cells.get(at, "") for at in columns)] for data, cells in found.items()]
    return ["lead, %, after", *(f"{at:g} passes" for at in columns)], rows


def _with_interval(numbers: Mapping[str, float], name: str) -> str:
    """`+2.1 [+1.0, +3.2]`."""
    return f"{numbers[name]:+.1f} [{numbers['low']:+.1f}, {numbers['high']:+.1f}]"
