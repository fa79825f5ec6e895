"""The runs of the study: what each was for and what came of it, as a table, `studies/trials.csv`.

A run that diverged leaves no record, but a line here.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

HEADLINE = "headline"
RATES, DECAY = "lr_robustness", "weight_decay"  # what tuning takes from
FINISHED, DIVERGED = "finished", "diverged"


@dataclass(frozen=True)
class Trial:
    """A run that the study asks for."""

    study: str
    data: str
    optimizer: str
    series: str  # trials with the same one belong together
    at: float  # where it stands on the study's axis
    seed: int
    words: tuple[str, ...]  # for the launcher


@dataclass(frozen=True)
class Outcome:
    """A run of the study, and what came of it."""

    study: str
    data: str
    optimizer: str
    series: str
    at: float
    seed: int
    lr: float
    weight_decay: float | None  # None: the optimizer has none
    metric: str
    higher_is_better: bool
    status: str  # "finished" or "diverged"
    value: float | None  # of the metric, on validation data, at the end
    run_id: str

    @property
    def score(self) -> float:
        """More is better; the worst there is for a run without a finite result."""
        if self.value is None or not math.isfinite(self.value):
            return -math.inf
        return self.value if self.higher_is_better else -self.value


@dataclass(frozen=True)
class Tuned:
    """What an optimizer's own sweep on a data set found best."""

    lr: float
    weight_decay: float | None
    trials: int


def tune(outcomes: Iterable[Outcome]) -> dict[tuple[str, str], Tuned]:
    """The best of the runs over rates and decays, by data set and optimizer."""
    tried: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.study in (RATES, DECAY):
            tried.setdefault((outcome.data, outcome.optimizer), []).append(outcome)
    found = {}
    for key, runs in tried.items():
        best = max(runs, key=lambda run: run.score)
        found[key] = Tuned(best.lr, best.weight_decay, len(runs))
    return found


def to_csv(outcomes: Sequence[Outcome]) -> str:
    """A line for each run, sorted."""
    names = [f.name for f in fields(Outcome)]
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    for outcome in sorted(outcomes, key=_place):
        writer.writerow({name: getattr(outcome, name) for name in names})
    return text.getvalue()


def read_trials(path: Path) -> list[Outcome]:
    """What `to_csv` wrote; none where there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [_read(row) for row in csv.DictReader(file)]


def _read(row: Mapping[str, str]) -> Outcome:
    values: dict[str, Any] = dict(row)
    for name in ("at", "lr"):
        values[name] = float(row[name])
    for name in ("value", "weight_decay"):
        values[name] = float(row[name]) if row[name] else None
    values["seed"] = int(row["seed"])
    values["higher_is_better"] = row["higher_is_better"] == "True"
    return Outcome(**values)


def _place(outcome: Outcome) -> tuple[Any, ...]:
    return (
        outcome.study,
        outcome.data,
        outcome.optimizer,
        outcome.series,
        outcome.at,
        outcome.seed,
    )
