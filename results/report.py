"""The report's content: what the paper claims, what was run, how they compare. No format yet.

A pure function of the files in `results/`, and of the fingerprints that the experiments'
configurations have now: a record of any other configuration is not shown.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from results.claims import Chart, Claim, Study, read_claims
from results.ledger import Summary, summarize
from results.names import OPTIMIZERS
from results.records import Run, figure_charts, table_charts
from results.schema import (
    Deviation,
    Figure,
    Row,
    Table,
    metric_of,
    read_deviations,
    read_figures,
    read_paper,
    split_of,
    value_text,
)
from results.verdict import Verdict, count, judge

RESULTS = Path(__file__).parent
# How the items of a recipe are written, in this order.
RECIPE = {
    "lr": "lr {}",
    "weight_decay": "decay {}",
    "dropout": "dropout {}",
    "warmup": "warm-up {}",
    "batch": "batch {}",
    "sequences": "{} sequences",
    "epochs": "{} epochs",
    "steps": "{} steps",
    "tokens": "{} tokens",
}
# What tells rows of one optimizer apart, the first that does.
TELLING = ("epochs", "batch", "tokens", "warmup", "lr")


@dataclass(frozen=True)
class Cell:
    """The metrics of a row over some runs; None where they did not measure it."""

    values: tuple[Summary | None, ...]
    runs: int

    def __str__(self) -> str:
        if not self.runs:
            return "not run"
        return f"{' / '.join(_value(value) for value in self.values)} (n={self.runs})"


@dataclass(frozen=True)
class RowView:
    """A row of the paper, and ours beside it."""

    row: Row
    label: str
    recipe: str
    paper: str
    ours: Cell | None  # at the paper's scale; None where there is no experiment
    verdict: Verdict
    mini: tuple[Cell | None, ...]  # one for each of the table's small data sets

    @property
    def is_own(self) -> bool:
        """Whether the paper ran it, and shows it for the first time."""
        return self.row.experiment is not None


@dataclass(frozen=True)
class TableView:
    """A table of the paper with everything that was run for it."""

    table: Table
    heading: str  # of the numbers
    small: tuple[str, ...]  # names of data sets
    rows: tuple[RowView, ...]
    runs: tuple[Run, ...]
    charts: tuple[Chart, ...]


@dataclass(frozen=True)
class ClaimView:
    """A claim and what decides it."""

    claim: Claim
    verdict: str
    study: Study | None
    numbers: Mapping[str, float | Mapping[str, float]]
    records: tuple[tuple[str, str | None], ...]  # run ids, and the files where they are


@dataclass(frozen=True)
class Report:
    """Everything that is shown."""

    tables: tuple[TableView, ...]
    claims: tuple[ClaimView, ...]
    figures: tuple[tuple[Figure, tuple[Chart, ...]], ...]
    deviations: tuple[Deviation, ...]
    other_records: int  # of other configurations: variants, studies, older recipes

    @property
    def rows(self) -> list[RowView]:
        """The paper's own rows, each once."""
        return [row for table in self.tables for row in table.rows if row.is_own]

    def row_counts(self) -> dict[str, int]:
        """How many rows have which verdict."""
        return count([row.verdict for row in self.rows])

    def mini_count(self) -> int:
        """How many rows were run on small data."""
        return sum(any(cell and cell.runs for cell in row.mini) for row in self.rows)

    def claim_counts(self) -> dict[str, int]:
        """How many claims have which verdict, in the order in which they appear."""
        counts: dict[str, int] = {}
        for claim in self.claims:
            counts[claim.verdict] = counts.get(claim.verdict, 0) + 1
        return counts


def build(
    runs: Sequence[Run],
    current: AbstractSet[str],
    studies: Mapping[str, Study],
    folder: Path = RESULTS,
) -> Report:
    """The report of some runs; `current` are the fingerprints of experiments as they are now."""
    tables = read_paper()
    named = {row.row: row for table in tables for row in table.rows}
    experiments = {row.experiment or row.rerun for row in named.values()}
    shown = [run for run in runs if run.fingerprint in current and run.experiment in experiments]
    views = tuple(_table_view(table, named, shown) for table in tables)
    labels = {
        view.row.experiment: view.label for t in views for view in t.rows if view.row.experiment
    }
    figures = tuple((figure, figure_charts(figure, labels, shown)) for figure in read_figures())
    files = {run.run_id: run.file for run in runs}
    claims = tuple(_claim_view(claim, studies, files, folder) for claim in read_claims())
    return Report(views, claims, figures, read_deviations(), len(runs) - len(shown))


def labels_of(table: Table) -> list[str]:
    """Short names of a table's rows: the optimizer, and what tells it from the others."""
    labels = [_optimizer(row) for row in table.rows]
    for key in TELLING:
        for label in {label for label in labels if labels.count(label) > 1}:
            same = [i for i, other in enumerate(labels) if other == label]
            values = [table.rows[i].recipe.get(key) for i in same]
            if len(set(map(str, values))) > 1:
                for i, value in zip(same, values, strict=True):
                    labels[i] += "" if value is None else f", {_item(key, value)}"
    return [
        f"{x} (in the text)" if r.in_text else x for x, r in zip(labels, table.rows, strict=True)
    ]


def recipe_text(row: Row) -> str:
    """What is used for a row, as a line."""
    return " · ".join(_item(key, row.recipe[key]) for key in RECIPE if key in row.recipe)


def heading_of(metrics: Sequence[str]) -> str:
    """`dev-clean / test-clean WER, %`; `top-1 / top-5, %`."""
    kinds = list(dict.fromkeys(metric_of(metric) for metric in metrics))
    unit = f", {kinds[0].unit}" if kinds[0].unit else ""
    if len(kinds) == 1 and len(metrics) > 1:
        return f"{' / '.join(split_of(metric) for metric in metrics)} {kinds[0].name}{unit}"
    return " / ".join(kind.name for kind in kinds) + unit


def _optimizer(row: Row) -> str:
    name = str(row.printed.get("optimizer", ""))
    return OPTIMIZERS.get(name, name) + (f", {row.cited}" if row.cited else "")


def _item(key: str, value: Any) -> str:
    return RECIPE[key].format(value_text(value))


def _value(summary: Summary | None) -> str:
    if summary is None:
        return "–"
    spread = "" if summary.deviation is None else f" ± {summary.deviation:.2f}"
    return f"{summary.mean:.2f}{spread}"


def _table_view(table: Table, named: Mapping[str, Row], runs: Sequence[Run]) -> TableView:
    sources = [named[row.same_as] if row.same_as else row for row in table.rows]
    experiments = [source.experiment or source.rerun for source in sources]
    own = [run for run in runs if run.experiment in experiments]
    small = tuple(sorted({run.data for run in own if run.scale == "mini"}))
    metrics = list(table.tolerance)
    views = []
    for row, label, experiment in zip(table.rows, labels_of(table), experiments, strict=True):
        wanted = [metric for metric in metrics if metric in row.metrics or not row.metrics]
        of_row = [run for run in own if run.experiment == experiment]
        at_paper = [run for run in of_row if run.scale == "paper"]
        minis = [[r for r in of_row if r.scale == "mini" and r.data == name] for name in small]
        ours = _cell(at_paper, wanted)
        views.append(
            RowView(
                row,
                label,
                recipe_text(row),
                " / ".join(f"{row.metrics[m]:.2f}" for m in wanted if row.metrics) or "no number",
                ours if experiment else None,
                judge(row, table, dict(zip(wanted, ours.values, strict=True))),
                tuple(_cell(found, wanted) if experiment else None for found in minis),
            )
        )
    drawn = {e: view.label for e, view in zip(experiments, views, strict=True) if e}
    figures = [figure for figure in read_figures() if set(figure.experiments) == set(drawn)]
    charts = table_charts(table, drawn, own, {s.metric for f in figures for s in f.series})
    return TableView(table, heading_of(metrics), small, tuple(views), tuple(own), charts)


def _cell(runs: Sequence[Run], metrics: Iterable[str]) -> Cell:
    finals = [{"final": run.final} for run in runs]
    return Cell(tuple(summarize(finals, metric) for metric in metrics), len(runs))


def _claim_view(
    claim: Claim, studies: Mapping[str, Study], files: Mapping[str, str], folder: Path
) -> ClaimView:
    study = studies.get(claim.study or "")
    numbers: dict[str, Any] = dict(study.numbers) if study else {}
    measured = claim.measured
    if measured and (folder / measured.file).exists():
        sets = json.loads((folder / measured.file).read_text())["sets"]
        for name, found in sets.items():
            entries = {entry["name"]: entry for entry in found["step"]}
            values = {of: entries[of].get(measured.field) for of in measured.of if of in entries}
            numbers[name] = {of: value for of, value in values.items() if value is not None}
    records = tuple((run, files.get(run)) for run in sorted(study.records)) if study else ()
    return ClaimView(claim, claim.verdict(studies), study, numbers, records)
