"""The paper as data: `results/paper/*.yaml`, read strictly.

`table*.yaml` are its tables, `figures.yaml` its figures, and `deviations.yaml` lists where it is
silent or contradicts itself and what is done there. `analysis/claims.py` reads its claims.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from analysis.folders import CONFIGS, PAPER
from analysis.metrics import metric_of

# The optimizers' names as configurations have them and as tables print them, in a fixed order.
OPTIMIZERS = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW", "novograd": "NovoGrad"}


@dataclass(frozen=True)
class Row:
    """A row of a table: the recipe and the numbers that the paper prints.

    It has exactly one of three: the experiment that reproduces it, the paper that it is cited
    from, or the row of another table that it repeats.
    """

    row: str
    printed: dict[str, Any]  # the recipe as printed
    metrics: dict[str, float]
    experiment: str | None = None
    cited: str | None = None
    same_as: str | None = None
    rerun: str | None = None  # of a cited row: our experiment with that recipe
    used: dict[str, Any] = field(default_factory=dict)  # instead of what is printed
    why: str = ""  # the reason for that
    in_text: bool = False  # in the paper's text, not in a table

    @property
    def recipe(self) -> dict[str, Any]:
        """What the experiment must use."""
        return self.printed | self.used


@dataclass(frozen=True)
class Table:
    """A numbered table of the paper."""

    table: int
    task: str
    caption: str
    tolerance: dict[str, float]  # by metric, for one run
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Series:
    """A metric during a run, or its exponential: that of a loss is a perplexity."""

    metric: str
    label: str
    exponential: bool = False


@dataclass(frozen=True)
class Figure:
    """A numbered figure of the paper."""

    figure: int
    task: str
    shows: str
    unknown: str  # what can't be known about it
    y: str
    series: tuple[Series, ...]
    experiments: tuple[str, ...]
    log_y: bool = False


@dataclass(frozen=True)
class Deviation:
    """A place where the paper is silent, contradicts itself or differs from its public code.

    `printed`, `used` and `why` can be taken from rows. In all texts `{data/imagenet:image_size}`
    stands for that value of `configs/data/imagenet.yaml`.
    """

    id: str
    about: str  # a table, an experiment or the algorithm
    printed: str = ""
    used: str = ""
    why: str = ""
    rows: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()  # experiments with another reading


class PaperProblem(ValueError):
    """A file of results/paper that can't be read."""


@cache
def read_paper(folder: Path = PAPER) -> tuple[Table, ...]:
    """All tables in the order of their numbers."""
    tables = [_read_table(path) for path in folder.glob("table*.yaml")]
    return tuple(sorted(tables, key=lambda table: table.table))


def rows_of(task: str, tables: set[int] | None = None) -> list[Row]:
    """The rows of a task's tables, or of some of them, in the paper's order."""
    chosen = [t for t in read_paper() if t.task == task and (tables is None or t.table in tables)]
    return [row for table in chosen for row in table.rows]


def tasks_besides(known: Collection[str]) -> list[str]:
    """The paper's other tasks, in its order."""
    return [task for task in dict.fromkeys(t.task for t in read_paper()) if task not in known]


def headline_rows(task: str) -> list[Row]:
    """The first row of every optimizer in a task's first table."""
    first = next(table for table in read_paper() if table.task == task)
    rows: dict[str, Row] = {}
    for row in first.rows:
        if row.experiment:
            rows.setdefault(row.printed["optimizer"], row)
    return list(rows.values())


def _read_table(path: Path) -> Table:
    raw = yaml.safe_load(path.read_text())
    rows = tuple(_make(Row, row, path) for row in raw.pop("rows"))
    table: Table = _make(Table, raw | {"rows": rows}, path)
    for row in rows:
        if sum(x is not None for x in (row.experiment, row.cited, row.same_as)) != 1:
            raise PaperProblem(f"{path}: {row.row} needs one of experiment, cited and same_as")
        if row.used and not row.why:
            raise PaperProblem(f"{path}: {row.row} uses other values and has no why")
        missing = set(row.metrics) - set(table.tolerance)
        if missing:
            raise PaperProblem(f"{path}: no tolerance for {missing} of {row.row}")
    for metric in table.tolerance:
        metric_of(metric)
    return table


@cache
def read_figures(path: Path = PAPER / "figures.yaml") -> tuple[Figure, ...]:
    """The figures in the order of their numbers."""
    figures: list[Figure] = []
    for raw in yaml.safe_load(path.read_text()):
        series = tuple(_make(Series, one, path) for one in raw.pop("series"))
        experiments = tuple(raw.pop("experiments"))
        figures.append(_make(Figure, raw | {"series": series, "experiments": experiments}, path))
    return tuple(sorted(figures, key=lambda figure: figure.figure))


@cache
def read_deviations(
    path: Path = PAPER / "deviations.yaml", tables: tuple[Table, ...] | None = None
) -> tuple[Deviation, ...]:
    """All deviations in the file's order, complete: with their rows' texts and configs' values."""
    known = {row.row: row for table in tables or read_paper() for row in table.rows}
    found: dict[str, Deviation] = {}
    for raw in yaml.safe_load(path.read_text()):
        for key in ("rows", "variants"):
            raw[key] = tuple(raw.get(key, ()))
        given: Deviation = _make(Deviation, raw, path)
        unknown = set(given.rows) - set(known)
        if unknown:
            raise PaperProblem(f"{path}: {given.id} names unknown rows: {sorted(unknown)}")
        texts = _texts_of([known[row] for row in given.rows])
        for key in ("printed", "used", "why"):
            raw[key] = insert_values(raw.get(key, "") or texts[key], path)
            if not raw[key]:
                raise PaperProblem(f"{path}: {given.id} has no {key}")
        if given.id in found:
            raise PaperProblem(f"{path}: {given.id} occurs twice")
        found[given.id] = _make(Deviation, raw, path)
    return tuple(found.values())


def insert_values(text: str, path: Path) -> str:
    """The text with `{group/file:dotted.key}` replaced by that value in configs/."""

    def value(match: re.Match[str]) -> str:
        file, key = CONFIGS / f"{match[1]}.yaml", match[2]
        try:
            node = yaml.safe_load(file.read_text())
            for part in key.split("."):
                node = node[part]
        except (OSError, KeyError, TypeError) as problem:
            raise PaperProblem(f"{path}: {match[0]} is not in configs/: {problem!r}") from problem
        return value_text(node)

    return re.sub(r"\{([\w/]+):([\w.]+)\}", value, text)


def value_text(value: Any) -> str:
    """A value of a recipe as a person would write it: 1e-8, 32,768, (0.95, 0.25)."""
    if isinstance(value, list | tuple):
        return f"({', '.join(value_text(item) for item in value)})"
    if isinstance(value, float) and value >= 1e6:
        return f"{value / 1e9:g}B"
    if isinstance(value, float):
        return re.sub(r"e-0(\d)", r"e-\1", f"{value:g}")
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def _texts_of(rows: Sequence[Row]) -> dict[str, str]:
    """What rows state about their own deviation; the same text once."""

    def joined(texts: list[str]) -> str:
        return "; ".join(dict.fromkeys(text for text in texts if text))

    def items(recipe: dict[str, Any], keys: Any) -> str:
        return ", ".join(f"{key} {value_text(recipe[key])}" for key in keys if key in recipe)

    return {
        "printed": joined([items(row.printed, row.used) for row in rows]),
        "used": joined([items(row.used, row.used) for row in rows]),
        "why": joined([row.why for row in rows]),
    }


def _make(kind: Any, raw: dict[str, Any], path: Path) -> Any:
    unknown = set(raw) - {f.name for f in fields(kind)}
    if unknown:
        raise PaperProblem(f"{path}: unknown keys {sorted(unknown)}")
    try:
        return kind(**raw)
    except TypeError as problem:
        raise PaperProblem(f"{path}: {problem}") from problem
