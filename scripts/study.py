"""`python -m scripts.study [--plan] [--keep] [--jobs 2] [--data cifar10,…] [key=value …]`.

The paper's claims on small data.

Tunes every optimizer on every data set, then runs what the claims ask for (configs/study.yaml), one
run on each core, and writes what came out: results/studies/*.json, results/STUDY.md, the report. A
second call goes on where the first one ended. The records that come with the suite do not count as
done, so that everything is repeated; with `--keep` they do. Data sets that are not there are left
out; for those of configs/small_data say where they are in $DATA_ROOT. `key=value` words go to every
run.

Exit status: 0 all there · 1 some failed · 2 bad configuration or data · 75 stopped on request.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config import ConfigProblem
from engine.record import read_record, write_atomically
from results.claims import STUDIES
from results.findings import TRIALS
from results.ledger import RUNS, read_records
from results.trials import DIVERGED, FINISHED, Outcome, Trial, Tuned, read_trials, to_csv, tune
from scripts.estimate import Progress
from scripts.fleet import DIVERGED as DIVERGED_STATUS
from scripts.fleet import PREEMPTED, Job, run_jobs
from scripts.launch import prepare
from scripts.memory import measure_all
from scripts.report import main as report
from scripts.reproduce import side_by_side
from scripts.study_plan import StudyPlan, read_plan
from scripts.supervise import Prepared, is_done, read_status, record_of
from tasks.base import DataProblem

LOGS = Path("outputs/study")


def main(arguments: Sequence[str] | None = None) -> int:
    """From nothing to a verdict on each claim."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    try:
        plan = read_plan(options.overrides)
        left_out = without_data(plan, options.data)
        board = Board(plan, keep=options.keep, left_out=left_out)
        for name, why in left_out.items():
            print(f"{name} is left out: {why}")
        first = board.expected()[0].prepared
        if first.config.cluster.kind != "local":
            raise ConfigProblem(
                ["cluster: the study chooses runs by what came of others: run here"]
            )
        at_once = options.jobs or side_by_side(first, len(plan.rows), [])
        progress = Progress(board.to_do(), at_once, read_records([RUNS]))
        print(describe(board, progress, at_once), flush=True)
        if options.plan:
            return 0
        finished = run_all(board, progress, at_once)
    except (ConfigProblem, DataProblem) as problem:
        print(problem, file=sys.stderr)
        return 2
    memory = STUDIES / "memory.json"
    if finished and not board.failed and not (options.keep and memory.exists()):
        measure_all(memory)
    if report([]) != 0:
        return 2
    if not finished:
        print("stopped on request: the same command goes on", flush=True)
        return PREEMPTED
    for job in board.failed.values():
        print(f"{job.name}: {job.ending}; see {job.log}", file=sys.stderr)
    return 1 if board.failed else 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line; argparse ends with status 2 and one message where it is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.study", description="Runs the study of the paper's claims."
    )
    parser.add_argument("--plan", action="store_true", help="say what would be run, and how long")
    parser.add_argument("--keep", action="store_true", help="recorded runs count as done")
    parser.add_argument("--jobs", type=int, help="runs at a time; default: one for each core")
    parser.add_argument("--data", type=lambda text: text.split(","), help="only these data sets")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    options = parser.parse_intermixed_args(arguments)
    for word in options.overrides:
        if "=" not in word or word.split("=")[0] in ("experiment", "seed", "small_data"):
            parser.error(f"{word!r}: write key=value; configs/study.yaml has experiments and seeds")
    if options.jobs is not None and options.jobs < 1:
        parser.error(f"--jobs must be at least 1, not {options.jobs}")
    return options


def without_data(plan: StudyPlan, wanted: Sequence[str] | None) -> dict[str, str]:
    """The data sets that can't or shall not be used, and why."""
    for name in wanted or ():
        if name not in plan.data:
            raise ConfigProblem([f"--data {name}: the study has {', '.join(plan.data)}"])
    found = {}
    for name in plan.data:
        if wanted and name not in wanted:
            found[name] = "not asked for"
            continue
        first = next(plan.rates(name, next(iter(plan.data[name].rows))))
        try:
            prepare(list(first.words))
        except DataProblem as problem:
            if plan.data[name].small_data == "own":
                raise
            found[name] = str(problem)
    if len(found) == len(plan.data):
        raise DataProblem("none of the study's data sets is there")
    return found


@dataclass
class Entry:
    """A trial, and the run that it is."""

    trial: Trial
    prepared: Prepared


class Board:
    """The trials, as far as they are known, and what came of them."""

    def __init__(self, plan: StudyPlan, *, keep: bool, left_out: Iterable[str]) -> None:
        self.plan, self.keep = plan, keep
        self.rows = [key for key in plan.rows if key[0] not in set(left_out)]
        self.before = read_trials(TRIALS)
        self.failed: dict[str, Job] = {}  # by run
        self._outcomes: dict[Trial, Outcome] = {}
        self._prepared: dict[tuple[str, ...], Prepared] = {}

    def trials(self) -> Iterator[list[Trial]]:
        """Of each data set and optimizer, as far as what they follow from has come out."""
        for row in self.rows:
            yield [trial for stage, known in self._stages(*row) if known for trial in stage]

    def expected(self) -> list[Entry]:
        """All trials; those that are not known yet at the middle rates, which cost the same."""
        stages = [stage for row in self.rows for stage, _ in self._stages(*row)]
        return [self.entry(trial) for stage in stages for trial in stage]

    def to_do(self) -> list[Prepared]:
        """The expected runs, each once, without those that are done."""
        runs = {entry.prepared.run_id: entry for entry in self.expected()}
        return [entry.prepared for entry in runs.values() if self.outcome(entry) is None]

    def _stages(self, data: str, optimizer: str) -> Iterator[tuple[list[Trial], bool]]:
        """Rates, decays, and what starts from the best of them; whether that is known yet."""
        tuned = Tuned(self.plan.rows[data, optimizer].lr, None, 0)
        rates = [*self.plan.rates(data, optimizer)]
        yield rates, True
        known = self._ended(rates)
        tuned = self._tune(rates) if known else tuned
        decays = [*self.plan.decays(data, optimizer, tuned)]
        yield decays, known
        known = known and self._ended(decays)
        tuned = self._tune(rates + decays) if known else tuned
        yield [*self.plan.others(data, optimizer, tuned)], known

    def entry(self, trial: Trial) -> Entry:
        """A trial, composed and checked once."""
        if trial.words not in self._prepared:
            self._prepared[trial.words] = prepare(list(trial.words))
        return Entry(trial, self._prepared[trial.words])

    def _ended(self, trials: Iterable[Trial]) -> bool:
        entries = [self.entry(trial) for trial in trials]
        return all(e.prepared.run_id in self.failed or self.outcome(e) for e in entries)

    def _tune(self, trials: Iterable[Trial]) -> Tuned:
        """A run that failed is not chosen; the same command tries it again."""
        entries = [self.entry(trial) for trial in trials]
        outcomes = [outcome for entry in entries if (outcome := self.outcome(entry))]
        if not outcomes:
            trial = entries[0].trial
            raise DataProblem(f"{trial.optimizer} on {trial.data}: no run ended; see {LOGS}")
        return tune(outcomes)[outcomes[0].data, outcomes[0].optimizer]

    def outcome(self, entry: Entry) -> Outcome | None:
        """None as long as there is none."""
        prepared, trial = entry.prepared, entry.trial
        if trial not in self._outcomes:
            record: dict[str, Any] | None = None
            if is_done(prepared) or (self.keep and record_of(prepared).exists()):
                record = read_record(record_of(prepared))
            elif not self._diverged(prepared):
                return None
            self._outcomes[trial] = _outcome(trial, prepared, record)
        return self._outcomes[trial]

    def _diverged(self, prepared: Prepared) -> bool:
        if read_status(prepared.folder).get("status") == "diverged":
            return True
        return self.keep and any(
            one.run_id == prepared.run_id and one.status == DIVERGED for one in self.before
        )

    def save(self) -> None:
        """Outcomes in trials.csv; earlier ones of what was not run now, if still asked for."""
        found = {
            _key(one): one for one in self.before if (one.data, one.optimizer) not in self.rows
        }
        for row in self.rows:
            earlier = {_key(one): one for one in self.before if (one.data, one.optimizer) == row}
            for stage, known in self._stages(*row):
                if not known:  # tuning may still find what it found before
                    asked = {trial.study for trial in stage}
                    found |= {key: one for key, one in earlier.items() if one.study in asked}
                    continue
                for trial in stage:
                    entry = self.entry(trial)
                    one = self.outcome(entry) or earlier.get(_key(trial))
                    if one and one.run_id == entry.prepared.run_id:
                        found[_key(one)] = one
        write_atomically(TRIALS, to_csv([*found.values()]).encode(), durable=False)


def _outcome(trial: Trial, prepared: Prepared, record: dict[str, Any] | None) -> Outcome:
    headline, optimizer = prepared.task.headline, prepared.config.optimizer
    decay = optimizer.get("weight_decay")
    return Outcome(
        study=trial.study,
        data=trial.data,
        optimizer=trial.optimizer,
        series=trial.series,
        at=trial.at,
        seed=trial.seed,
        lr=float(optimizer["lr"]),
        weight_decay=None if decay is None else float(decay),
        metric=headline.name,
        higher_is_better=headline.higher_is_better,
        status=DIVERGED if record is None else FINISHED,
        value=None if record is None else float(record["final"][headline.name]),
        run_id=prepared.run_id,
    )


def _key(one: Outcome | Trial) -> str:
    return repr((one.study, one.data, one.optimizer, one.series, one.at, one.seed))


def jobs_of(board: Board, at_once: int) -> Iterator[Job | None]:
    """Runs that can be made now, each once; None while others have to end first."""
    started: set[str] = set()
    while True:
        waiting = False
        job = None
        for trials in board.trials():
            entries = [board.entry(trial) for trial in trials]
            missing = [entry for entry in entries if board.outcome(entry) is None]
            fresh = [entry for entry in missing if entry.prepared.run_id not in started]
            waiting = waiting or any(e.prepared.run_id not in board.failed for e in missing)
            if fresh:
                started.add(fresh[0].prepared.run_id)
                job = make_job(fresh[0], at_once)
                break
        if job is None and not waiting:
            return
        yield job


def run_all(board: Board, progress: Progress, at_once: int) -> bool:
    """Tuning and what follows from it; False if asked to stop."""

    def ended(job: Job) -> None:
        if job.exit_status not in (0, DIVERGED_STATUS) and not job.told:
            board.failed[job.prepared.run_id] = job
        board.save()
        progress.say(job)

    return run_jobs(jobs_of(board, at_once), at_once, ended=ended, to_logs=True)


def make_job(entry: Entry, at_once: int) -> Job:
    """On one core where several are run side by side."""
    trial, run_id = entry.trial, entry.prepared.run_id
    words = [*(["hardware.threads=1"] if at_once > 1 else []), *trial.words]
    values = [word for word in trial.words if word.startswith(("optimizer.", "seed="))]
    label = f"{trial.study}: {trial.data}, {trial.optimizer}, {' '.join(values)}"
    return Job(entry.prepared, words, LOGS / f"{run_id.replace('/', '-')}.log", label)


def describe(board: Board, progress: Progress, at_once: int) -> str:
    """What will be run, and how long it will take."""
    sets = list(dict.fromkeys(data for data, _ in board.rows))
    lines = [f"data       {', '.join(sets)}"]
    count = len(progress.hours)
    if not count:
        return "\n".join([*lines, "runs       all done"])
    lines += [
        f"runs       {count} to do, {at_once} at a time, about "
        f"{60 * sum(progress.hours.values()) / count:.1f} minutes each",
        f"time       {progress.beforehand()}",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
