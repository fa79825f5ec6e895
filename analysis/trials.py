"""Trials: the runs that a study or sweep asks for, and what came of them.

`trials.csv` keeps what each run was for and its id. Its numbers are those of the record of that id.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from analysis.metrics import metric_of, quality
from engine.records import DIVERGED, FINISHED, RecordError, RunRecord

# Studies, by the names of their files in configs/ and of their folders; STUDY decides claims.
STUDY, STUDY_SHORT = "study", "study_short"
TRIALS_FILE = "trials.csv"

HEADLINE = "headline"
RATES, DECAY = "lr_robustness", "weight_decay"  # the trials that tune an optimizer
FAILED, MISSING = "failed", "missing"
DONE = (FINISHED, DIVERGED)  # a diverged run is a result
STUDY_NAMES = (
    HEADLINE,
    RATES,
    "initialisation",
    "warmup",
    "large_batch",
    "longer_training",
    "regularisation",
    "beta2",
    "passes",
    "variants",
    "tensor_sizes",
    "words",
)


@dataclass(frozen=True)
class Trial:
    """A run that a study or sweep asks for: what it is for, and the overrides that compose it."""

    study: str  # the study or sweep
    data: str
    optimizer: str
    series: str  # trials of the same series are points of one line
    at: float  # the position on the study's axis
    seed: int
    metric: str  # what the trial is judged by
    overrides: tuple[str, ...] = field(default=(), compare=False)
    axes: Mapping[str, Any] = field(default_factory=dict, compare=False)  # of a sweep, by key


@dataclass(frozen=True)
class TrialResult:
    """A trial and the run that it is."""

    trial: Trial
    run_id: str
    status: str  # "finished", "diverged", "failed" or "missing"
    record: RunRecord | None = None  # of a finished run, and of a diverged one if it left any

    @property
    def is_done(self) -> bool:
        return self.status in DONE

    @property
    def value(self) -> float | None:
        """The trial's metric at the end of the run; None where there is no finite one."""
        return self.final(self.trial.metric)

    @property
    def quality(self) -> float | None:
        """The value such that percentages of it mean something (see analysis.metrics)."""
        return quality(self.trial.metric, self.value)

    @property
    def score(self) -> float:
        """Higher is better; −∞ for a run without a finite result."""
        return -math.inf if self.value is None else score(self.trial.metric, self.value)

    def final(self, metric: str) -> float | None:
        """A metric at the end of a finished run, if it is there and finite."""
        if self.record is None or self.status != FINISHED:
            return None
        found = self.record.final.get(metric)
        return None if found is None or not math.isfinite(found) else float(found)

    def option(self, name: str) -> float | None:
        """A number among the optimizer's options, such as `lr`, where there is a record."""
        found = None if self.record is None else self.record.config["optimizer"].get(name)
        return None if found is None else float(found)


@dataclass(frozen=True)
class Tuned:
    """The best of an optimizer's own tuning trials on a data set."""

    lr: float
    weight_decay: float | None  # None: the optimizer has none


def score(metric: str, value: float) -> float:
    """A value such that higher is better; UnknownMetric where the direction is not known."""
    return metric_of(metric).sign * value


def best_result(results: Iterable[TrialResult]) -> TrialResult | None:
    """The result with the best score, the first of equals; None if none has a finite value."""
    finite = [one for one in results if one.value is not None]
    return max(finite, key=lambda one: one.score, default=None)


def tune(results: Iterable[TrialResult]) -> dict[tuple[str, str], Tuned]:
    """The best learning rate and weight decay, by data set and optimizer."""
    tried: dict[tuple[str, str], list[TrialResult]] = {}
    for one in results:
        if one.trial.study in (RATES, DECAY):
            tried.setdefault((one.trial.data, one.trial.optimizer), []).append(one)
    best = {key: best_result(runs) for key, runs in tried.items()}
    return {key: tuned_values(one) for key, one in best.items() if one is not None}


def tuned_values(best: TrialResult) -> Tuned:
    """Learning rate and weight decay of a finished run."""
    lr = best.option("lr")
    assert lr is not None
    return Tuned(lr, best.option("weight_decay"))


# --- trials.csv -----------------------------------------------------------------------------------

_IDENTITY = tuple(f.name for f in fields(Trial) if f.compare)


def to_csv(results: Iterable[TrialResult]) -> str:
    """A line for each trial that is done, sorted by what it was for."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_IDENTITY, "status", "run_id"])
    lines = [
        ([getattr(one.trial, name) for name in _IDENTITY], one) for one in results if one.is_done
    ]
    for identity, one in sorted(lines, key=lambda line: line[0]):
        writer.writerow([*identity, one.status, one.run_id])
    return text.getvalue()


def read_trials(
    path: Path, records: Mapping[str, RunRecord], *, strict: bool = True
) -> list[TrialResult]:
    """The trials of a file with their records by run id; none where there is no file.

    A finished run without a record is an error, or unless `strict` left out.
    """
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    found = []
    for number, row in enumerate(rows, 2):
        try:
            raw: dict[str, Any] = {name: row[name] for name in _IDENTITY}
            raw |= {"at": float(row["at"]), "seed": int(row["seed"])}
            status, run_id = row["status"], row["run_id"]
        except (KeyError, ValueError, TypeError) as error:
            raise RecordError(f"{path}: line {number} is not a trial: {error}") from error
        if status not in DONE:
            raise RecordError(f"{path}: line {number}: status {status!r} is none of {DONE}")
        if status == FINISHED and run_id not in records:
            if not strict:
                continue
            raise RecordError(f"{path}: line {number}: there is no record of {run_id}")
        found.append(TrialResult(Trial(**raw), run_id, status, records.get(run_id)))
    return found
