"""A study's definition, `configs/study*.yaml`, read strictly, and the trials that it asks for.

Every optimizer is tuned on every data set with the same number of trials. All other trials start
from what tuning found (launch/study_stages.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from analysis.trials import DECAY, HEADLINE, RATES, STUDY_NAMES, Trial, Tuned
from engine.config import ConfigProblem
from engine.schema import did_you_mean, read_dataclass
from launch.compose import CONFIGS, compose, options_of
from launch.sweep import override_of
from tasks.catalog import task_class

FILE = CONFIGS / "study.yaml"
TUNING = ", tuning"  # behind the name of a study whose points are tuned again
SHORT = CONFIGS / "study_short.yaml"  # of the short regime: few passes over the data


@dataclass(frozen=True)
class RowOptions:
    """An optimizer on a data set."""

    experiment: str
    lr: float  # what the factors of `rates` multiply
    weight_decay: float | None = None  # where it is tuned: what those of `decays` multiply

    @property
    def task(self) -> str:
        return self.experiment.split("/")[0]


@dataclass(frozen=True)
class DataOptions:
    """A data set and the optimizers that are compared on it."""

    rows: dict[str, Any]  # RowOptions by optimizer
    small_data: str = "own"
    rates: list[float] = field(default_factory=list)  # default: those of the file
    report_split: str | None = None  # what all but tuning is judged on; default: as tuning


@dataclass(frozen=True)
class PointOptions:
    """A point of a study, relative to the tuned recipe."""

    at: float  # its position on the axis
    # Or by data set: the point is then only one of the data sets that are named.
    overrides: list[str] | dict[str, Any] = field(default_factory=list)
    lr: float | dict[str, float] = 1.0  # a multiple of the tuned one, or one for each optimizer
    weight_decay: float | dict[str, float] = 1.0
    batch: float = 1.0  # a multiple, as is `longer` of the budget
    longer: float = 1.0
    series: str = ""  # points of the same series form a line

    def is_of(self, data: str) -> bool:
        return not isinstance(self.overrides, dict) or data in self.overrides

    def overrides_on(self, data: str) -> list[str]:
        return self.overrides[data] if isinstance(self.overrides, dict) else self.overrides

    def scaled(self, optimizer: str, tuned: Tuned) -> Tuned:
        """The tuned values times this point's factors."""

        def by(factors: float | dict[str, float], value: float) -> float:
            factor = factors.get(optimizer, 1.0) if isinstance(factors, dict) else factors
            return value if factor == 1.0 else three_digits(value * factor)

        decay = tuned.weight_decay
        return Tuned(by(self.lr, tuned.lr), None if decay is None else by(self.weight_decay, decay))


@dataclass(frozen=True)
class StudyOptions:
    """One question: some points for each optimizer on some data sets."""

    data: dict[str, Any]  # overrides of all points on that data set
    points: list[dict[str, Any]]  # PointOptions once read
    # Default: all; or by data set, and all on those that are not named.
    optimizers: list[str] | dict[str, list[str]] = field(default_factory=list)
    seeds: list[int] = field(default_factory=lambda: [0])
    rates: list[float] = field(default_factory=list)  # tunes the rate again at each point

    def asks(self, data: str, optimizer: str) -> bool:
        """Whether the optimizer is one of this study's on a data set."""
        asked = self.optimizers.get(data) if isinstance(self.optimizers, dict) else self.optimizers
        return not asked or optimizer in asked


@dataclass(frozen=True)
class QuickOptions:
    """What `--quick` runs."""

    data: list[str]
    studies: list[str] = field(default_factory=list)
    seeds: list[int] = field(default_factory=lambda: [0])


@dataclass(frozen=True)
class StudyPlan:
    """All of a study's file, and the overrides of every run."""

    scale: str  # of every run, unless its overrides name one
    seeds: list[int]  # of the headline
    rates: list[float]  # factors of a row's learning rate
    decays: list[float]  # and of its weight decay
    data: dict[str, Any]  # DataOptions by name
    studies: dict[str, Any]  # StudyOptions by name
    extend: int = 0  # values by which a grid may grow while a best value lies at its edge
    quick: dict[str, Any] | None = None  # QuickOptions
    overrides: list[str] = field(default_factory=list)

    @property
    def rows(self) -> dict[tuple[str, str], RowOptions]:
        """By data set and optimizer."""
        return {(name, o): row for name, data in self.data.items() for o, row in data.rows.items()}

    def only(self, data: Sequence[str]) -> StudyPlan:
        """The plan for some of the data sets."""
        unknown = [name for name in data if name not in self.data]
        if unknown:
            known = ", ".join(self.data)
            raise ConfigProblem([f"--data {name}: the study has {known}" for name in unknown])
        return replace(self, data={n: one for n, one in self.data.items() if n in data})

    def reduced(self) -> StudyPlan:
        """The part of the plan that `--quick` asks for."""
        problems: list[str] = []
        if self.quick is None:
            raise ConfigProblem([f"{FILE.name} has no `quick`: --quick has nothing to run"])
        quick = read_dataclass(QuickOptions, self.quick, "quick", problems)
        if quick is None or problems:
            raise ConfigProblem([f"{FILE.name}: {problem}" for problem in problems])
        studies = {name: one for name, one in self.studies.items() if name in quick.studies}
        return replace(self.only(quick.data), studies=studies, seeds=quick.seeds)

    # --- trials ---

    def rate_trial(self, data: str, optimizer: str, lr: float) -> Trial:
        """A learning rate, at the row's own weight decay."""
        values = Tuned(lr, self.rows[data, optimizer].weight_decay)
        return self._trial(RATES, PointOptions(lr), data, optimizer, values, tuning=True)

    def decay_trial(self, data: str, optimizer: str, lr: float, decay: float) -> Trial:
        """A weight decay, at the best learning rate."""
        values = Tuned(lr, decay)
        return self._trial(DECAY, PointOptions(decay), data, optimizer, values, tuning=True)

    def headline_trials(self, data: str, optimizer: str, tuned: Tuned) -> Iterator[Trial]:
        for seed in self.seeds:
            yield self._trial(HEADLINE, PointOptions(0.0), data, optimizer, tuned, seed=seed)

    def point_trials(
        self, study: str, point: PointOptions, data: str, optimizer: str, values: Tuned
    ) -> Iterator[Trial]:
        """A point of a study with each of its seeds."""
        for seed in self.studies[study].seeds:
            yield self._trial(study, point, data, optimizer, values, seed=seed)

    def point_rate_trial(
        self, study: str, point: PointOptions, data: str, optimizer: str, values: Tuned
    ) -> Trial:
        """A learning rate at a point that is tuned again."""
        trial = self._trial(f"{study}{TUNING}", point, data, optimizer, values, tuning=True)
        return replace(trial, at=values.lr, series=f"{point.series} at {point.at:g}".strip())

    def _trial(
        self,
        study: str,
        point: PointOptions,
        data: str,
        optimizer: str,
        values: Tuned,
        *,
        seed: int = 0,
        tuning: bool = False,
    ) -> Trial:
        row, options = self.rows[data, optimizer], self.data[data]
        has_scale = any(word.startswith("scale=") for word in self.overrides)
        words = [
            f"experiment={row.experiment}",
            *([] if has_scale else [f"scale={self.scale}"]),
            f"small_data={options.small_data}",
            *(["evaluation.final=false"] if tuning else []),  # a test split stays unseen
            *point.overrides_on(data),
            override_of("optimizer.lr", values.lr),
        ]
        if values.weight_decay is not None:
            words.append(override_of("optimizer.weight_decay", values.weight_decay))
        words += [f"seed={seed}", *self.overrides]
        if point.batch != 1.0:
            size = _composed(*words)[0]
            words.append(f"batch.global_size={round(point.batch * size)}")
        if point.longer != 1.0:
            amount, unit = _composed(*words)[1].split()
            words.append(override_of("budget", f"{float(amount) * point.longer:.12g} {unit}"))
        metric = str(task_class(row.task).headline.name)
        if options.report_split and not tuning:
            metric = f"{options.report_split}/{metric.partition('/')[2]}"
        return Trial(study, data, optimizer, point.series, point.at, seed, metric, tuple(words))


def read_study(
    overrides: Sequence[str] = (), path: Path = FILE, *, quick: bool = False
) -> StudyPlan:
    """The study's file, or its `quick` part; ConfigProblem lists everything that is wrong."""
    problems: list[str] = []
    raw = yaml.safe_load(path.read_text()) | {"overrides": list(overrides)}
    plan: StudyPlan | None = read_dataclass(StudyPlan, raw, "", problems)
    if plan is not None:
        data = {n: _read_data(n, plan, given, problems) for n, given in plan.data.items()}
        studies = {n: _read_one(n, plan, given, problems) for n, given in plan.studies.items()}
        plan = replace(plan, data=data, studies=studies)
    if plan is None or problems:
        raise ConfigProblem([f"{path.name}: {problem}" for problem in problems])
    return plan.reduced() if quick else plan


def _read_data(name: str, plan: StudyPlan, given: Any, problems: list[str]) -> DataOptions | None:
    where = f"data.{name}"
    read: DataOptions | None = read_dataclass(
        DataOptions, {"rates": plan.rates} | given, where, problems
    )
    if read is None:
        return None
    known = options_of("small_data")
    if read.small_data not in known:
        hint = did_you_mean(read.small_data, known)
        problems.append(f"{where}.small_data={read.small_data} does not exist{hint}")
    rows = {
        optimizer: row
        for optimizer, one in read.rows.items()
        if (row := read_dataclass(RowOptions, one, f"{where}.rows.{optimizer}", problems))
    }
    if len({row.weight_decay is None for row in rows.values()}) > 1:
        problems.append(f"{where}.rows: tune weight_decay of all optimizers or of none")
    return replace(read, rows=rows)


def _read_one(name: str, plan: StudyPlan, given: Any, problems: list[str]) -> StudyOptions | None:
    where = f"studies.{name}"
    askable = [one for one in STUDY_NAMES if one not in (HEADLINE, RATES)]  # made for every plan
    if name not in askable:
        problems.append(f"{where}: no study has this name{did_you_mean(name, askable)}")
    read: StudyOptions | None = read_dataclass(StudyOptions, given, where, problems)
    if read is None:
        return None
    by_data = read.optimizers if isinstance(read.optimizers, dict) else {}
    for part, named in (("data", read.data), ("optimizers", by_data)):
        for data in named:
            if data not in plan.data:
                hint = did_you_mean(data, plan.data)
                problems.append(f"{where}.{part}: {data} is not a data set of the study{hint}")
    for data, names in by_data.items():
        known = plan.data.get(data, {}).get("rows", {})
        if data in plan.data and not (isinstance(names, list) and set(names) <= set(known)):
            problems.append(f"{where}.optimizers.{data}: must be a list of {', '.join(known)}")
    points = [read_dataclass(PointOptions, one, f"{where}.points", problems) for one in read.points]
    return replace(read, points=[_with_overrides(p, read.data) for p in points if p is not None])


def _with_overrides(point: PointOptions, study: dict[str, list[str]]) -> Any:
    """The point of a study whose overrides on each data set are in front of the point's own."""
    own = {data: point.overrides_on(data) for data in study if point.is_of(data)}
    return replace(point, overrides={data: [*study[data], *words] for data, words in own.items()})


@lru_cache(maxsize=1024)
def _composed(*overrides: str) -> tuple[int, str]:
    """The global batch and the budget of a run."""
    raw = compose(list(overrides))
    return int(raw["batch"]["global_size"]), str(raw["budget"])


def three_digits(value: float) -> float:
    """Enough for a rate, and readable."""
    return float(f"{value:.3g}")
