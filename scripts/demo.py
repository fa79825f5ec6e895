"""Runs the headline rows of all four tasks on small data.

    python -m scripts.demo

The first row of every optimizer in each task's first table, at scale=mini. Rerun to resume. Prints
a table, whether each run equals the published one bit for bit, and one prediction per task.
Exit status: 0 all finished · 1 some failed · 2 bad configuration or data · 75 stopped on request.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from analysis.folders import RUNS
from analysis.pages import write_own_page
from analysis.paper import headline_rows
from analysis.reproduction import HeadlineRow, compare_with_published, headline_table
from engine.config import ConfigProblem
from engine.records import read_record, read_records
from launch import experiment_jobs as runs
from launch.command_line import CommandLine, reports
from launch.run_spec import recipe_fingerprints
from launch.scheduler import Job
from tasks.base import DataProblem
from tasks.catalog import TASKS


@reports(ConfigProblem, DataProblem)
def main(arguments: Sequence[str] | None = None) -> int:
    """From nothing to a table."""
    parser = CommandLine("demo", __doc__)
    parser.add_overrides("for every run")
    overrides, scale = runs.with_scale(parser.read(arguments).overrides, default="mini")
    rows = [row for task in TASKS for row in headline_rows(task)]
    jobs = [runs.make_job(str(row.experiment), 0, overrides) for row in rows]
    if runs.submit_jobs(jobs):
        return 0
    published, title = read_records(RUNS), f"{len(TASKS)} tasks at scale {scale}"
    completed = runs.run_experiments(title, jobs, overrides, published, to_logs=True)
    by_task = [[job for job in jobs if job.spec.config.task.name == task] for task in TASKS]
    print(f"\n{headline_table(map(headline_row, by_task))}\n")
    done = [job for job in jobs if job.spec.is_done]
    for job in done:
        own = read_record(job.spec.record_path)
        print(f"{job.name}: {compare_with_published(own, published)}")
    last = {job.spec.config.task.name: job.spec.folder for job in done}
    print(f"\n{runs.show_examples([*last.values()])}")
    page = write_own_page(Path(jobs[0].spec.config.paths.outputs), recipe_fingerprints)
    print(f"\nthe paper's numbers beside all runs: {page}")
    return runs.exit_status(jobs, completed=completed)


def headline_row(jobs: Sequence[Job]) -> HeadlineRow:
    """The line of one task."""
    task, config = jobs[0].spec.task, jobs[0].spec.config
    metric = task.headline.name
    values: dict[str, float | None] = {str(j.spec.config.optimizer["name"]): None for j in jobs}
    for job in (job for job in jobs if job.spec.is_done):
        record = read_record(job.spec.record_path)
        values[record.optimizer] = record.final.get(metric)
    name, baseline = task.baseline_metrics()
    beside = f"{name} {baseline[metric]:.2f}" if metric in baseline else ""
    better, data = task.headline.higher_is_better, str(config.data["name"])
    return HeadlineRow(config.scale, data, metric, better, values, beside)


if __name__ == "__main__":
    sys.exit(main())
