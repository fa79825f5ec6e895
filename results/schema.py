"""The paper's tables as data: what stands in `results/paper/*.yaml`, read strictly."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

import yaml

PAPER = Path(__file__).parent / "paper"


@dataclass(frozen=True)
class Row:
    """One line of a table: what it says of the recipe, and the numbers that it claims.

    Exactly one of three: the experiment that repeats it; the paper that it is cited from; the row
    of another table that it shows again.
    """

    row: str
    printed: dict[str, Any]  # of the recipe, as printed
    metrics: dict[str, float]
    experiment: str | None = None
    cited: str | None = None
    same_as: str | None = None
    rerun: str | None = None  # of a cited row: our experiment with that recipe
    used: dict[str, Any] = field(default_factory=dict)  # instead of what is printed,
    why: str = ""  # for this reason
    in_text: bool = False  # not in a table

    @property
    def recipe(self) -> dict[str, Any]:
        """What an experiment must have."""
        return self.printed | self.used


@dataclass(frozen=True)
class Table:
    """A numbered table of the paper."""

    table: int
    task: str
    caption: str
    tolerance: dict[str, float]  # of each metric, for one run
    rows: tuple[Row, ...]


class PaperProblem(ValueError):
    """A file of results/paper that can't be read."""


@cache
def read_paper(folder: Path = PAPER) -> tuple[Table, ...]:
    """All tables in the order of their numbers."""
    tables = [_read_table(path) for path in folder.glob("*.yaml")]
    return tuple(sorted(tables, key=lambda table: table.table))


def rows_of(task: str, tables: set[int] | None = None) -> list[Row]:
    """The rows of a task's tables, or of some of them, in the paper's order."""
    chosen = [t for t in read_paper() if t.task == task and (tables is None or t.table in tables)]
    return [row for table in chosen for row in table.rows]


def _read_table(path: Path) -> Table:
    raw = yaml.safe_load(path.read_text())
    rows = tuple(_make(Row, row, path) for row in raw.pop("rows"))
    table: Table = _make(Table, raw | {"rows": rows}, path)
    for row in rows:
        if sum(x is not None for x in (row.experiment, row.cited, row.same_as)) != 1:
            raise PaperProblem(f"{path}: {row.row} needs one of experiment, cited and same_as")
        if row.used and not row.why:
            raise PaperProblem(f"{path}: {row.row} uses other numbers and does not say why")
        missing = set(row.metrics) - set(table.tolerance)
        if missing:
            raise PaperProblem(f"{path}: no tolerance for {missing} of {row.row}")
    return table


def _make(kind: Any, raw: dict[str, Any], path: Path) -> Any:
    unknown = set(raw) - {f.name for f in fields(kind)}
    if unknown:
        raise PaperProblem(f"{path}: unknown keys {sorted(unknown)}")
    try:
        return kind(**raw)
    except TypeError as problem:
        raise PaperProblem(f"{path}: {problem}") from problem
