"""Searches: points that are drawn from ranges, at random or by Optuna, for each experiment.

Random points are functions of the sweep's name and the trial's number: more trials add points and
change none. Optuna's studies are in a SQLite file, so that a second call goes on with them; what
was running when a search ended is run again, and its run resumes.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.config import ConfigProblem
from scripts.grid import Point, Range, Sweep

DRAWS_PER_TRIAL = 10  # at most: points may repeat where axes have few values


def random_points(sweep: Sweep) -> list[Point]:
    """As many points for each experiment as there are trials; all experiments get the same."""
    points: dict[tuple[str, ...], Point] = {}
    for experiment in sweep.experiments:
        own: dict[tuple[str, ...], Point] = {}
        for number in range(sweep.trials * DRAWS_PER_TRIAL):
            generator = random.Random(f"{sweep.name} {number}")
            values: dict[str, Any] = {"experiment": experiment}
            for key, axis in sweep.axes.items():
                part = generator.random()
                if isinstance(axis, Range):
                    values[key] = axis.at(part)
                else:
                    values[key] = axis[int(part * len(axis))]
            point = sweep.point(values)
            own[point.words] = point
            if len(own) == sweep.trials:
                break
        points |= own
    return list(points.values())


class OptunaSearch:
    """A study for each experiment, asked in turn."""

    def __init__(self, sweep: Sweep, file: Path, mark: str, higher_is_better: bool) -> None:
        self._sweep = sweep
        self._optuna = load_optuna()
        file.parent.mkdir(parents=True, exist_ok=True)
        storage = f"sqlite:///{file.absolute()}"
        self._studies: dict[str, Any] = {}
        for experiment in sweep.experiments:
            name = f"{mark} {experiment}"
            study = self._optuna.create_study(
                storage=storage,
                study_name=name,
                direction="maximize" if higher_is_better else "minimize",
                load_if_exists=True,
            )
            # Another one at each start: the same would draw the first points once more.
            seed = random.Random(f"{name} {len(study.trials)}").randrange(2**32)
            study.sampler = self._optuna.samplers.TPESampler(seed=seed, constant_liar=True)
            self._studies[experiment] = study

    def told(self) -> list[Point]:
        """The points whose results the studies have."""
        ended = [self._state("COMPLETE"), self._state("PRUNED")]
        return [
            self._point(experiment, trial.params)
            for experiment, study in self._studies.items()
            for trial in study.get_trials(states=ended)
        ]

    def ask(self) -> Iterator[tuple[Any, Point]]:
        """Trials that earlier calls have left, then new ones up to the number wanted."""
        iterators = [self._ask(experiment) for experiment in self._sweep.experiments]
        while iterators:
            for iterator in list(iterators):
                asked = next(iterator, None)
                if asked is None:
                    iterators.remove(iterator)
                else:
                    yield asked

    def _ask(self, experiment: str) -> Iterator[tuple[Any, Point]]:
        study, failed = self._studies[experiment], self._state("FAIL")
        for trial in study.get_trials(states=[self._state("RUNNING")]):
            if set(trial.params) == set(self._sweep.axes):
                yield (experiment, trial.number), self._point(experiment, trial.params)
            else:  # it ended while it was drawn
                study.tell(trial.number, state=failed)
        for _ in range(self._sweep.trials * DRAWS_PER_TRIAL):
            if sum(trial.state != failed for trial in study.get_trials(deepcopy=False)) >= (
                self._sweep.trials
            ):
                return
            trial = study.ask()
            for key, axis in self._sweep.axes.items():
                if isinstance(axis, Range):
                    trial.suggest_float(key, axis.low, axis.high, log=axis.log)
                else:
                    trial.suggest_categorical(key, [repr(value) for value in axis])
            yield (experiment, trial.number), self._point(experiment, trial.params)

    def tell(self, ticket: tuple[str, int], value: float | None) -> None:
        """A result; None for a run that diverged, which is worse than every number."""
        experiment, number = ticket
        study = self._studies[experiment]
        if value is None:
            study.tell(number, state=self._state("PRUNED"))
        else:
            study.tell(number, value)

    def withdraw(self, ticket: tuple[str, int]) -> None:
        """Forgets a trial that is the same as another that runs."""
        experiment, number = ticket
        self._studies[experiment].tell(number, state=self._state("FAIL"))

    def _point(self, experiment: str, drawn: dict[str, Any]) -> Point:
        values: dict[str, Any] = {"experiment": experiment}
        for key, axis in self._sweep.axes.items():
            if isinstance(axis, Range):
                values[key] = float(f"{drawn[key]:.6g}")
            else:
                values[key] = next(value for value in axis if repr(value) == drawn[key])
        return self._sweep.point(values)

    def _state(self, name: str) -> Any:
        return self._optuna.trial.TrialState[name]


def load_optuna() -> Any:
    """The package, which is optional; ConfigProblem says how to get it."""
    try:
        optuna = importlib.import_module("optuna")
    except ImportError as problem:
        message = "search=optuna needs Optuna: pip install optuna, or say search=random"
        raise ConfigProblem([message]) from problem
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
