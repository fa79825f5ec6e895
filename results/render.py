"""Tables for a terminal: the paper's number, ours at the paper's scale, ours on small data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from results.ledger import summarize
from results.schema import Table

NOT_RUN = "not run"


def text_table(table: Table, records: Sequence[dict[str, Any]]) -> str:
    """A table of the paper with what was run; small scales stand in columns of their own."""
    shown = {row.row: row.experiment or row.rerun for row in table.rows}
    small = sorted(
        {
            _kind(record)
            for record in records
            if record["experiment"] in shown.values() and record["scale"] != "paper"
        }
    )
    metrics = list(table.tolerance)
    names = _names(metrics)
    lines = [["", f"the paper, {names}", "ours, the same scale"]]
    lines[0] += [f"ours, {scale}: {data}" for scale, data in small]
    for row in table.rows:
        paper = "/".join(f"{row.metrics[m]:.2f}" if m in row.metrics else "-" for m in metrics)
        cells = [row.row + (" (cited)" if row.cited else ""), paper]
        experiment = row.experiment or row.rerun
        own = [record for record in records if record["experiment"] == experiment]
        if experiment is None:
            cells += [f"see {row.same_as}" if row.same_as else "-"] + [""] * len(small)
        else:
            cells.append(_cell([r for r in own if r["scale"] == "paper"], metrics))
            for scale, data in small:
                cells.append(_cell([r for r in own if _kind(r) == (scale, data)], metrics))
        lines.append(cells)
    return f"Table {table.table}. {table.caption}\n" + columns(lines)


def _names(metrics: Sequence[str]) -> str:
    """`top1/top5`, or `dev-clean/test-clean wer` where the splits are what differs."""
    splits, names = zip(*(metric.split("/") for metric in metrics), strict=True)
    if len(set(names)) < len(names) and len(set(splits)) == len(splits):
        return f"{'/'.join(splits)} {'/'.join(sorted(set(names)))}"
    return "/".join(names)


def _kind(record: dict[str, Any]) -> tuple[str, str]:
    return record["scale"], record["config"]["data"]["name"]


def _cell(records: Sequence[dict[str, Any]], metrics: Sequence[str]) -> str:
    found = [summarize(records, metric) for metric in metrics]
    if not any(found):
        return NOT_RUN
    return "/".join("-" if summary is None else str(summary) for summary in found)


def columns(lines: list[list[str]]) -> str:
    """Cells below each other, as wide as the widest."""
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  " + "   ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
