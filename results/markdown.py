"""The report as Markdown: `results/REPORT.md`, and the table in the README between two marks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from results.claims import FAILS, HOLDS
from results.names import OPTIMIZERS
from results.records import Run
from results.report import Cell, ClaimView, Report, RowView, TableView
from results.schema import headline_rows
from results.svg import number
from results.verdict import DIFFERS, NO_NUMBER, NOT_RUN, REPRODUCED

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
SCALE_NOTE = (
    "Ours on small data shows that the same code runs and learns; it is never compared with the "
    "paper's numbers."
)


def render_report(report: Report) -> str:
    """The whole report, but for its plots."""
    parts = [
        "# What the paper claims, what was run, how they compare",
        "Written by `make report` from the records in `runs/`, the studies in `studies/` and the "
        "paper's numbers in `paper/`. [report.html](report.html) is the same with plots.",
        "## Summary",
        "\n".join(f"- {line}" for line in summary(report)),
        SCALE_NOTE,
        "## Claims",
        _claims(report.claims),
        *(_table(view) for view in report.tables),
        "## Figures",
        *_figures(report),
        "## Deviations and open choices",
        "Where the paper is silent, contradicts itself or differs from its public code.",
        grid(
            ["", "about", "printed", "used", "why", "other readings"],
            [
                [d.id, d.about, d.printed, d.used, d.why, ", ".join(f"`{v}`" for v in d.variants)]
                for d in report.deviations
            ],
        ),
        "## Other records",
        other_records(report),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def render_readme(report: Report) -> str:
    """One small table: every optimizer's first row of each task's first table, at both scales."""
    lines = []
    for view in report.tables:
        headline = {row.row for row in headline_rows(view.table.task)}
        rows = [row for row in view.rows if row.row.row in headline]
        if rows:
            lines.append([f"**Table {view.table.table}**: {view.heading}", "", "", ""])
        for row in rows:
            mini = [
                f"{cell}, {name}"
                for name, cell in zip(view.small, row.mini, strict=True)
                if cell and cell.runs
            ]
            lines.append([row.label, row.paper, _ours(row), "; ".join(mini) or NOT_RUN])
    head = ["", "the paper", "ours, the same scale", "ours, small data"]
    words = " ".join(f"{line}." for line in summary(report))
    more = (
        "[The report](results/REPORT.md) has all rows, the claims, records and deviations; "
        "[the study](results/STUDY.md) says what small data can show of the claims, and what not."
    )
    return f"{words} {more}\n\n{grid(head, lines)}"


def replace_block(text: str, block: str) -> str:
    """The text with a block between the two marks; ValueError where these are not there once."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"needs {BEGIN} and {END}, once each and in this order")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{block}\n{END}{rest.split(END)[1]}"


def summary(report: Report) -> list[str]:
    """What was found, in two or three lines."""
    counts = report.row_counts()
    silent = f", {counts[NO_NUMBER]} without a number to compare" if NO_NUMBER in counts else ""
    lines = [
        f"Of {len(report.rows)} rows that the paper ran, at its own scale: {counts[REPRODUCED]} "
        f"reproduced, {counts[DIFFERS]} differ, {counts[NOT_RUN]} not run{silent}",
        f"{report.mini_count()} of these rows were run on small data",
    ]
    claims = ", ".join(_counted(n, verdict) for verdict, n in report.claim_counts().items())
    return [*lines, f"Of {len(report.claims)} claims: {claims}"]


def _counted(count: int, verdict: str) -> str:
    """As "3 hold at this scale"."""
    several = {HOLDS: "hold at this scale", FAILS: "do not hold"}
    return f"{count} {several.get(verdict, verdict) if count > 1 else verdict}"


def other_records(report: Report) -> str:
    """What becomes of records that no table shows."""
    if not report.other_records:
        return "All records are of the experiments' own configurations, and shown above."
    are = "record is" if report.other_records == 1 else "records are"
    return (
        f"{report.other_records} further {are} of other configurations (variants, studies, recipes "
        "that have changed since) and in no table."
    )


RECORD_HEAD = ("run", "scale, data", "seed", "steps", "wall time", "commit", "machine")


def record_cells(run: Run) -> list[str]:
    """A record's provenance but for its name, which each format links in its own way."""
    return [
        f"{run.scale}, {run.data}",
        str(run.seed),
        f"{run.steps:,}",
        duration(run.wall_s),
        f"{run.commit}, {run.date}" if run.date else run.commit,
        run.machine,
    ]


def notes_of(view: TableView) -> list[str]:
    """What rows say of how they differ from what is printed; the same thing once."""
    notes: dict[str, list[str]] = {}
    for row in view.rows:
        if row.row.why:
            notes.setdefault(row.row.why, []).append(row.label)
    return [f"{'; '.join(labels)}: {why}" for why, labels in notes.items()]


def table_name(row: str) -> str:
    """`table3/novograd-8k` as Table 3."""
    return f"Table {row.partition('/')[0].removeprefix('table')}"


def duration(seconds: float) -> str:
    """`98 s`, `12 min`, `1 h 5 min`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def numbers_grid(
    numbers: Mapping[str, float | Mapping[str, float]],
) -> tuple[list[str], list[list[str]]]:
    """Head and lines of a table of numbers, to four digits, with names in one or two levels."""
    found = dict.fromkeys(name for v in numbers.values() if isinstance(v, Mapping) for name in v)
    order = {name: place for place, name in enumerate(OPTIMIZERS.values())}
    columns = sorted(found, key=lambda name: order.get(name.split(" ")[0], len(order)))
    lines = []
    for name, value in numbers.items():
        if isinstance(value, Mapping):
            lines.append([name, *(_digits(value[c]) if c in value else "" for c in columns)])
        else:
            lines.append([name, _digits(value), *[""] * (len(columns) - 1)])
    return ["", *(columns or ["value"])], lines


def _digits(value: float) -> str:
    return number(float(f"{value:.4g}"))


def grid(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(_escape(cell) for cell in row) + " |" for row in rows)


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _ours(row: RowView) -> str:
    """Our runs at the paper's scale, with their verdict."""
    if row.ours is None:
        return "–"
    return f"{row.ours}, {row.verdict}" if row.ours.runs else str(row.ours)


def _cell(cell: Cell | None) -> str:
    return "–" if cell is None else str(cell)


def _table(view: TableView) -> str:
    table = view.table
    head = ["", "recipe", "the paper", "ours, the same scale", "verdict"]
    head += [f"ours, mini: {name}" for name in view.small] or ["ours, mini"]
    lines = []
    for row in view.rows:
        mini = [_cell(cell) for cell in row.mini] or ["–" if row.ours is None else NOT_RUN]
        again = f" (as in {table_name(row.row.same_as)})" if row.row.same_as else ""
        lines.append(
            [row.label + again, row.recipe, row.paper, _cell(row.ours), str(row.verdict), *mini]
        )
    tolerance = dict.fromkeys(f"{value:g}" for value in table.tolerance.values())
    parts = [
        f"## Table {table.table}",
        f"{table.caption} Numbers: {view.heading}; tolerance {' and '.join(tolerance)}.",
        grid(head, lines),
        "\n".join(f"- {note}" for note in notes_of(view)),
        _records(view.runs),
    ]
    return "\n\n".join(part for part in parts if part)


def _records(runs: Sequence[Run]) -> str:
    if not runs:
        return "No records."
    lines = [[f"[{run.run_id}]({run.file})", *record_cells(run)] for run in runs]
    count = "1 record" if len(runs) == 1 else f"{len(runs)} records"
    return f"<details><summary>{count}</summary>\n\n{grid(RECORD_HEAD, lines)}\n\n</details>"


def _claims(views: Sequence[ClaimView]) -> str:
    lines = [[v.claim.claim, v.claim.where, f"**{v.verdict}**", decided_by(v)] for v in views]
    parts = [grid(["claim", "in the paper", "verdict", "decided by"], lines)]
    for view in views:
        if not view.study and not view.numbers:
            continue
        parts.append(f"### {view.claim.claim}")
        if view.study:
            parts.append(view.study.summary)
        if view.numbers:
            unit = view.claim.measured.unit if view.claim.measured else ""
            parts.append(grid(*numbers_grid(view.numbers)) + (f"\n\n{unit}" if unit else ""))
        if view.records:
            runs = [
                f"- [{run}]({file})" if file else f"- {run}: no record"
                for run, file in view.records
            ]
            parts.append(
                f"<details><summary>{len(runs)} runs</summary>\n\n"
                + "\n".join(runs)
                + "\n\n</details>"
            )
    return "\n\n".join(parts)


def decided_by(view: ClaimView) -> str:
    """The tests and the study behind a claim."""
    tests = [f"`{test}`" for test in view.claim.tests]
    study = [f"study `{view.claim.study}`"] if view.claim.study else []
    return ", ".join([*study, *tests])


def _figures(report: Report) -> list[str]:
    parts = []
    for figure, charts in report.figures:
        drawn = ", ".join(chart.title for chart in charts)
        ours = f"Ours is drawn in report.html: {drawn}." if charts else f"Ours: {NOT_RUN}."
        parts.append(f"**Figure {figure.figure}.** {figure.shows} {figure.unknown} {ours}")
    return parts
