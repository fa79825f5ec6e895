"""The report's content: what the paper claims, what was run, how they compare. No format yet.

A pure function of the records, studies and benchmarks, and of the fingerprints that the
experiments' configurations have now: a record of any other configuration is only counted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.charts import Chart
from analysis.claims import FAILS, HOLDS, Claim, StudyResult, read_claims
from analysis.folders import RESULTS
from analysis.metrics import find_metric, metric_label, metric_of
from analysis.paper import (
    OPTIMIZERS,
    Deviation,
    Figure,
    Row,
    Table,
    headline_rows,
    read_deviations,
    read_figures,
    read_paper,
    value_text,
)
from analysis.report_charts import figure_charts, table_charts
from analysis.summaries import NOT_RUN, Cell, make_cell
from analysis.tables import heading_of, metric_text
from analysis.verdicts import (
    DIFFERS,
    NO_NUMBER,
    REPRODUCED,
    ROW_RULE,
    Rule,
    Verdict,
    count,
    judge,
    measured_metrics,
    tolerance_rule,
)
from engine.formats import format_time
from engine.records import RunRecord

SCALES = ("paper", "mini", "short")  # a smoke run only shows that something runs
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
SCALE_NOTE = (
    "Our runs on small data show that the same code runs and learns. Their numbers are never "
    "compared with the paper's."
)


@dataclass(frozen=True)
class Column:
    """Runs of one scale on one data set: published ones, or those of this checkout."""

    scale: str
    data: str
    is_own: bool = False

    def __str__(self) -> str:
        name = f"{self.scale}: {self.data}"
        return f"not published, {name}" if self.is_own else f"ours, {name}"


@dataclass(frozen=True)
class RowView:
    """A row of the paper, and ours beside it."""

    row: Row
    label: str
    recipe: tuple[str, ...]
    paper: str
    ours: Cell | None  # published, at the paper's scale; None where there is no experiment
    verdict: Verdict
    cells: tuple[Cell | None, ...]  # one for each of the table's further columns
    own_verdict: Verdict  # of this checkout's runs at the paper's scale

    @property
    def is_run_by_the_paper(self) -> bool:
        """Whether the paper ran it, and shows it for the first time."""
        return self.row.experiment is not None

    @property
    def experiment(self) -> str | None:
        return self.row.experiment or self.row.rerun

    @property
    def repeats(self) -> str:
        """`Table 3` for a row that Table 3 shows too."""
        number = (self.row.same_as or "").partition("/")[0].removeprefix("table")
        return f"Table {number}" if number else ""


@dataclass(frozen=True)
class TableView:
    """A table of the paper with everything that was run for it."""

    table: Table
    heading: str  # of the numbers
    rule: Rule
    columns: tuple[Column, ...]
    rows: tuple[RowView, ...]
    records: tuple[RunRecord, ...]
    own_records: tuple[RunRecord, ...]
    charts: tuple[Chart, ...]

    @property
    def notes(self) -> list[str]:
        """Why rows use other values than the paper prints, and what other weights reached.

        A reason stands once. Table 7 tests the best checkpoint; the last one's numbers are here.
        """
        notes: dict[str, list[str]] = {}
        for row in self.rows:
            if row.row.why:
                notes.setdefault(row.row.why, []).append(row.label)
        reasons = [f"{'; '.join(labels)}: {why}" for why, labels in notes.items()]
        return reasons + [_last_weights(r) for r in (*self.records, *self.own_records) if r.last]

    @property
    def headline(self) -> list[RowView]:
        """Every optimizer's first row, if this is its task's first table."""
        names = {row.row for row in headline_rows(self.table.task)}
        return [row for row in self.rows if row.row.row in names]


@dataclass(frozen=True)
class ClaimView:
    """A claim and what decides it."""

    claim: Claim
    verdict: str
    study: StudyResult | None
    numbers: Mapping[str, float | Mapping[str, float]]
    records: tuple[tuple[str, RunRecord | None], ...]  # by run id


@dataclass(frozen=True)
class Report:
    """Everything that is shown."""

    tables: tuple[TableView, ...]
    claims: tuple[ClaimView, ...]
    figures: tuple[tuple[Figure, tuple[Chart, ...]], ...]
    deviations: tuple[Deviation, ...]
    other_records: int  # of other configurations: variants, studies, older recipes
    rule: Rule = ROW_RULE

    @property
    def rows(self) -> list[RowView]:
        """The paper's own rows, each once."""
        return [row for table in self.tables for row in table.rows if row.is_run_by_the_paper]

    @property
    def has_own_runs(self) -> bool:
        return any(table.own_records for table in self.tables)

    def row_counts(self) -> dict[str, int]:
        """How many rows have which verdict."""
        return count([row.verdict for row in self.rows])

    def mini_count(self) -> int:
        """How many rows have published runs on small data."""
        return sum(is_run_small(table, row) for table in self.tables for row in table.rows)

    def claim_counts(self) -> dict[str, int]:
        """How many claims have which verdict, in the order in which they appear."""
        counts: dict[str, int] = {}
        for claim in self.claims:
            counts[claim.verdict] = counts.get(claim.verdict, 0) + 1
        return counts

    @property
    def claim_texts(self) -> dict[str, str]:
        """By verdict: "3 hold at this scale"."""
        several = {HOLDS: "hold at this scale", FAILS: "do not hold"}
        return {
            verdict: f"{n} {several.get(verdict, verdict) if n > 1 else verdict}"
            for verdict, n in self.claim_counts().items()
        }

    @property
    def summary(self) -> list[str]:
        """What was found, in three lines."""
        counts = self.row_counts()
        silent = f", {counts[NO_NUMBER]} without a number to compare" if NO_NUMBER in counts else ""
        claims = ", ".join(self.claim_texts.values())
        return [
            f"Of {len(self.rows)} rows that the paper ran, at its own scale: {counts[REPRODUCED]} "
            f"reproduced, {counts[DIFFERS]} differ, {counts[NOT_RUN]} not run{silent}",
            f"{self.mini_count()} of these rows were run on small data",
            f"Of {len(self.claims)} claims: {claims}",
        ]

    @property
    def about_other_records(self) -> str:
        """What becomes of records that no table shows."""
        if not self.other_records:
            return "All records are of the experiments' own configurations and are shown above."
        are = "record is" if self.other_records == 1 else "records are"
        return (
            f"{self.other_records} further {are} of other configurations (variants, studies, "
            "recipes that have changed since) and in no table."
        )


def is_run_small(table: TableView, row: RowView) -> bool:
    """Whether a row that the paper ran has published runs on small data."""
    published = [
        cell
        for cell, column in zip(row.cells, table.columns, strict=True)
        if cell and cell.is_run and not column.is_own
    ]
    return row.is_run_by_the_paper and bool(published)


def build(
    records: Sequence[RunRecord],
    current: AbstractSet[str],
    studies: Mapping[str, StudyResult],
    folder: Path = RESULTS,
    own: Sequence[RunRecord] = (),
) -> Report:
    """The report of published records, and of this checkout's own if any are given.

    `current` are the fingerprints of experiments as they are configured now.
    """
    tables = read_paper()
    named = {row.row: row for table in tables for row in table.rows}
    experiments = {row.experiment or row.rerun for row in named.values()}

    def shown(found: Sequence[RunRecord]) -> list[RunRecord]:
        kept = [record for record in found if record.scale in SCALES]
        return [r for r in kept if r.fingerprint in current and r.experiment in experiments]

    published = shown(records)
    mine = shown([*{record.run_id: record for record in own}.values()])
    views = tuple(_table_view(table, named, published, mine) for table in tables)
    labels = {
        view.row.experiment: view.label for t in views for view in t.rows if view.row.experiment
    }
    figures = tuple((figure, figure_charts(figure, labels, published)) for figure in read_figures())
    by_id = {record.run_id: record for record in records}
    claims = tuple(_claim_view(claim, studies, by_id, folder) for claim in read_claims())
    others = sum(record.scale in SCALES for record in records) - len(published)
    deviations = (*read_deviations(), *data_deviations(published))
    return Report(views, claims, figures, deviations, others)


def data_deviations(records: Sequence[RunRecord]) -> list[Deviation]:
    """Data sets of runs at the paper's scale that differ from the official ones in some count."""
    users: dict[tuple[str, str], list[str]] = {}
    for record in records:
        if record.scale == "paper":
            for difference in record.data_manifest.get("differences", ()):
                users.setdefault((record.data, str(difference)), []).append(record.run_id)
    return [
        Deviation(
            id=f"data-{number}",
            about=f"{data}, {len(names)} of the runs shown",
            printed="The official set.",
            used=f"{data}, {difference}",
            why=f"The data that these runs were given: {', '.join(names)}.",
        )
        for number, ((data, difference), names) in enumerate(users.items(), 1)
    ]


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


def _last_weights(record: RunRecord) -> str:
    known = {name: value for name, value in record.last.items() if find_metric(name)}
    numbers = ", ".join(f"{metric_label(n)} {metric_of(n).format(v)}" for n, v in known.items())
    return f"{record.run_id}: {numbers} with its last weights instead of its best."


RECORD_HEAD = ("run", "scale, data", "seed", "steps", "wall time", "commit", "machine")


def record_cells(record: RunRecord) -> list[str]:
    """A record's provenance but for its name, which each format links in its own way."""
    commit = (record.commit or "unknown")[:10] + ("" if record.is_clean else " and changes")
    return [
        f"{record.scale}, {record.data}",
        str(record.seed),
        f"{record.steps:,}",
        format_time(record.wall_s),
        f"{commit}, {record.date}" if record.date else commit,
        f"{record.hardware}, torch {record.torch_version}",
    ]


def _optimizer(row: Row) -> str:
    name = str(row.printed.get("optimizer", ""))
    return OPTIMIZERS.get(name, name) + (f", {row.cited}" if row.cited else "")


def _item(key: str, value: Any) -> str:
    return RECIPE[key].format(value_text(value))


def _table_view(
    table: Table,
    named: Mapping[str, Row],
    published: Sequence[RunRecord],
    own: Sequence[RunRecord],
) -> TableView:
    sources = [named[row.same_as] if row.same_as else row for row in table.rows]
    experiments = [source.experiment or source.rerun for source in sources]
    published = [record for record in published if record.experiment in experiments]
    own = [record for record in own if record.experiment in experiments]
    columns = _columns(published, own)
    metrics = list(table.tolerance)
    views = []
    for row, label, experiment in zip(table.rows, labels_of(table), experiments, strict=True):
        wanted = measured_metrics(row, table)
        cells = [
            make_cell(_of(own if column.is_own else published, experiment, column), wanted)
            for column in columns
        ]
        ours = make_cell(_at_paper(published, experiment), wanted)
        not_published = make_cell(_at_paper(own, experiment), wanted)
        views.append(
            RowView(
                row,
                label,
                tuple(_item(key, row.recipe[key]) for key in RECIPE if key in row.recipe),
                " / ".join(metric_text(row.metrics, m) for m in wanted if row.metrics)
                or "no number",
                ours if experiment else None,
                judge(row, table, ours),
                tuple(cell if experiment else None for cell in cells),
                judge(row, table, not_published),
            )
        )
    drawn = {e: view.label for e, view in zip(experiments, views, strict=True) if e}
    figures = [figure for figure in read_figures() if set(figure.experiments) == set(drawn)]
    in_figures = {series.metric for figure in figures for series in figure.series}
    charts = table_charts(table, drawn, published, in_figures)
    return TableView(
        table,
        heading_of(metrics),
        tolerance_rule(table),
        columns,
        tuple(views),
        tuple(published),
        tuple(own),
        charts,
    )


def _columns(published: Sequence[RunRecord], own: Sequence[RunRecord]) -> tuple[Column, ...]:
    """Beside the published runs at the paper's scale."""
    small = {Column(r.scale, r.data) for r in published if r.scale != "paper"}
    others = {Column(r.scale, r.data, is_own=True) for r in own}
    return tuple(sorted(small | others, key=lambda c: (c.is_own, SCALES.index(c.scale), c.data)))


def _of(records: Sequence[RunRecord], experiment: str | None, column: Column) -> list[RunRecord]:
    wanted = (experiment, column.scale, column.data)
    return [r for r in records if (r.experiment, r.scale, r.data) == wanted]


def _at_paper(records: Sequence[RunRecord], experiment: str | None) -> list[RunRecord]:
    return [r for r in records if r.experiment == experiment and r.scale == "paper"]


def _claim_view(
    claim: Claim,
    studies: Mapping[str, StudyResult],
    by_id: Mapping[str, RunRecord],
    folder: Path,
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
    records = tuple((run, by_id.get(run)) for run in sorted(study.records)) if study else ()
    return ClaimView(claim, claim.verdict(studies), study, numbers, records)
