"""The paper's row behind an experiment, and how a result compares with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analysis.paper import Row, Table, read_paper
from analysis.summaries import Cell, Summary
from analysis.verdicts import judge, measured_metrics


def paper_row(experiment: str) -> dict[str, Any]:
    """Table, row and printed metrics; empty where the paper has no such row."""
    found = _find(experiment)
    if found is None:
        return {}
    table, row = found
    return {"table": table.table, "row": row.row, "metrics": dict(row.metrics)}


def compare_with_paper(experiment: str, scale: str, final: Mapping[str, float]) -> dict[str, Any]:
    """The paper's numbers beside a run's; a verdict only at the paper's own scale."""
    found = _find(experiment)
    if found is None:
        return {}
    table, row = found
    numbers: dict[str, Any] = {f"paper/{name}": value for name, value in row.metrics.items()}
    if scale != "paper":
        return numbers | {"paper/verdict": f"not comparable: scale {scale}"}
    if not all(name in final for name in row.metrics):
        return numbers | {"paper/verdict": "not comparable: not all of its metrics were measured"}
    names = measured_metrics(row, table)
    values = tuple(Summary(final[n], None, 1) if n in final else None for n in names)
    verdict = judge(row, table, Cell(values, 1))
    return numbers | {"paper/verdict": f"{verdict} (one run)"}


def _find(experiment: str) -> tuple[Table, Row] | None:
    rows = [(table, row) for table in read_paper() for row in table.rows]
    return next(((table, row) for table, row in rows if row.experiment == experiment), None)
