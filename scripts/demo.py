"""`python -m scripts.demo [key=value …]`: the headline rows of all four tasks on small data.

The first row of every optimizer in each task's first table, at scale=mini, through the same code as
the paper's scale. Finished runs are skipped, so a second call goes on where the first one ended.
Prints one table, and where the report is.

Exit status: 0 all there · 1 some failed · 2 bad configuration or data · 75 stopped on request.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from engine.config import ConfigProblem
from engine.record import read_record, write_atomically
from results.ledger import RUNS, read_records
from results.names import OPTIMIZERS
from results.render import columns
from results.schema import headline_rows
from scripts.estimate import Progress
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
    to_do = [job for job in jobs if job.exit_status is None]
    at_once = side_by_side(jobs[0].prepared, len(to_do), words)
    progress = Progress([job.prepared for job in to_do], at_once, read_records([RUNS]))
    to_do.sort(key=lambda job: progress.expected(job.prepared), reverse=True)
    print(
        f"{len(jobs)} runs of {len(TASKS)} tasks, {len(jobs) - len(to_do)} done, {len(to_do)} to "
        f"do, {at_once} at a time{f', {progress.beforehand()}' if to_do else ''}",
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
