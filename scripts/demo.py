"""`python -m scripts.demo [key=value …]`: the headline rows of all four tasks on small data.

The first row of every optimizer in each task's first table, at scale=mini, through the same code as
the paper's scale. Finished runs are skipped, so a second call goes on where the first one ended.
Prints one table, and where the report is.

Exit status: 0 all there · 1 some failed · 2 bad configuration or data · 75 stopped on request.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from engine.config import ConfigProblem
from engine.record import read_record, write_atomically
from results.ledger import RUNS, read_records
from results.names import OPTIMIZERS
from results.render import columns
from results.schema import headline_rows
from scripts.fleet import PREEMPTED, Job, run_jobs
from scripts.report import render
from scripts.reproduce import make_job, side_by_side
from scripts.supervise import ROOT, is_done, record_of
from tasks.base import DataProblem
from tasks.catalog import TASKS

REPORT = ROOT / "results" / "demo.html"  # beside what it links to; not tracked


def main(arguments: Sequence[str] | None = None) -> int:
    """From nothing to a table."""
    words = [*(sys.argv[1:] if arguments is None else arguments)]
    if not any(word.startswith("scale=") for word in words):
        words.append("scale=mini")
    try:
        rows = [row for task in TASKS for row in headline_rows(task)]
        jobs = [make_job(str(row.experiment), 0, words) for row in rows]
    except (ConfigProblem, DataProblem) as problem:
        print(problem, file=sys.stderr)
        return 2
    for job in jobs:
        if is_done(job.prepared):
            job.exit_status = 0
    progress = Progress(jobs)
    to_do = sorted((j for j in jobs if j.exit_status is None), key=progress.cost_of, reverse=True)
    at_once = side_by_side(jobs[0].prepared, len(to_do), words)
    print(
        f"{len(jobs)} runs of {len(TASKS)} tasks, {len(jobs) - len(to_do)} done, {len(to_do)} to "
        f"do, {at_once} at a time",
        flush=True,
    )
    if at_once > 1 and not any(w.startswith("hardware.threads=") for w in words):
        for job in to_do:
            job.arguments.append("hardware.threads=1")
    finished = run_jobs(to_do, at_once, ended=progress.say, to_logs=True)
    print(f"\n{table(jobs)}\n")
    page = render(ROOT)[ROOT / "results" / "report.html"]
    write_atomically(REPORT, page.encode(), durable=False)
    print(f"the paper's numbers beside these: {REPORT.relative_to(ROOT)}")
    if not finished:
        print("stopped on request: the same command goes on", flush=True)
        return PREEMPTED
    failed = [job for job in jobs if job.exit_status != 0]
    for job in failed:
        print(f"{job.name}: {job.ending}; see {job.log}", file=sys.stderr)
    return 1 if failed else 0


class Progress:
    """How long all will take: by the seconds of recorded runs, and the time of those done now."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        records = {r["run_id"]: float(r["wall_s"]) for r in read_records([RUNS])}
        usual = fmean(records.values()) if records else 1.0
        self._costs = {
            id(job): records.get(job.prepared.run_id, usual)
            for job in jobs
            if job.exit_status is None
        }
        self._jobs = jobs
        self._began = time.monotonic()

    def cost_of(self, job: Job) -> float:
        return self._costs[id(job)]

    def say(self, job: Job) -> None:
        """A line after each run."""
        own = [j for j in self._jobs if id(j) in self._costs]
        ended = sum(j.exit_status is not None for j in own)
        if ended == len(own):
            return
        done = sum(self.cost_of(j) * _share(j) for j in own)
        whole = sum(self._costs.values())
        left = (time.monotonic() - self._began) * (whole / max(done, 1e-9) - 1)
        minutes = "less than a minute" if left < 60 else f"about {left / 60:.0f} minutes"
        print(f"{ended} of {len(own)} runs done, {minutes} left", flush=True)


def _share(job: Job) -> float:
    """Of a run's steps that are done."""
    if job.exit_status is not None:
        return 1.0
    return float(job.last_row().get("step", 0)) / job.prepared.plan.steps if job.started else 0.0


def table(jobs: Sequence[Job]) -> str:
    """A line per task: the headline by optimizer, and what it has to beat."""
    lines = [["scale", "data", "metric", *OPTIMIZERS.values(), "for comparison"]]
    for task in TASKS:
        own = [job for job in jobs if job.prepared.config.task.name == task]
        prepared = own[0].prepared
        metric = prepared.task.headline.name
        by_optimizer = {job.prepared.config.optimizer["name"]: _final(job, metric) for job in own}
        name, values = prepared.task.trivial()
        beside = f"{name} {values[metric]:.2f}" if metric in values else ""
        better = "higher" if prepared.task.headline.higher_is_better else "lower"
        cells = [prepared.config.scale, str(prepared.config.data["name"]), f"{metric} ({better})"]
        lines.append([*cells, *(by_optimizer.get(key, "") for key in OPTIMIZERS), beside])
    return columns(lines)


def _final(job: Job, metric: str) -> str:
    if not is_done(job.prepared):
        return "not run"
    record: dict[str, Any] = read_record(record_of(job.prepared))
    return f"{record['final'][metric]:.2f}"


if __name__ == "__main__":
    sys.exit(main())
