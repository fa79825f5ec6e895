"""The study as data: `configs/study.yaml`, read strictly, and the runs that follow from it.

First every optimizer is tuned on every data set: its learning rate over the same number of values,
then its weight decay where the paper tunes that. All other runs start from what came out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from engine.config import ConfigProblem, did_you_mean, read_dataclass
from results.claims import STUDY_NAMES
from results.trials import DECAY, HEADLINE, RATES, Trial, Tuned
from scripts.grid import word_of
from scripts.launch import CONFIGS, compose, options_of

FILE = CONFIGS / "study.yaml"


@dataclass(frozen=True)
class RowOptions:
    """An optimizer on a data set."""

    experiment: str
    lr: float  # the middle of the rates that are tried
    weight_decay: float | None = None  # where it is tuned: the middle of those


@dataclass(frozen=True)
class DataOptions:
    """A data set and the optimizers that are compared on it."""

    rows: dict[str, Any]
    small_data: str = "own"
    rates: list[float] = field(default_factory=list)  # multiples of a row's `lr`


@dataclass(frozen=True)
class PointOptions:
    """A point of a study, relative to the tuned recipe."""

    at: float  # where it stands on the axis
    words: list[str] = field(default_factory=list)
    lr: float | dict[str, float] = 1.0  # a multiple of the tuned one, or one for each optimizer
    weight_decay: float | dict[str, float] = 1.0
    batch: float = 1.0
    longer: float = 1.0
    series: str = ""  # points with the same one belong together


@dataclass(frozen=True)
class StudyOptions:
    """One question: some points for each optimizer on some data sets."""

    data: dict[str, Any]  # words for all points on that data set
    points: list[dict[str, Any]]
    optimizers: list[str] = field(default_factory=list)  # all, if none is named
    seeds: list[int] = field(default_factory=lambda: [0])


@dataclass(frozen=True)
class StudyFile:
    """All of configs/study.yaml."""

    seeds: list[int]  # of the headline
    rates: list[float]
    decays: list[float]
    data: dict[str, Any]
    studies: dict[str, Any]


@dataclass(frozen=True)
class StudyPlan:
    """The file, read; and the runs that it asks for."""

    seeds: list[int]
    factors: list[float]  # of weight decays
    data: dict[str, DataOptions]
    rows: dict[tuple[str, str], RowOptions]  # by data set and optimizer
    studies: dict[str, StudyOptions]
    points: dict[str, list[PointOptions]]
    words: tuple[str, ...]  # for every run

    def rates(self, data: str, optimizer: str) -> Iterator[Trial]:
        """The sweep over learning rates."""
        for factor in self.data[data].rates:
            row = self.rows[data, optimizer]
            lr = _digits(row.lr * factor)
            values = {} if row.weight_decay is None else {"weight_decay": row.weight_decay}
            yield self._trial(RATES, data, optimizer, lr, {"lr": lr} | values)

    def decays(self, data: str, optimizer: str, tuned: Tuned) -> Iterator[Trial]:
        """Other weight decays at the best rate, where the paper tunes them too."""
        own = self.rows[data, optimizer].weight_decay
        if own is not None:
            for factor in self.factors:
                decay = _digits(own * factor)
                values = {"lr": tuned.lr, "weight_decay": decay}
                yield self._trial(DECAY, data, optimizer, decay, values)

    def others(self, data: str, optimizer: str, tuned: Tuned) -> Iterator[Trial]:
        """What comes after tuning: the headline's seeds, and the points of the studies."""
        best = {"lr": tuned.lr}
        if tuned.weight_decay is not None:
            best["weight_decay"] = tuned.weight_decay
        for seed in self.seeds:
            yield self._trial(HEADLINE, data, optimizer, 0.0, best, seed=seed)
        for name, study in self.studies.items():
            if data not in study.data or optimizer not in (study.optimizers or [optimizer]):
                continue
            for point in self.points[name]:
                values = dict(best)
                for key, by in (("lr", point.lr), ("weight_decay", point.weight_decay)):
                    factor = by.get(optimizer, 1.0) if isinstance(by, dict) else by
                    if factor != 1.0 and key in values:
                        values[key] = _digits(values[key] * factor)
                for seed in study.seeds:
                    yield self._trial(
                        name,
                        data,
                        optimizer,
                        point.at,
                        values,
                        seed=seed,
                        series=point.series,
                        words=(*study.data[data], *point.words),
                        batch=point.batch,
                        longer=point.longer,
                    )

    def _trial(
        self,
        study: str,
        data: str,
        optimizer: str,
        at: float,
        values: Mapping[str, float],
        *,
        seed: int = 0,
        series: str = "",
        words: tuple[str, ...] = (),
        batch: float = 1.0,
        longer: float = 1.0,
    ) -> Trial:
        tuning = study in (RATES, DECAY)
        all_words = [
            f"experiment={self.rows[data, optimizer].experiment}",
            *([] if any(word.startswith("scale=") for word in self.words) else ["scale=mini"]),
            f"small_data={self.data[data].small_data}",
            *(["evaluation.final=false"] if tuning else []),  # a test split stays unseen
            *words,
            *(word_of(f"optimizer.{key}", value) for key, value in values.items()),
            f"seed={seed}",
            *self.words,
        ]
        if batch != 1.0:
            size = compose(all_words)["batch"]["global_size"]
            all_words.append(f"batch.global_size={round(batch * size)}")
        if longer != 1.0:
            amount, unit = str(compose(all_words)["budget"]).split()
            all_words.append(word_of("budget", f"{float(amount) * longer:.12g} {unit}"))
        return Trial(study, data, optimizer, series, at, seed, tuple(all_words))


def read_plan(words: Sequence[str] = (), path: Path = FILE) -> StudyPlan:
    """The study's file; ConfigProblem has everything that is wrong with it."""
    problems: list[str] = []
    file = read_dataclass(StudyFile, yaml.safe_load(path.read_text()), "", problems)
    if file is None:
        raise ConfigProblem([f"{path.name}: {problem}" for problem in problems])
    data: dict[str, DataOptions] = {}
    rows: dict[tuple[str, str], RowOptions] = {}
    for name, raw in file.data.items():
        read = read_dataclass(DataOptions, {"rates": file.rates} | raw, f"data.{name}", problems)
        if read is None:
            continue
        data[name] = read
        if read.small_data not in options_of("small_data"):
            known = did_you_mean(read.small_data, options_of("small_data"))
            problems.append(f"data.{name}.small_data={read.small_data} does not exist{known}")
        for optimizer, given in read.rows.items():
            row = read_dataclass(RowOptions, given, f"data.{name}.rows.{optimizer}", problems)
            if row is not None:
                rows[name, optimizer] = row
    studies, points = {}, {}
    for name, raw in file.studies.items():
        where = f"studies.{name}"
        if name not in STUDY_NAMES:
            problems.append(f"{where}: no study has this name{did_you_mean(name, STUDY_NAMES)}")
        study = read_dataclass(StudyOptions, raw, where, problems)
        if study is None:
            continue
        studies[name] = study
        points[name] = [
            point
            for given in study.points
            if (point := read_dataclass(PointOptions, given, f"{where}.points", problems))
        ]
        problems += [
            f"{where}.data: {one} is no data set of the study{did_you_mean(one, data)}"
            for one in study.data
            if one not in data
        ]
    if problems:
        raise ConfigProblem([f"{path.name}: {problem}" for problem in problems])
    return StudyPlan(file.seeds, file.decays, data, rows, studies, points, tuple(words))


def _digits(value: float) -> float:
    """Three are enough for a rate, and can be read."""
    return float(f"{value:.3g}")
