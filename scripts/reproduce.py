"""Runs the experiments of a task's tables and prints the tables.

    python -m scripts.reproduce imagenet --tables 1,3 --seeds 0,1,2 scale=mini

Finished runs are skipped: rerun to resume. Overrides apply to every run. Without `--tables` all
tables are run at the paper's scale, and only the task's first one at smaller scales.
Exit status: 0 all finished · 1 some failed · 2 bad configuration or data · 75 stopped on request.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from analysis.folders import RUNS
from analysis.reproduction import chosen_tables, experiments_of, paper_tables, tables_of
from engine.config import ConfigProblem
from engine.records import read_records
from launch import experiment_jobs as runs
from launch.command_line import CommandLine, reports
from launch.compose import options_of
from tasks.base import DataProblem
from tasks.catalog import TASKS


@reports(ConfigProblem, DataProblem)
def main(arguments: Sequence[str] | None = None) -> int:
    """From a task's name to its tables."""
    options = parse(arguments)
    overrides, scale = runs.with_scale(options.overrides)
    tables = chosen_tables(options.task, options.tables, scale)
    names = ", ".join(f"Table {number}" for number in tables)
    variants = options_of("experiment") if options.variants else ()
    experiments = experiments_of(options.task, tables, variants)
    jobs = [runs.make_job(e, seed, overrides) for e in experiments for seed in options.seeds]
    if runs.submit_jobs(jobs):
        return 0
    title, published = f"{names} at scale {scale}", read_records(RUNS)
    completed = runs.run_experiments(title, jobs, overrides, published, options.jobs)
    records = runs.recipe_records(jobs, overrides, published)
    print(f"\n{paper_tables(options.task, tables, records)}\n")
    print(runs.describe_metrics(jobs, records))
    return runs.exit_status(jobs, completed=completed)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line; exits with status 2 where it is wrong."""

    def numbers(text: str) -> list[int]:
        return [*map(int, text.split(","))]

    parser = CommandLine("reproduce", __doc__)
    parser.add_argument("task", choices=sorted(TASKS))
    parser.add_argument("--tables", type=numbers, help="e.g. 1,3")
    parser.add_argument("--seeds", type=numbers, default=[0], help="e.g. 0,1,2; default: 0")
    parser.add_argument("--variants", action="store_true", help="also other readings and baselines")
    parser.add_argument("--jobs", type=int, help="maximum number of runs at a time")
    parser.add_overrides("for every run")
    options = parser.read(arguments)
    known = tables_of(options.task)
    if wrong := set(options.tables or ()) - set(known):
        has = ", ".join(map(str, known))
        parser.error(f"--tables {min(wrong)}: {options.task} has tables {has}")
    for text in options.overrides:
        if "=" not in text:
            parser.error(f"{text!r}: write key=value")
        if text.split("=")[0] in ("experiment", "seed"):
            parser.error(f"{text!r}: experiments follow from the task, seeds from --seeds")
    if options.jobs is not None and options.jobs < 1:
        parser.error(f"--jobs must be at least 1, not {options.jobs}")
    return options


if __name__ == "__main__":
    sys.exit(main())
