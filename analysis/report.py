"""The report's content: what the paper claims, what was run, how they compare. No format yet.

A pure function of the records, studies and benchmarks, and of the fingerprints that the
experiments' configurations have now: a record of any other configuration is only counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

from analysis.claims import EXPLANATIONS, Claim, StudyResult, read_claims
from analysis.examples import ExampleView, example_view
from analysis.folders import RESULTS
from analysis.paper import (
    OPTIMIZERS,
    Deviation,
    Row,
    Table,
    read_deviations,
    read_figures,
    read_paper,
    value_text,
)
from analysis.report_charts import figure_charts, table_charts
from analysis.report_views import ClaimView, Column, Report, RowView, TableView
from analysis.summaries import make_cell
from analysis.tables import heading_of, metric_text
from analysis.verdicts import (
    judge,
    measured_metrics,
    tolerance_rule,
)
from engine.records import RunRecord, read_json

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
    explanations = {h: studies[name] for name, h in EXPLANATIONS.items() if name in studies}
    examples = _examples(views)
    return Report(views, claims, figures, deviations, examples, explanations, others)


def _examples(tables: Sequence[TableView]) -> tuple[ExampleView, ...]:
    """For each task of the runs that are nearest to the paper: published ones first."""
    found = []
    for view in tables:
        kinds = [(False, scale, view.records) for scale in SCALES]
        kinds += [(True, scale, view.own_records) for scale in SCALES]
        for is_own, scale, records in kinds if view.headline else ():
            of_scale = [record for record in records if record.scale == scale]
            data = [record for record in of_scale if record.data == of_scale[0].data]
            runs = [
                (row.label, min(own, key=lambda record: record.seed))
                for row in view.headline
                if (own := [record for record in data if record.experiment == row.experiment])
            ]
            if shown := example_view(view.table.task, runs, is_own):
                found.append(shown)
                break
    return tuple(found)


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
        theirs = [record for record in published if record.experiment == experiment]
        mine = [record for record in own if record.experiment == experiment]
        cells = [
            make_cell([r for r in (mine if c.is_own else theirs) if c.has(r)], wanted)
            for c in columns
        ]
        ours, not_published = (
            make_cell([r for r in some if r.scale == "paper"], wanted) for some in (theirs, mine)
        )
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
                row.experiment is not None
                and any(
                    cell.is_run for cell, c in zip(cells, columns, strict=True) if not c.is_own
                ),
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


def _claim_view(
    claim: Claim,
    studies: Mapping[str, StudyResult],
    by_id: Mapping[str, RunRecord],
    folder: Path,
) -> ClaimView:
    study = studies.get(claim.study or "")
    numbers: dict[str, Any] = dict(study.numbers) if study else {}
    measured = claim.measured
    measured_in: str | None = None
    if measured and (files := sorted(folder.glob(measured.file))):
        measured_in = files[0].relative_to(folder).as_posix()
        sets = read_json(files[0])["detail"]["sets"]
        for name, found in sets.items():
            entries = {entry["name"]: entry for entry in found["step"]}
            values = {of: entries[of].get(measured.field) for of in measured.of if of in entries}
            numbers[name] = {of: value for of, value in values.items() if value is not None}
    records = tuple((run, by_id.get(run)) for run in sorted(study.records)) if study else ()
    return ClaimView(claim, claim.verdict(studies), study, numbers, records, measured_in)
