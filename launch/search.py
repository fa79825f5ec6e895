"""Searches: trials that are drawn from ranges, at random or by Optuna, for each experiment.

Random trials are functions of the sweep's name and their number: more trials add points and change
none. Optuna's studies are in a SQLite file, so that a second call resumes them; what was running
when a search ended is run again, and its run resumes.
"""

from __future__ import annotations

import importlib
import random
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from analysis.trials import Trial, TrialResult
from engine.config import ConfigProblem
from launch.sweep import Range, Sweep, SweepOptions, override_of
from launch.sweep_state import ListedTrials, ResultOf, Source, SweepState

DRAWS_PER_TRIAL = 10  # at most: points may repeat where axes have few values


def open_sweep(sweep: Sweep, options: SweepOptions) -> SweepState:
    """The state of a sweep: every trial that is known from the start is composed and validated."""
    if sweep.search == "optuna":
        ends = {
            k: axis.low if isinstance(axis, Range) else axis[0] for k, axis in sweep.axes.items()
        }
        trials = [sweep.trial({"experiment": name} | ends) for name in sweep.experiments]
    else:
        trials = random_trials(sweep) if sweep.search == "random" else sweep.grid_trials()
    state = SweepState(
        ListedTrials(trials),
        Path(),
        overrides=[
            f"hardware.processes={options.gpus_per_run}",
            override_of("tracking.sweep", sweep.name),
        ],
        need_data=not options.plan_only,
        longest_first=True,
    )
    specs = state.prepare(trials)
    mark = sweep.fingerprint([spec.run_id for spec in specs])
    folder = Path(specs[0].config.paths.outputs, "sweeps", sweep.name, mark)
    state.logs = folder / "logs"
    if sweep.search == "optuna":
        database = folder.parent / "optuna.db"
        is_plan = options.plan_only and not database.exists()
        drawn = random_trials(sweep)
        state.source = ListedTrials(drawn) if is_plan else OptunaSearch(sweep, database, mark)
    return state


def random_trials(sweep: Sweep) -> list[Trial]:
    """The same points for every experiment."""
    points: dict[str, dict[str, Any]] = {}
    for number in range(sweep.trials * DRAWS_PER_TRIAL):
        generator = random.Random(f"{sweep.name} {number}")
        point = {}
        for key, axis in sweep.axes.items():
            part = generator.random()
            point[key] = axis.at(part) if isinstance(axis, Range) else axis[int(part * len(axis))]
        points[repr(point)] = point
        if len(points) == sweep.trials:
            break
    experiments = dict.fromkeys(sweep.experiments)
    return [
        sweep.trial({"experiment": e} | point) for e in experiments for point in points.values()
    ]


class OptunaSearch(Source):
    """An Optuna study for each experiment, asked in turn; it maximizes the trials' scores."""

    def __init__(self, sweep: Sweep, file: Path, mark: str) -> None:
        self._sweep = sweep
        self._optuna = load_optuna()
        file.parent.mkdir(parents=True, exist_ok=True)
        storage = f"sqlite:///{file.absolute()}"
        self._studies: dict[str, Any] = {}
        for experiment in sweep.experiments:
            name = f"{mark} {experiment} score"
            study = self._optuna.create_study(
                storage=storage, study_name=name, direction="maximize", load_if_exists=True
            )
            # Another one at each start: the same would draw the first points once more.
            seed = random.Random(f"{name} {len(study.trials)}").randrange(2**32)
            study.sampler = self._optuna.samplers.TPESampler(seed=seed, constant_liar=True)
            self._studies[experiment] = study
        ended = [self._state("COMPLETE"), self._state("PRUNED")]
        self._asked = [
            self._trial(experiment, trial.params)
            for experiment, study in self._studies.items()
            for trial in study.get_trials(states=ended)
        ]
        self._tickets: dict[int, tuple[str, int]] = {}  # by the identity of an asked trial
        self._draws = self._draw_in_turn()

    def known(self, result: ResultOf) -> Iterable[Trial]:
        """All that were asked for so far."""
        return self._asked

    def expected(self, result: ResultOf) -> Iterable[Trial]:
        """Random points take the place of those that are yet to be chosen."""
        left = self._sweep.trials * len(self._sweep.experiments) - len(self._asked)
        return [*self._asked, *random_trials(self._sweep)[: max(0, left)]]

    def ask(self) -> Trial | None:
        """Trials that earlier calls have left, then new ones up to the number wanted."""
        return next(self._draws, None)

    def tell(self, trial: Trial, result: TrialResult | None) -> None:
        """A diverged run is pruned: worse than every number. A repetition is forgotten."""
        ticket = self._tickets.pop(id(trial), None)
        if ticket is None:
            return
        experiment, number = ticket
        study = self._studies[experiment]
        if result is None:
            self._asked = [other for other in self._asked if other is not trial]
            study.tell(number, state=self._state("FAIL"))
        elif result.value is None:
            study.tell(number, state=self._state("PRUNED"))
        else:
            study.tell(number, result.score)

    def _draw_in_turn(self) -> Iterator[Trial]:
        iterators = deque(map(self._draw, self._sweep.experiments))
        while iterators:
            iterator = iterators.popleft()
            if (trial := next(iterator, None)) is not None:
                iterators.append(iterator)
                yield trial

    def _draw(self, experiment: str) -> Iterator[Trial]:
        study, failed = self._studies[experiment], self._state("FAIL")
        for trial in study.get_trials(states=[self._state("RUNNING")]):
            if set(trial.params) == set(self._sweep.axes):
                yield self._ask(experiment, trial)
            else:  # stopped while it was drawn
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
            yield self._ask(experiment, trial)

    def _ask(self, experiment: str, drawn: Any) -> Trial:
        trial = self._trial(experiment, drawn.params)
        self._asked.append(trial)
        self._tickets[id(trial)] = experiment, drawn.number
        return trial

    def _trial(self, experiment: str, drawn: dict[str, Any]) -> Trial:
        values: dict[str, Any] = {"experiment": experiment}
        for key, axis in self._sweep.axes.items():
            if isinstance(axis, Range):
                values[key] = float(f"{drawn[key]:.6g}")
            else:
                values[key] = next(value for value in axis if repr(value) == drawn[key])
        return self._sweep.trial(values)

    def _state(self, name: str) -> Any:
        return self._optuna.trial.TrialState[name]


def load_optuna() -> Any:
    """The package, which is optional; ConfigProblem tells how to get it."""
    try:
        optuna = importlib.import_module("optuna")
    except ImportError as problem:
        message = "search=optuna needs Optuna: pip install optuna, or use search=random"
        raise ConfigProblem([message]) from problem
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
