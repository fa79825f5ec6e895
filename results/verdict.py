"""Whether a row of the paper was reproduced. Only runs at the paper's scale are asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from results.ledger import Summary
from results.schema import Row, Table, metric_label, metric_of

REPRODUCED, DIFFERS, NOT_RUN = "reproduced", "differs", "not run"
CITED = "cited"  # of other papers, on another model
NO_NUMBER = "no number"  # the paper prints none for this row
ROUNDING = 1e-9  # 76.38 - 76.08 is a little more than 0.3 in binary


@dataclass(frozen=True)
class Gap:
    """How far ours is from the paper's: ours less the paper's."""

    metric: str
    by: float
    within: bool  # the tolerance, or better

    def __str__(self) -> str:
        sign = "+" if self.by > 0 else "−" if self.by < 0 else "±"
        return f"{metric_label(self.metric)} {sign}{abs(self.by):.2f}"


@dataclass(frozen=True)
class Verdict:
    """A row's verdict, with the gap of each of its metrics where there are runs."""

    kind: str
    gaps: tuple[Gap, ...] = ()

    def __str__(self) -> str:
        if self.kind != DIFFERS:
            return self.kind
        return f"{DIFFERS}: " + ", ".join(str(gap) for gap in self.gaps if not gap.within)


def judge(row: Row, table: Table, ours: Mapping[str, Summary | None]) -> Verdict:
    """From the means of our runs at the paper's scale, of the experiment's own configuration.

    A row that is shown again is judged by the runs of the row that it repeats. A cited row gets no
    verdict: the number is of another model.
    """
    if row.cited:
        return Verdict(CITED)
    found = {name: summary for name, summary in ours.items() if summary is not None}
    if not found:
        return Verdict(NOT_RUN)
    if not row.metrics:
        return Verdict(NO_NUMBER)
    missing = sorted(set(row.metrics) - set(found))
    if missing:
        raise ValueError(f"{row.row}: its runs did not measure {', '.join(missing)}")
    gaps = tuple(
        _gap(metric, found[metric].mean - paper, table.tolerance[metric])
        for metric, paper in row.metrics.items()
    )
    return Verdict(REPRODUCED if all(gap.within for gap in gaps) else DIFFERS, gaps)


def count(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """How many are of each kind; those three that matter always."""
    kinds = dict.fromkeys((REPRODUCED, DIFFERS, NOT_RUN), 0)
    for verdict in verdicts:
        kinds[verdict.kind] = kinds.get(verdict.kind, 0) + 1
    return kinds


def _gap(metric: str, by: float, tolerance: float) -> Gap:
    worse = -by if metric_of(metric).higher_is_better else by
    return Gap(metric, by, worse <= tolerance + ROUNDING)  # False for NaN as well
