"""What the report shows, by table, claim and figure: plain values that the pages format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from analysis.charts import Chart
from analysis.claims import FAILS, HOLDS, Claim, StudyResult
from analysis.examples import ExampleView
from analysis.metrics import find_metric, metric_label, metric_of
from analysis.paper import Deviation, Figure, Row, Table, headline_rows, tasks_besides
from analysis.summaries import NOT_RUN, Cell
from analysis.verdicts import DIFFERS, NO_NUMBER, REPRODUCED, ROW_RULE, Rule, Verdict, count
from engine.formats import format_time
from engine.records import RunRecord

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

    def has(self, record: RunRecord) -> bool:
        return (record.scale, record.data) == (self.scale, self.data)

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
    is_run_small: bool  # whether a row that the paper ran has published runs on small data

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
    measured_in: str | None = None  # a benchmark's record, below results/

    @property
    def absent_tasks(self) -> list[str]:
        """The paper's tasks of which the study has no run."""
        return tasks_besides({record.task for _, record in self.records if record is not None})


@dataclass(frozen=True)
class Report:
    """Everything that is shown."""

    tables: tuple[TableView, ...]
    claims: tuple[ClaimView, ...]
    figures: tuple[tuple[Figure, tuple[Chart, ...]], ...]
    deviations: tuple[Deviation, ...]
    examples: tuple[ExampleView, ...]  # what the models say
    explanations: Mapping[str, StudyResult]  # by heading: studies of what the paper does not claim
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
        return sum(row.is_run_small for row in self.rows)

    def claim_counts(self) -> dict[str, int]:
        """How many claims have which verdict, in the order in which they appear."""
        return Counter(claim.verdict for claim in self.claims)

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
