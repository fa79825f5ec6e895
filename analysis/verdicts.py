"""Whether a row of the paper was reproduced. Only runs at the paper's scale are judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from analysis.metrics import metric_label, metric_of
from analysis.paper import Row, Table
from analysis.summaries import NOT_RUN, Cell

REPRODUCED, DIFFERS = "reproduced", "differs"
CITED = "cited"  # of other papers, on another model
NO_NUMBER = "no number"  # the paper prints none for this row
ROUNDING = 1e-9  # 76.38 - 76.08 is a little more than 0.3 in binary


@dataclass(frozen=True)
class Rule:
    """How a verdict is reached: `{name}` in the text stands for that threshold."""

    text: str
    thresholds: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.text.format(**self.thresholds)


ROW_RULE = Rule(
    "A row is reproduced if the mean of our runs of the same recipe at the paper's scale is, in "
    "every metric, worse than the paper's number by no more than the table's tolerance, or better."
)


def tolerance_rule(table: Table) -> Rule:
    """The table's thresholds: "tolerance 0.3 (dev-clean WER, test-clean WER), 0.6 (…)"."""
    groups: dict[float, list[str]] = {}
    for metric, tolerance in table.tolerance.items():
        groups.setdefault(tolerance, []).append(metric)
    parts = [
        f"{{{metrics[0]}:g}} ({', '.join(map(metric_label, metrics))})"
        for metrics in groups.values()
    ]
    text = f"{{{next(iter(table.tolerance))}:g}}" if len(groups) == 1 else ", ".join(parts)
    return Rule(f"tolerance {text}", table.tolerance)


@dataclass(frozen=True)
class Gap:
    """How far ours is from the paper's: ours less the paper's."""

    metric: str
    by: float
    within: bool  # the tolerance, or better

    def __str__(self) -> str:
        sign = "+" if self.by > 0 else "−" if self.by < 0 else "±"
        return f"{metric_label(self.metric)} {sign}{metric_of(self.metric).format(abs(self.by))}"


@dataclass(frozen=True)
class Verdict:
    """A row's verdict, with the gap of each of its metrics where there are runs."""

    kind: str
    gaps: tuple[Gap, ...] = ()

    def __str__(self) -> str:
        if self.kind != DIFFERS:
            return self.kind
        gaps = ", ".join(str(gap) for gap in self.gaps if not gap.within)
        return f"{DIFFERS}: {gaps or 'all runs diverged'}"


def judge(row: Row, table: Table, cell: Cell) -> Verdict:
    """From our runs at the paper's scale, of the experiment's own configuration.

    A row that is shown again is judged by the runs of the row that it repeats. A cited row gets no
    verdict: the number is of another model.
    """
    if row.cited:
        return Verdict(CITED)
    if not cell.is_run:
        return Verdict(NOT_RUN)
    if not row.metrics:
        return Verdict(NO_NUMBER)
    if not cell.runs:
        return Verdict(DIFFERS)
    measured = zip(measured_metrics(row, table), cell.values, strict=True)
    found = {name: summary for name, summary in measured if summary is not None}
    missing = sorted(set(row.metrics) - set(found))
    if missing:
        raise ValueError(f"{row.row}: its runs did not measure {', '.join(missing)}")
    gaps = tuple(
        _gap(metric, found[metric].mean - paper, table.tolerance[metric])
        for metric, paper in row.metrics.items()
    )
    return Verdict(REPRODUCED if all(gap.within for gap in gaps) else DIFFERS, gaps)


def measured_metrics(row: Row, table: Table) -> list[str]:
    """The metrics of a row's cells: those that the paper prints for it, else all of the table."""
    return [metric for metric in table.tolerance if metric in row.metrics or not row.metrics]


def count(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """How many are of each kind; the first three always."""
    kinds = dict.fromkeys((REPRODUCED, DIFFERS, NOT_RUN), 0)
    return kinds | Counter(verdict.kind for verdict in verdicts)


def _gap(metric: str, by: float, tolerance: float) -> Gap:
    worse = -metric_of(metric).sign * by
    return Gap(metric, by, worse <= tolerance + ROUNDING)  # False for NaN as well
