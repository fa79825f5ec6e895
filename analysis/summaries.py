"""Final metrics over the seeds of an experiment."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from analysis.metrics import find_metric
from engine.records import DIVERGED, RunRecord

NOT_RUN = "not run"


@dataclass(frozen=True)
class Summary:
    """A metric over the seeds of one experiment."""

    mean: float
    deviation: float | None  # None for a single run, NaN where a value is not finite
    runs: int
    digits: int = 2

    def __str__(self) -> str:
        spread = "" if self.deviation is None else f" ± {self.deviation:.{self.digits}f}"
        return f"{self.mean:.{self.digits}f}{spread}"


def summarize(records: Iterable[RunRecord], metric: str) -> Summary | None:
    """Mean and standard deviation of a final metric; None where no run measured it."""
    values = [record.final[metric] for record in records if metric in record.final]
    if not values:
        return None
    known = find_metric(metric)
    deviation = None
    if len(values) > 1:
        deviation = stdev(values) if all(map(math.isfinite, values)) else math.nan
    return Summary(fmean(values), deviation, len(values), known.digits if known else 2)


@dataclass(frozen=True)
class Cell:
    """Several metrics over the same runs; None for a metric that they did not measure."""

    values: tuple[Summary | None, ...]
    runs: int  # finished ones
    diverged: int = 0  # others

    @property
    def is_run(self) -> bool:
        return self.runs + self.diverged > 0

    @property
    def texts(self) -> list[str]:
        """A text for each metric; none if all runs diverged."""
        return ["–" if value is None else str(value) for value in self.values if self.runs]

    @property
    def count(self) -> str:
        """`(n=3)`, `(n=2, 1 diverged)`, `diverged (n=1)`."""
        if not self.runs:
            return f"diverged (n={self.diverged})"
        return f"(n={self.runs}{f', {self.diverged} diverged' if self.diverged else ''})"

    def __str__(self) -> str:
        return f"{' / '.join(self.texts)} {self.count}".strip() if self.is_run else NOT_RUN


def make_cell(records: Sequence[RunRecord], metrics: Iterable[str]) -> Cell:
    """The cell of a table for some runs."""
    finished = [record for record in records if record.status != DIVERGED]
    values = tuple(summarize(finished, metric) for metric in metrics)
    return Cell(values, len(finished), len(records) - len(finished))
