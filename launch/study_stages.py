"""The study's stages: rates, decays, and everything that starts from the best of them.

A grid is extended while the best value of any optimizer on that data set lies at an edge. All
optimizers then get one more value, at the edge nearer to their own best, so that everyone has the
same number of trials.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path

from analysis.folders import RUNS, STUDIES
from analysis.trials import (
    MISSING,
    STUDY,
    TRIALS_FILE,
    Trial,
    TrialResult,
    Tuned,
    best_result,
    read_trials,
    to_csv,
    tuned_values,
)
from engine.config import ConfigProblem
from engine.records import RunRecord, read_own_records, read_records
from launch.run_spec import make_run_spec
from launch.study import TUNING, PointOptions, StudyPlan, three_digits
from launch.sweep_state import ResultOf, RunEnd, Source, SweepState
from tasks.base import DataProblem
from tasks.files import write_atomically

Grids = Mapping[str, list[float]]  # values by optimizer


class StudyStages(Source):
    """The trials of a study, as far as results tell them."""

    def __init__(self, plan: StudyPlan) -> None:
        self.plan = plan

    def known(self, result: ResultOf) -> Iterator[Trial]:
        return self._in_order(result, whole=False)

    def expected(self, result: ResultOf) -> Iterator[Trial]:
        """Where tuning is not done, what follows is planned at the rows' own values."""
        return self._in_order(result, whole=True)

    def _in_order(self, result: ResultOf, *, whole: bool) -> Iterator[Trial]:
        """Tuning and headline of all data sets, then study by study as the file has them."""
        order = {study: place for place, study in enumerate(self.plan.studies, 1)}
        trials = [t for data in self.plan.data for t in self._trials(data, result, whole=whole)]
        return iter(sorted(trials, key=lambda t: order.get(t.study.removesuffix(TUNING), 0)))

    def _trials(self, data: str, result: ResultOf, *, whole: bool) -> Iterator[Trial]:
        plan, rows = self.plan, self.plan.data[data].rows
        factors = plan.data[data].rates
        rates = {o: [three_digits(row.lr * f) for f in factors] for o, row in rows.items()}
        trials, tuned = self._search(result, rates, lambda o, lr: plan.rate_trial(data, o, lr))
        yield from chain.from_iterable(trials.values())
        if whole:
            tuned = {o: Tuned(row.lr, row.weight_decay) for o, row in rows.items()} | tuned
        decays = {
            o: [three_digits(rows[o].weight_decay * f) for f in plan.decays]
            for o in tuned
            if rows[o].weight_decay is not None
        }
        # The rates were tried at the row's own decay: the best of them is a decay's result.
        given = {
            o: (rows[o].weight_decay, result(trial))
            for o in decays
            for trial in trials[o]
            if trial.at == tuned[o].lr
        }
        trials, decided = self._search(
            result, decays, lambda o, decay: plan.decay_trial(data, o, tuned[o].lr, decay), given
        )
        yield from chain.from_iterable(trials.values())
        tuned = {o: one for o, one in tuned.items() if whole or o not in decays} | decided
        for optimizer, values in tuned.items():
            yield from plan.headline_trials(data, optimizer, values)
        for name, study in plan.studies.items():
            if data in study.data:
                asked = {o: v for o, v in tuned.items() if study.asks(data, o)}
                for point in filter(lambda one: one.is_of(data), study.points):
                    yield from self._point(name, point, data, asked, result, whole=whole)

    def _point(
        self,
        study: str,
        point: PointOptions,
        data: str,
        tuned: Mapping[str, Tuned],
        result: ResultOf,
        *,
        whole: bool,
    ) -> Iterator[Trial]:
        """A point with all its seeds; its learning rate is tuned again where the study asks."""
        plan = self.plan
        values = {o: point.scaled(o, one) for o, one in tuned.items()}
        if factors := plan.studies[study].rates:
            grids = {o: [three_digits(one.lr * f) for f in factors] for o, one in values.items()}
            trials, found = self._search(
                result,
                grids,
                lambda o, lr: plan.point_rate_trial(
                    study, point, data, o, Tuned(lr, values[o].weight_decay)
                ),
            )
            yield from chain.from_iterable(trials.values())
            values = values | found if whole else found
        for optimizer, one in values.items():
            yield from plan.point_trials(study, point, data, optimizer, one)

    def _search(
        self,
        result: ResultOf,
        grids: Grids,
        trial_at: Callable[[str, float], Trial],
        given: Mapping[str, tuple[float, TrialResult]] | None = None,
    ) -> tuple[dict[str, list[Trial]], dict[str, Tuned]]:
        """Trials of the grids as far as they are extended, and the best of complete ones.

        `given` is a value of each grid whose result an earlier stage has.
        """
        extensions = 0
        while True:
            trials = {o: [trial_at(o, value) for value in grid] for o, grid in grids.items()}
            results = {
                o: dict(zip(grid, map(result, trials[o]), strict=True)) for o, grid in grids.items()
            }
            done = {
                o for o, own in results.items() if all(r.status != MISSING for r in own.values())
            }
            if self.plan.extend and len(done) < len(grids):
                return trials, {}
            for o, (own, one) in (given or {}).items():
                results[o] = {own: one} | results[o]
            if extensions == self.plan.extend or not any(map(at_edge, results.values())):
                best = {o: at for o in grids if o in done and (at := best_value(results[o]))}
                return trials, {o: tuned_values(results[o][at]) for o, at in best.items()}
            extensions += 1
            grids = {o: [*grid, beyond(results[o])] for o, grid in grids.items()}


def best_value(results: Mapping[float, TrialResult]) -> float | None:
    """The value of a grid with the best result; None where none finished."""
    best = best_result(results.values())
    return next((value for value, one in results.items() if one is best), None)


def at_edge(results: Mapping[float, TrialResult]) -> bool:
    """Whether a better value may lie beyond those that were tried."""
    best = best_value(results)
    return len(results) > 1 and (best is None or best in (min(results), max(results)))


def beyond(results: Mapping[float, TrialResult]) -> float:
    """The next value past the edge nearer to the best one; the lower one where none finished."""
    values = sorted(results)
    best = best_value(results) or values[0]
    if best / values[0] <= values[-1] / best:
        return three_digits(values[0] ** 2 / values[1])
    return three_digits(values[-1] ** 2 / values[-2])


class StudyState(SweepState):
    """A study's state, with its folder below outputs/."""

    def __init__(self, plan: StudyPlan, folder: Path, published: Mapping[str, RunEnd]) -> None:
        super().__init__(
            StudyStages(plan),
            folder / "logs",
            overrides=[f"tracking.sweep={folder.name}"],
            published=published,
        )
        self.folder = folder
        records = {record.run_id: record for record in self.records()}
        earlier = read_trials(folder / TRIALS_FILE, records, strict=False)
        self._others = [one for one in earlier if one.trial.data not in plan.data]

    def save(self) -> None:
        """trials.csv: what is done, with earlier trials of data sets that are not run now."""
        text = to_csv([*self._others, *self.results()])
        write_atomically(self.folder / TRIALS_FILE, text.encode(), durable=False)

    def records(self) -> list[RunRecord]:
        """Those of the runs here, and of published ones that count."""
        published = [record for _, record in self._published.values() if record]
        own = read_own_records(self.folder.parent)
        return [*{record.run_id: record for record in [*published, *own]}.values()]


def open_study(plan: StudyPlan, *, keep: bool, name: str = STUDY) -> StudyState:
    """The state of a study, below outputs/; with `keep` published runs count as done."""
    data = next(iter(plan.data))
    optimizer, row = next(iter(plan.data[data].rows.items()))
    config = make_run_spec(list(plan.rate_trial(data, optimizer, row.lr).overrides)).config
    if config.cluster.kind != "local":
        raise ConfigProblem(["cluster: the study's stages depend on results: use cluster=local"])
    published: dict[str, RunEnd] = {}
    if keep:
        records = {record.run_id: record for record in read_records(RUNS)}
        trials = read_trials(STUDIES / name / TRIALS_FILE, records)
        published = {run_id: (record.status, record) for run_id, record in records.items()}
        published |= {one.run_id: (one.status, one.record) for one in trials}
    return StudyState(plan, Path(config.paths.outputs) / name, published)


def available(plan: StudyPlan) -> tuple[StudyPlan, dict[str, str]]:
    """The plan for the data sets that are there, and why others are not; own ones must be."""
    missing: dict[str, str] = {}
    for name, options in plan.data.items():
        optimizer, row = next(iter(options.rows.items()))
        try:
            make_run_spec(list(plan.rate_trial(name, optimizer, row.lr).overrides))
        except DataProblem as problem:
            if options.small_data == "own":
                raise
            missing[name] = str(problem)
    if len(missing) == len(plan.data):
        raise DataProblem("none of the study's data sets is there")
    return plan.only([name for name in plan.data if name not in missing]), missing
