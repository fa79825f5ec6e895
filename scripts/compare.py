"""Compares the curves of runs.

    python -m scripts.compare experiment=imagenet/* --group-by optimizer.name --metric val/top1

Prints mean ± standard deviation of each group as a table, and writes charts, CSV files and an HTML
page to `outputs/compare/`. A RUN is a run's folder or id, or that of an offline W&B run; by default
all runs below --outputs are compared. `key=pattern` selects by configuration: `optimizer.lr=0.00?`.

Exit status: 0 compared · 2 nothing to compare, a bad argument, or W&B can't be reached.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from analysis.compare import compare, wandb_request
from analysis.curves import AXES
from analysis.logged_runs import CompareProblem, common_task, make_groups, select_runs, with_rows
from engine import wandb_runs
from engine.config import SCALES
from launch.command_line import CommandLine, reports
from tasks.catalog import TASKS, task_class
from tasks.files import write_atomically


@reports(CompareProblem, wandb_runs.WandbProblem, OSError)
def main(arguments: Sequence[str] | None = None) -> int:
    """From runs to tables and files; a user's mistake becomes one message."""
    options = parse(arguments)
    runs = select_runs(options, wandb_runs)
    task = task_class(common_task(runs, TASKS))
    runs = [with_rows(run, wandb_runs.is_cut_short, task.unit) for run in runs]
    groups = make_groups(runs, options.group_by)
    metrics = options.metric or [task.headline.name, "train/loss"]
    comparison = compare(groups, metrics, options.axis, task.unit)
    files = comparison.files(options.out)
    for path, data in files.items():
        write_atomically(path, data, durable=False)
    print(comparison, f"page, charts and numbers: {next(iter(files))}", sep="\n\n")
    if options.wandb_report:
        report = wandb_runs.build_report(**wandb_request(comparison, runs, options))
        print(f"report: {wandb_runs.save_report(report)}")
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line; `group_by=` and `scale=` are also overrides, as for a launch."""
    parser = CommandLine("compare", __doc__)
    add = parser.add_argument
    add("runs", nargs="*", metavar="RUN|key=value", help="a folder, a run id or a selection")
    add("--metric", nargs="+", action="extend", help="default: the headline metric and train/loss")
    add("--axis", choices=AXES, default="epoch")
    add("--group-by", default="experiment", help="a key of the configuration")
    add("--scale", choices=SCALES, help="compare only runs of this scale")
    add("--outputs", type=Path, default=Path("outputs"))
    add("--out", type=Path, help="default: compare/ below --outputs")
    add("--from-wandb", metavar="ENTITY/PROJECT", help="read the runs from W&B")
    add("--wandb-report", action="store_true", help="also create a W&B report")
    options = parser.read(arguments)
    options.select = dict(word.split("=", 1) for word in options.runs if "=" in word)
    options.runs = [word for word in options.runs if "=" not in word]
    options.group_by = options.select.pop("group_by", options.group_by)
    options.select |= {"scale": options.scale} if options.scale else {}
    options.out = options.out or options.outputs / "compare"
    if options.from_wandb and not wandb_runs.is_project(options.from_wandb):
        parser.error(f"--from-wandb {options.from_wandb}: write ENTITY/PROJECT")
    if options.from_wandb and options.runs:
        parser.error(f"{options.runs[0]}: select runs of W&B by key=value")
    return options


if __name__ == "__main__":
    sys.exit(main())
