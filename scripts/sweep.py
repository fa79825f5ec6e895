"""`python -m scripts.sweep sweep=imagenet_lr [scale=mini] [gpus_per_run=1] [key=value …]`.

Runs the points of a sweep (configs/sweep/*.yaml), each as a launcher of its own in a slot of its
own: 8 × 1, 4 × 2, 2 × 4 or 1 × 8 GPUs, or a core each on a CPU. The global batch stays what it is.
Runs that finished or diverged here are results, so a second call runs only what is missing.

Words of its own: `gpus_per_run=2`, `jobs=3` (slots at most), `plan_only=true`, `metric=`, `along=`,
`group_by=a,b`, and `search=random` or `search=optuna` with `trials=20`. All others go to every run;
lists, `choice(…)` and `range(…)` multiply the grid as in Hydra's multirun (`seed=0,1,2`), and
`log(0.1,10)` and `uniform(0,1)` are ranges for a search. `experiment=a,b` replaces the file's. With
`cluster=slurm` what is missing is submitted instead.

Exit status: 0 all there · 1 some failed · 2 bad configuration or data · 75 stopped on request.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config import ClusterConfig, ConfigProblem, did_you_mean
from engine.provenance import fingerprint
from engine.record import read_record, write_atomically
from results.ledger import read_records
from results.schema import PaperProblem, metric_of
from results.sweeps import DONE, SweepResults, SweepRun, text_table, to_csv, to_json
from scripts.estimate import Estimator, makespan
from scripts.fleet import DIVERGED, PREEMPTED, Job, Slot, run_jobs
from scripts.grid import Options, Point, Range, Sweep, grid_points, read_sweep
from scripts.launch import default_scale, prepare
from scripts.search import OptunaSearch, random_points
from scripts.slots import find_slots, threads_of
from scripts.supervise import Prepared, is_done, read_status, record_of
from tasks.base import DataProblem

PROBLEMS_SHOWN = 10


def main(arguments: Sequence[str] | None = None) -> int:
    """From a sweep's name to its results."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not any(word.startswith("scale=") for word in words):
        words.append(f"scale={default_scale()}")
    try:
        sweep, options = read_sweep(words)
        board = Board(sweep, options)
        todo = board.to_do()
        hardware, cluster = board.prepared.config.hardware, board.prepared.config.cluster
        exist = not options.plan_only
        if cluster.kind == "slurm" and exist and todo:
            return submit_all(sweep, todo, cluster)
        slots = find_slots(hardware, len(todo), options.jobs, must_exist=exist)
        board.threads = threads_of(slots, hardware)
        print(describe(board, todo, slots), flush=True)
        if options.plan_only:
            return 0
        finished = run_jobs(board.jobs(), slots, ended=board.ended, to_logs=True)
    except (ConfigProblem, DataProblem) as problem:
        print(problem, file=sys.stderr)
        return 2
    board.save()
    print(f"\n{text_table(board.results())}\n\nresults: {board.folder / 'results.json'}")
    if not finished:
        print("stopped on request: the same command goes on", flush=True)
        return PREEMPTED
    failed = [entry for entry in board.entries if board.outcome(entry)[0] not in DONE]
    for job in {entry.job.prepared.run_id: entry.job for entry in failed}.values():
        why = f"no {board.metric} in its record" if job.exit_status == 0 else job.ending
        print(f"{job.name}: {why}; see {job.log}", file=sys.stderr)
    return 1 if failed else 0


def submit_all(sweep: Sweep, todo: Sequence[Prepared], cluster: ClusterConfig) -> int:
    """Hands the missing runs to Slurm, as arrays; a later call shows what came of them."""
    from scripts.cluster import submit

    if sweep.search == "optuna":
        raise ConfigProblem(["search=optuna chooses runs one after another: use search=random"])
    jobs = submit(todo, cluster)
    print(f"{len(jobs)} runs submitted; the same command, when they are done, shows the results")
    return 0


@dataclass
class Entry:
    """A point and the run that it is; a search's trial has a ticket."""

    point: Point
    job: Job
    ticket: Any = None


class Board:
    """The points of a sweep, what came of them, and what is to be done."""

    def __init__(self, sweep: Sweep, options: Options) -> None:
        self.sweep, self.options = sweep, options
        self.threads = 1
        self.entries: list[Entry] = []
        self._search: OptunaSearch | None = None
        self._running: set[str] = set()
        if sweep.search == "optuna":
            lowest = {
                key: axis.low if isinstance(axis, Range) else axis[0]
                for key, axis in sweep.axes.items()
            }
            points = [sweep.point({"experiment": name} | lowest) for name in sweep.experiments]
        else:
            points = random_points(sweep) if sweep.search == "random" else grid_points(sweep)
        everything = self._prepare(points)
        self.prepared, self._bases = everything[0], everything
        self.metric, self.higher_is_better = _metric(sweep, everything)
        runs = sorted({one.run_id for one in everything})
        self.mark = fingerprint({"runs": runs, "metric": self.metric, "axes": repr(sweep.axes)})
        self.folder = Path(self.prepared.config.paths.outputs, "sweeps", sweep.name, self.mark)
        if sweep.search != "optuna":
            for point, one in zip(points, everything, strict=True):
                self._add(point, one)
        elif not options.plan_only:
            file = self.folder.parent / "optuna.db"
            self._search = OptunaSearch(sweep, file, self.mark, self.higher_is_better)
            for point in self._search.told():
                self._add(point, self._prepare([point])[0])

    def _prepare(self, points: Sequence[Point]) -> list[Prepared]:
        """Composes and checks all; one message has what is wrong with any."""
        found, problems = [], []
        for point in points:
            try:
                found.append(prepare(self._words(point), need_data=not self.options.plan_only))
            except ConfigProblem as problem:
                problems += problem.problems
        if problems:
            unique = list(dict.fromkeys(problems))
            more = [f"and {len(unique) - PROBLEMS_SHOWN} more"] if unique[PROBLEMS_SHOWN:] else []
            raise ConfigProblem(unique[:PROBLEMS_SHOWN] + more)
        return found

    def _words(self, point: Point) -> list[str]:
        """The user's own words come last and win."""
        return [f"hardware.processes={self.options.gpus_per_run}", *point.words]

    def _add(self, point: Point, prepared: Prepared, ticket: Any = None) -> Entry:
        others = {key: value for key, value in point.values.items() if key != "experiment"}
        values = "".join(f" {key}={value}" for key, value in others.items())
        log = self.folder / "logs" / f"{prepared.run_id.replace('/', '-')}.log"
        job = Job(prepared, self._words(point), log, f"{prepared.config.experiment}{values}")
        entry = Entry(point, job, ticket)
        self.entries.append(entry)
        return entry

    def outcome(self, entry: Entry) -> tuple[str, dict[str, Any]]:
        """One of "finished", with its record, "diverged", "failed" and "missing"."""
        job, prepared = entry.job, entry.job.prepared
        if is_done(prepared):
            record = read_record(record_of(prepared))
            return ("finished", record) if self.metric in record["final"] else ("failed", {})
        if job.exit_status == DIVERGED or read_status(prepared.folder).get("status") == "diverged":
            return "diverged", {}
        return ("missing" if job.exit_status is None or job.told else "failed"), {}

    def to_do(self) -> list[Prepared]:
        """Runs that are not there yet, each once; those of a search have yet to be chosen."""
        missing = {
            entry.job.prepared.run_id: entry.job.prepared
            for entry in self.entries
            if self.outcome(entry)[0] not in DONE
        }
        if self.sweep.search == "optuna":
            trials = self._bases * self.sweep.trials
            return trials[: max(0, len(trials) - len(self.entries))]
        return list(missing.values())

    def jobs(self) -> Iterator[Job]:
        """Those of a grid with the longest first: they end together. A search's one by one."""
        if self._search is None:
            jobs = {entry.job.prepared.run_id: entry.job for entry in self.entries}
            wanted = {one.run_id for one in self.to_do()}
            chosen = [job for run_id, job in jobs.items() if run_id in wanted]
            for job in sorted(chosen, key=lambda job: -job.prepared.plan.units):
                yield self._ready(job)
            return
        for ticket, point in self._search.ask():
            entry = self._add(point, self._prepare([point])[0], ticket)
            run_id = entry.job.prepared.run_id
            if run_id in self._running:
                self._search.withdraw(ticket)
                self.entries.remove(entry)
            elif self.outcome(entry)[0] in DONE:
                self._tell(entry)
            else:
                self._running.add(run_id)
                yield self._ready(entry.job)

    def _ready(self, job: Job) -> Job:
        job.arguments.insert(0, f"hardware.threads={self.threads}")
        return job

    def ended(self, job: Job) -> None:
        """Notes what came of a run."""
        self._running.discard(job.prepared.run_id)
        for entry in self.entries:
            if entry.job is job and entry.ticket is not None:
                self._tell(entry)
            elif entry.job.prepared.run_id == job.prepared.run_id:
                entry.job.exit_status = job.exit_status
        self.save()

    def _tell(self, entry: Entry) -> None:
        """A run that failed is not told: the next call runs it again."""
        status, record = self.outcome(entry)
        if self._search is not None and status in DONE:
            self._search.tell(entry.ticket, _number(record.get("final", {}), self.metric))

    def results(self) -> SweepResults:
        """As far as there are any."""
        return SweepResults(
            sweep=self.sweep.name,
            fingerprint=self.mark,
            scale=self.prepared.config.scale,
            metric=self.metric,
            higher_is_better=self.higher_is_better,
            group_by=self.sweep.group_by,
            along=self.sweep.along,
            runs=[self._run(entry) for entry in self.entries],
        )

    def _run(self, entry: Entry) -> SweepRun:
        config = entry.job.prepared.config
        status, record = self.outcome(entry)
        final = _number(record.get("final", {}), self.metric)
        return SweepRun(
            run_id=entry.job.prepared.run_id,
            status="diverged" if status == "finished" and final is None else status,
            axes=entry.point.values,
            seed=config.seed,
            optimizer=str(config.optimizer["name"]),
            lr=float(config.optimizer["lr"]),
            weight_decay=float(config.optimizer.get("weight_decay", 0.0)),
            final=final,
            best=_number(record.get("best", {}), self.metric),
            wall_s=record.get("wall_s"),
            log=str(entry.job.log) if status == "failed" else "",
        )

    def save(self) -> None:
        """results.json and results.csv."""
        results = self.results()
        for name, text in (("results.json", to_json(results)), ("results.csv", to_csv(results))):
            write_atomically(self.folder / name, text.encode(), durable=False)


def _number(metrics: dict[str, float], name: str) -> float | None:
    """None where it is not there or not finite."""
    value = metrics.get(name)
    return value if value is not None and math.isfinite(value) else None


def _metric(sweep: Sweep, prepared: Sequence[Prepared]) -> tuple[str, bool]:
    """The metric of a sweep, and whether more of it is better."""
    headlines = {one.task.headline.name: one.task.headline for one in prepared}
    if sweep.metric is None:
        if len(headlines) > 1:
            raise ConfigProblem([f"say metric=…: the tasks have {', '.join(headlines)}"])
        ((name, headline),) = headlines.items()
        return name, headline.higher_is_better
    if sweep.metric in headlines:
        return sweep.metric, headlines[sweep.metric].higher_is_better
    task = prepared[0].task
    splits, split = (*task.splits, *task.final_splits), sweep.metric.partition("/")[0]
    if split not in splits:
        known = did_you_mean(split, splits)
        raise ConfigProblem([f"metric={sweep.metric}: {split} is not evaluated{known}"])
    try:
        return sweep.metric, metric_of(sweep.metric).higher_is_better
    except PaperProblem as problem:
        raise ConfigProblem([f"metric={problem}"]) from problem


def describe(board: Board, todo: Sequence[Prepared], slots: Sequence[Slot]) -> str:
    """The plan: runs, slots, hours."""
    sweep, plan = board.sweep, board.prepared.plan
    count = len(sweep.experiments)
    axes = [f"{count} experiment{'s' if count > 1 else ''}"]
    for key, axis in sweep.axes.items():
        axes.append(
            f"{key} from {axis.low:g} to {axis.high:g}"
            if isinstance(axis, Range)
            else f"{len(axis)} {key}"
        )
    if sweep.search != "grid":
        axes.insert(0, f"{sweep.trials} trials, {sweep.search}")
    made = {entry.job.prepared.run_id for entry in board.entries}
    runs = len(made) + (len(todo) if sweep.search == "optuna" else 0)
    try:
        estimator = Estimator(read_records([Path(board.prepared.config.paths.records)]))
    except ValueError as problem:
        raise ConfigProblem([str(problem)]) from problem
    hours = [estimator.hours(one) for one in sorted(todo, key=lambda one: -one.plan.units)]
    names = ", ".join(slot.name for slot in slots)
    device = board.prepared.config.hardware.device
    lines = [
        f"sweep      {sweep.name} at scale {board.prepared.config.scale}: {' × '.join(axes)}",
        f"runs       {runs}, {runs - len(todo)} done, {len(todo)} to do",
        f"slots      {len(slots)} × {plan.processes} {device}, threads per process: "
        f"{board.threads} ({names})",
        f"time       about {_hours(makespan(hours, len(slots)))}, {_hours(sum(hours))} of work, "
        f"{estimator.source}",
        f"results    {board.folder / 'results.json'}: {board.metric}",
    ]
    return "\n".join(line for line in lines if todo or not line.startswith(("slots", "time")))


def _hours(hours: float) -> str:
    return f"{hours:,.1f} h" if hours >= 1 else f"{math.ceil(hours * 60)} min"


if __name__ == "__main__":
    sys.exit(main())
