"""Sweep state: the trials of a sweep or study, the runs that they are, and their results so far."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from analysis.trials import DIVERGED, FAILED, FINISHED, MISSING, Trial, TrialResult
from engine.config import ClusterConfig, ConfigProblem
from engine.formats import format_time
from engine.records import RunRecord, read_status
from launch.estimate import RemainingTime
from launch.exit_status import DIVERGED as DIVERGED_EXIT
from launch.exit_status import conclude
from launch.run_spec import RunSpec, make_run_spec
from launch.scheduler import Job, Slot, find_slots, run_jobs

PROBLEMS_SHOWN = 10
RunEnd = tuple[str, RunRecord | None]  # a run's status and record
ResultOf = Callable[[Trial], TrialResult]


class Source(Protocol):
    """Where trials come from: a list, a search that draws them, or stages that follow results."""

    def known(self, result: ResultOf) -> Iterable[Trial]:
        """The trials that are known with the results so far, in the order of starting them."""

    def expected(self, result: ResultOf) -> Iterable[Trial]:
        """All trials, for a plan; those that are not known yet by others of the same cost."""

    def ask(self) -> Trial | None:
        """A further trial of a search."""
        return None

    def tell(self, trial: Trial, result: TrialResult | None) -> None:
        """The result of such a trial; None if it repeats one that is running."""
        return None


class ListedTrials(Source):
    """Trials that are known from the start."""

    def __init__(self, trials: Sequence[Trial]) -> None:
        self._trials = list(trials)

    def known(self, result: ResultOf) -> Iterable[Trial]:
        return self._trials

    expected = known


class SweepState:
    """Trials as runs: composed once, looked up on disk, started where they are missing."""

    def __init__(
        self,
        source: Source,
        logs: Path,
        *,
        overrides: Sequence[str] = (),  # before those of a trial
        need_data: bool = True,
        published: Mapping[str, RunEnd] | None = None,  # what counts as done, by run id
        longest_first: bool = False,
    ) -> None:
        self.source, self.logs = source, logs
        self.failed: dict[str, Job] = {}  # in this call, by run id
        self._overrides, self._need_data = tuple(overrides), need_data
        self._published, self._longest_first = published or {}, longest_first
        self._specs: dict[tuple[str, ...], RunSpec] = {}
        self._runs: dict[str, RunEnd] = {}
        self._known: list[Trial] | None = None  # until a result changes them
        self._expected: list[Trial] | None = None
        self._running: set[str] = set()  # run ids

    def spec(self, trial: Trial) -> RunSpec:
        """The run of a trial, composed and validated once."""
        if trial.overrides not in self._specs:
            arguments = [*self._overrides, *trial.overrides]
            self._specs[trial.overrides] = make_run_spec(arguments, need_data=self._need_data)
        return self._specs[trial.overrides]

    def prepare(self, trials: Iterable[Trial]) -> list[RunSpec]:
        """All runs; one ConfigProblem has what is wrong with any."""
        found, problems = [], []
        for trial in trials:
            try:
                found.append(self.spec(trial))
            except ConfigProblem as problem:
                problems += problem.problems
        if problems:
            unique = list(dict.fromkeys(problems))
            more = [f"and {len(unique) - PROBLEMS_SHOWN} more"] if unique[PROBLEMS_SHOWN:] else []
            raise ConfigProblem(unique[:PROBLEMS_SHOWN] + more)
        return found

    def known(self) -> list[Trial]:
        """The trials that are known now."""
        if self._known is None:
            self._known = list(self.source.known(self.result))
        return self._known

    def result(self, trial: Trial) -> TrialResult:
        """What came of a trial so far."""
        spec = self.spec(trial)
        if spec.run_id not in self._runs:
            self._runs[spec.run_id] = self._look_up(spec)
        status, record = self._runs[spec.run_id]
        found = TrialResult(trial, spec.run_id, status, record)
        if status != FINISHED or record is None or found.value is not None:
            return found
        worse = DIVERGED if trial.metric in record.final else FAILED  # not finite, or not measured
        return TrialResult(trial, spec.run_id, worse, record)

    def _look_up(self, spec: RunSpec) -> RunEnd:
        """Only runs that ended here count, and published ones where asked for."""
        if spec.is_done:
            return FINISHED, spec.record
        if read_status(spec.folder).kind == DIVERGED:
            return DIVERGED, spec.record
        missing = FAILED if spec.run_id in self.failed else MISSING
        return self._published.get(spec.run_id, (missing, None))

    def results(self) -> list[TrialResult]:
        """Of all known trials."""
        return [self.result(trial) for trial in self.known()]

    def expected_trials(self) -> list[Trial]:
        """All trials, as far as they can be told now."""
        if self._expected is None:
            self._expected = list(self.source.expected(self.result))
        return self._expected

    def expected(self) -> list[RunSpec]:
        """All runs, each once."""
        specs = self.prepare(self.expected_trials())
        return [*{spec.run_id: spec for spec in specs}.values()]

    def to_do(self) -> list[RunSpec]:
        """The expected runs without those that are done."""
        missing = [trial for trial in self.expected_trials() if not self.result(trial).is_done]
        return [*{self.spec(trial).run_id: self.spec(trial) for trial in missing}.values()]

    def jobs(self) -> Iterator[Job | None]:
        """Runs that can start now, each once; None while further ones may follow from results."""
        while True:
            trial = self._next_known() or self._next_asked()
            if trial is not None:
                yield self._start(trial)
            elif self._running:
                yield None
            else:
                return

    def _next_known(self) -> Trial | None:
        fresh = [
            t for t in self.known() if self.result(t).status == MISSING and not self._runs_now(t)
        ]
        if fresh and self._longest_first:
            return max(fresh, key=lambda trial: self.spec(trial).plan.units)
        return fresh[0] if fresh else None

    def _next_asked(self) -> Trial | None:
        while (trial := self.source.ask()) is not None:
            self._known = self._expected = None
            if self._runs_now(trial):
                self.source.tell(trial, None)
            elif self.result(trial).is_done:
                self.source.tell(trial, self.result(trial))
            else:
                return trial
        return None

    def _runs_now(self, trial: Trial) -> bool:
        return self.spec(trial).run_id in self._running

    def _start(self, trial: Trial) -> Job:
        spec = self.spec(trial)
        self._running.add(spec.run_id)
        return Job(spec, self.logs / f"{spec.run_id.replace('/', '-')}.log", label_of(trial))

    def ended(self, job: Job) -> None:
        """Takes in the result of a run."""
        run_id = job.spec.run_id
        trials = [trial for trial in self.known() if self.spec(trial).run_id == run_id]
        self._running.remove(run_id)
        self._runs.pop(run_id, None)
        self._known = self._expected = None
        if job.exit_status not in (0, DIVERGED_EXIT) and not job.stop_signals:
            self.failed[run_id] = job
        for trial in trials:
            result = self.result(trial)
            if result.is_done:  # a failed run is not told: the next call runs it again
                self.source.tell(trial, result)


def submit_trials(runs: Sequence[RunSpec], cluster: ClusterConfig, search: str) -> int:
    """Submits missing runs to Slurm as arrays; a later call shows their results."""
    from launch.slurm import submit

    if search == "optuna":
        raise ConfigProblem(["search=optuna chooses runs one after another: use search=random"])
    jobs = submit(runs, cluster)
    print(f"{len(jobs)} runs submitted; rerun the same command for the results when they are done")
    return 0


def find_trial_slots(state: SweepState, jobs: int | None, *, must_exist: bool) -> list[Slot]:
    """The slots of this machine for what is to do."""
    hardware, given = state.expected()[0].config.hardware, state.expected_trials()[0].overrides
    runs = len(state.to_do())
    return find_slots(hardware, runs, jobs, overrides=given, must_exist=must_exist)


def describe(state: SweepState, slots: Sequence[Slot], remaining: RemainingTime) -> str:
    """The plan: runs, slots, hours."""
    expected, todo = state.expected(), state.to_do()
    runs = f"runs       {len(expected)}, {len(expected) - len(todo)} done, {len(todo)} to do"
    if not todo:
        return runs
    hardware, hours = expected[0].config.hardware, sum(remaining.hours.values())
    names = ", ".join(slot.name for slot in slots)
    machine = f"{len(slots)} × {hardware.processes} {hardware.device}"
    work = f"{hours:,.1f} h" if hours >= 1 else format_time(3600 * hours)
    return (
        f"{runs}\n"
        f"slots      {machine}, threads per process: {slots[0].threads} ({names})\n"
        f"time       {remaining.beforehand()}; {work} of work"
    )


def run_trials(
    state: SweepState, slots: Sequence[Slot], remaining: RemainingTime, save: Callable[[], None]
) -> bool:
    """Runs what is missing and what follows from it, saving after each; False if asked to stop."""

    def ended(job: Job) -> None:
        state.ended(job)
        save()
        remaining.ended(job)

    return run_jobs(state.jobs(), slots, ended=ended, to_logs=True)


def exit_status(state: SweepState, *, finished: bool) -> int:
    """The status of the command, with a line for each run that failed."""
    failed = {one.run_id: one for one in state.results() if not one.is_done}
    messages = []
    for run_id, one in failed.items():
        job = state.failed.get(run_id)
        why = f"{job.ending}; see {job.log}" if job else f"no {one.trial.metric} in its record"
        messages.append(f"{label_of(one.trial)}: {why}")
    return conclude(messages, completed=finished)


def label_of(trial: Trial) -> str:
    """A trial in messages."""
    if trial.axes:
        values = [f"{k}={v}" for k, v in trial.axes.items() if k != "experiment"]
        return " ".join([str(trial.axes["experiment"]), *values])
    values = [word for word in trial.overrides if word.startswith(("optimizer.", "seed="))]
    return f"{trial.study}: {trial.data}, {trial.optimizer}, {' '.join(values)}"
