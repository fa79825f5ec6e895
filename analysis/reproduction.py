"""The paper's tables for a terminal, beside the runs that reproduce them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from analysis.paper import OPTIMIZERS, read_paper, rows_of
from analysis.summaries import NOT_RUN
from analysis.tables import paper_table, text_table
from engine.formats import format_number
from engine.records import RunRecord, to_json

SAME = "equals the published record to the bit"


def chosen_tables(task: str, asked: Sequence[int] | None, scale: str) -> list[int]:
    """All tables of a task at the paper's scale; its first one at the others."""
    if asked:
        return sorted(set(asked))
    own = tables_of(task)
    return own if scale == "paper" else own[:1]


def tables_of(task: str) -> list[int]:
    """The numbers of a task's tables."""
    return sorted(table.table for table in read_paper() if table.task == task)


def experiments_of(task: str, tables: Iterable[int], variants: Iterable[str] = ()) -> list[str]:
    """Experiments in the order of the rows, each once; `variants` adds those and the cited rows."""
    rows = rows_of(task, set(tables))
    shown = {row.same_as for row in rows if row.same_as}
    rows += [row for row in rows_of(task) if row.row in shown]
    names = [row.experiment for row in rows if row.experiment]
    if variants := list(variants):
        names += [row.rerun for row in rows if row.rerun]
        names += [name for name in variants if name.startswith(f"{task}/variant/")]
    return list(dict.fromkeys(names))


def paper_tables(task: str, tables: Iterable[int], records: Sequence[RunRecord]) -> str:
    """The tables with the records of their experiments."""
    wanted = [t for t in read_paper() if t.task == task and t.table in set(tables)]
    return "\n\n".join(paper_table(table, records) for table in wanted)


@dataclass(frozen=True)
class HeadlineRow:
    """A task's line in the table of headline metrics."""

    scale: str
    data: str
    metric: str
    higher_is_better: bool
    values: Mapping[str, float | None]  # by optimizer; None where not run
    baseline: str = ""


def headline_table(rows: Iterable[HeadlineRow]) -> str:
    """A line per task: the headline metric by optimizer, and a baseline to compare with."""
    lines = [["scale", "data", "metric", *OPTIMIZERS.values(), "baseline"]]
    for row in rows:
        better = "higher" if row.higher_is_better else "lower"
        cells = [row.scale, row.data, f"{row.metric} ({better} is better)"]
        for key in OPTIMIZERS:
            value = row.values.get(key)
            missing = NOT_RUN if key in row.values else ""
            cells.append(missing if value is None else f"{value:.2f}")
        lines.append([*cells, row.baseline])
    return text_table(lines)


def compare_with_published(own: RunRecord, published: Iterable[RunRecord]) -> str:
    """Whether a run's metrics and curves are those of the published record of the same run."""
    other = next((record for record in published if record.run_id == own.run_id), None)
    if other is None:
        return "no published record of this run"
    found = differences(own, other)
    return f"differs from the published record: {'; '.join(found)}" if found else SAME


def differences(own: RunRecord, other: RunRecord) -> list[str]:
    """Where two runs' results differ in any bit; times, machines and commits may differ."""
    found = [] if own.status == other.status else [f"{own.status}, not {other.status}"]
    for name in ("final", "best"):
        mine, theirs = getattr(own, name), getattr(other, name)
        for metric in dict.fromkeys([*theirs, *mine]):
            a, b = mine.get(metric), theirs.get(metric)
            if to_json(a) != to_json(b):
                shown = [NOT_RUN if x is None else format_number(x, 6) for x in (a, b)]
                found.append(f"{name} {metric} {shown[0]}, not {shown[1]}")
    for metric in dict.fromkeys([*other.curves, *own.curves]):
        mine, theirs = own.curves.get(metric, {}), other.curves.get(metric, {})
        if to_json(mine) != to_json(theirs):
            found.append(f"curve of {metric}{_first_difference(mine, theirs)}")
    return found


def _first_difference(own: Mapping[str, list[float]], other: Mapping[str, list[float]]) -> str:
    """` from step 50`, where both have that step."""
    points = [list(zip(c.get("step", []), c.get("value", []), strict=True)) for c in (own, other)]
    for (step, a), (other_step, b) in zip(*points, strict=False):
        if step != other_step or to_json(a) != to_json(b):
            return f" from step {min(step, other_step):g}"
    return ""
