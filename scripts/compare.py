"""`python -m scripts.compare [RUN …] [experiment=imagenet/*] [group_by=optimizer] [--metric …]`.

Puts the curves of runs side by side: mean ± standard deviation over the runs of each group, as a
table here and as pictures, CSV files and one HTML page in `outputs/compare/`.

A RUN is a run's folder, a run's id below `--outputs`, or a folder of an offline W&B run; without
any, all runs below `--outputs` are meant. `key=value` words select among them by a key of their
configuration (`experiment=imagenet/*`, `optimizer=novograd`, `optimizer.lr=0.00?`).

Exit status: 0 compared · 2 nothing to compare, a bad word, or W&B can't be reached.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from engine import wandb_runs
from engine.config import SCALES, did_you_mean
from engine.plan import Duration
from engine.record import write_atomically
from engine.wandb_runs import WandbProblem, WandbRun
from results.curves import AXES, Band, Curve, Run, band, curve, in_order, read_run
from results.plots import Figure, csv_of, draw, html_table, page, readable_time, text_table
from results.schema import read_paper
from tasks.base import Task
from tasks.catalog import TASKS, task_class

# Of metrics that are no task's headline; of others, a learning rate say, none is the best.
HIGHER_IS_BETTER = {"top1": True, "top5": True, "bleu": True, "sacrebleu": True}
HIGHER_IS_BETTER |= {"loss": False, "ppl": False, "wer": False, "cer": False}
SAME = ("task", "scale", "data")  # what the runs of a comparison must agree in


class CompareProblem(Exception):
    """A comparison that can't be made; the message is for the user."""


@dataclass(frozen=True)
class Group:
    """Runs that are averaged: finished ones. A run that is not stands in a group of its own."""

    name: str
    runs: tuple[Run, ...]

    @property
    def is_finished(self) -> bool:
        return all(run.is_finished for run in self.runs)

    def curves(self, metric: str, axis: str) -> list[Curve]:
        found = [curve(run.rows, metric, axis) for run in self.runs]
        return [c for c in found if len(c.xs)]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; what a user can get wrong becomes one message."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    try:
        compare(options)
    except (CompareProblem, WandbProblem) as problem:
        print(problem, file=sys.stderr)
        return 2
    except OSError as problem:
        print(f"{problem.filename or options.out}: {problem.strerror}", file=sys.stderr)
        return 2
    return 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line; `group_by=` and `scale=` are also words, as a launch has them."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.compare", description="Puts the curves of runs side by side."
    )
    parser.add_argument("words", nargs="*", metavar="RUN|key=value")
    parser.add_argument(
        "--metric", nargs="+", action="extend", help="default: the headline and train/loss"
    )
    parser.add_argument("--axis", choices=AXES, default="epoch")
    parser.add_argument("--group-by", default="experiment", help="a configuration's key")
    parser.add_argument("--scale", choices=SCALES, help="compare only runs of this scale")
    parser.add_argument("--outputs", type=Path, default=Path("outputs"))
    parser.add_argument("--out", type=Path, help="default: compare/ below --outputs")
    parser.add_argument("--wandb", metavar="ENTITY/PROJECT", help="read the runs from W&B")
    parser.add_argument("--wandb-report", action="store_true", help="also make a W&B report")
    options = parser.parse_intermixed_args(arguments)
    options.runs = [word for word in options.words if "=" not in word]
    options.select = dict(word.split("=", 1) for word in options.words if "=" in word)
    options.group_by = options.select.pop("group_by", options.group_by)
    if options.scale:
        options.select["scale"] = options.scale
    options.out = options.out or options.outputs / "compare"
    if options.wandb and options.wandb.strip("/").count("/") != 1:
        parser.error(f"--wandb {options.wandb}: write ENTITY/PROJECT")
    if options.wandb and options.runs:
        parser.error(f"{options.runs[0]}: runs of W&B are selected by key=value words")
    return options


def compare(options: argparse.Namespace) -> None:
    """From the command line to tables, files and perhaps a report; files are written last."""
    found = find_runs(options)
    runs = select(found, options.select)
    check_comparable(runs)
    task = task_class(runs[0].value("task") or "")
    runs = [with_rows(run, task) for run in runs]
    metrics = choose_metrics(options.metric or [task.headline.name, "train/loss"], runs)
    groups = make_groups(runs, options.group_by)
    notes = notes_on(groups)
    figures = [make_figure(groups, metric, options.axis, task) for metric in metrics]
    tables = [summary(groups, metric, options.axis, task) for metric in metrics]
    title = subject(runs[0])
    options.out.mkdir(parents=True, exist_ok=True)
    whole = page(title, figures, [html_table(table) for table in tables], notes)
    for metric, figure in zip(metrics, figures, strict=True):
        name = options.out / f"{_slug(title)}-{_slug(metric)}"
        draw(figure, name.with_suffix(".png"))
        write_atomically(name.with_suffix(".csv"), csv_of(figure).encode(), durable=False)
    html = options.out / f"{_slug(title)}.html"
    write_atomically(html, whole.encode(), durable=False)
    for figure, table in zip(figures, tables, strict=True):
        print(f"{figure.title}\n{text_table(table)}\n")
    print(*notes, f"pictures, numbers and a page: {html}", sep="\n")
    if options.wandb_report:
        print(f"report: {wandb_runs.save_report(make_report(groups, metrics, options))}")


def find_runs(options: argparse.Namespace) -> list[Run]:
    """The runs that the command line names, or all there are."""
    if options.wandb:
        found = [_of_wandb(run) for run in wandb_runs.read_project(options.wandb.strip("/"))]
        found = [run for run in found if {"experiment", *SAME} <= set(run.config)]
        if not found:
            raise CompareProblem(f"--wandb {options.wandb}: no run there is one of this suite")
        return found
    if not options.runs:
        found = [_read(path.parent) for path in sorted(options.outputs.rglob("run.yaml"))]
        if not found:
            raise CompareProblem(f"there are no runs below --outputs {options.outputs}")
        return found
    folders = [_folder(word, options.outputs).resolve() for word in options.runs]
    return [_read(folder) for folder in dict.fromkeys(folders)]


def _folder(word: str, outputs: Path) -> Path:
    for folder in (Path(word), outputs / word):
        if (folder / "run.yaml").is_file() or any(folder.glob("*.wandb")):
            return folder
    known = [str(p.parent.relative_to(outputs)) for p in sorted(outputs.rglob("run.yaml"))]
    hint = did_you_mean(word, known) if known else f"; there are no runs below {outputs}"
    raise CompareProblem(f"{word} is neither a run's folder nor the id of a run{hint}")


def _read(folder: Path) -> Run:
    if not (folder / "run.yaml").is_file():
        return _of_wandb(wandb_runs.read_offline(folder))
    try:
        return read_run(folder)
    except ValueError as problem:
        raise CompareProblem(str(problem)) from problem


def _of_wandb(run: WandbRun) -> Run:
    return Run(run.run_id, run.wandb_id, run.config, run.status, lambda: in_order(run.read()))


def with_rows(run: Run, task: type[Task]) -> Run:
    """The run with its rows. W&B calls a run finished that was stopped: its budget decides."""
    try:
        rows = tuple(run.read())
        if run.is_finished and rows and rows[-1].get("epoch"):
            step, units = rows[-1]["step"], int(run.value("batch.global_size") or 0)
            budget = Duration.parse(run.value("budget") or "", "budget", task.unit)
            if step < budget.in_steps(round(step / rows[-1]["epoch"]), units, None) - 1:
                run = replace(run, status="stopped")
    except ValueError as problem:
        raise CompareProblem(f"{run.run_id}: {problem}") from problem
    return replace(run, rows=rows)


def select(runs: Sequence[Run], patterns: dict[str, str]) -> list[Run]:
    """The runs whose configuration has, for every key, a value that fits the pattern."""
    chosen = list(runs)
    for key, pattern in patterns.items():
        values = [run.value(key) for run in runs]
        if all(value is None for value in values):
            raise CompareProblem(f"{key} is no key of these runs{_known_keys(key, runs)}")
        chosen = [run for run in chosen if fnmatchcase(run.value(key) or "", pattern)]
        if not chosen:
            there = ", ".join(sorted({value for value in values if value is not None}))
            raise CompareProblem(f"no run has {key}={pattern}; of {key} there are {there}")
    return chosen


def _known_keys(key: str, runs: Sequence[Run]) -> str:
    names = dict.fromkeys(name for run in runs for name in run.all_keys())
    is_close = get_close_matches(key, names)
    return did_you_mean(key, names if is_close else [name for name in names if "." not in name])


def check_comparable(runs: Sequence[Run]) -> None:
    """Numbers of other tasks, scales or data must not stand side by side as if they were equal."""
    for key in SAME:
        values = [run.value(key) or "none" for run in runs]
        if len(set(values)) > 1:
            counts = ", ".join(f"{values.count(v)} of {v}" for v in sorted(set(values)))
            pick = "--scale …" if key == "scale" else f"{key}=…"
            raise CompareProblem(
                f"runs of different {key} can't be compared ({counts}): pick one with {pick}"
            )
    if runs[0].value("task") not in TASKS:
        raise CompareProblem(f"task {runs[0].value('task')}; known are {', '.join(TASKS)}")


def choose_metrics(asked: Sequence[str], runs: Sequence[Run]) -> list[str]:
    """The metrics, each once, if some run has them."""
    known = dict.fromkeys(key for run in runs for row in run.rows for key in row if "/" in key)
    if not known:
        raise CompareProblem("these runs have logged nothing yet")
    for metric in asked:
        if metric not in known:
            raise CompareProblem(f"no run has logged {metric!r}{did_you_mean(metric, known)}")
    return list(dict.fromkeys(asked))


def make_groups(runs: Sequence[Run], key: str) -> list[Group]:
    """Finished runs by the value of a key, and every other run on its own."""
    if all(run.value(key) is None for run in runs):
        raise CompareProblem(f"--group-by {key}: no such key{_known_keys(key, runs)}")
    by_value: dict[str, list[Run]] = {}
    for run in runs:
        value = run.value(key)
        name = f"{key} not set" if value is None else value if "." not in key else f"{key}={value}"
        name = f"seed {value}" if key == "seed" else name
        if not run.is_finished:
            step = run.rows[-1]["step"] if run.rows else 0
            mark = "-".join(run.run_id.split("-")[-2:])  # fingerprint and seed
            name += f" {mark} ({run.status} at step {step:,.0f})"
        by_value.setdefault(name, []).append(run)
    return [Group(name, tuple(found)) for name, found in by_value.items()]


def notes_on(groups: Sequence[Group]) -> list[str]:
    """What a reader must know to read the tables rightly."""
    notes = []
    for group in groups:
        recipes = sorted({run.run_id.rpartition("-s")[0] for run in group.runs})
        if len(recipes) > 1:
            notes.append(
                f"{group.name}: ± is over {len(recipes)} recipes, not over seeds alone "
                f"({', '.join(recipes)})"
            )
    if not all(group.is_finished for group in groups):
        notes.append("Runs that are not finished are dotted, and part of no mean.")
    return notes


def subject(run: Run) -> str:
    """Task, scale and data: small numbers must not be taken for the paper's."""
    return f"{run.value('task')}, scale {run.value('scale')}, {run.value('data')}"


def make_figure(groups: Sequence[Group], metric: str, axis: str, task: type[Task]) -> Figure:
    """The curves of a metric; beside the paper's number only at the paper's own scale."""
    shown: dict[str, Band] = {}
    references: dict[str, float] = {}
    for group in groups:
        curves = group.curves(metric, axis)
        if curves:
            try:
                shown[group.name] = band(curves)
            except ValueError as problem:
                raise CompareProblem(f"{group.name}: {problem}: choose another --axis") from None
            number = paper_number(group, metric)
            references |= {} if number is None else {group.name: number}
    if not shown:
        raise CompareProblem(f"no row has both {metric} and {axis}: choose another --axis")
    dotted = [group.name for group in groups if not group.is_finished]
    title = f"{metric} · {subject(groups[0].runs[0])}"
    return Figure(title, shown, task.unit, references, dotted)


def paper_number(group: Group, metric: str) -> float | None:
    """What the paper prints for a group that is one of its rows, run in full."""
    experiments = {run.value("experiment") for run in group.runs}
    if len(experiments) > 1 or group.runs[0].value("scale") != "paper":
        return None
    rows = [row for table in read_paper() for row in table.rows if row.experiment in experiments]
    return next((row.metrics[metric] for row in rows if metric in row.metrics), None)


def summary(groups: Sequence[Group], metric: str, axis: str, task: type[Task]) -> list[list[str]]:
    """A line for each group; its best is the mean of its runs' best values, and of their places."""
    lines = [["group", "runs", "final", "best", f"at {axis}", "wall time"]]
    higher = higher_is_better(metric, task)
    for group in groups:
        curves = group.curves(metric, axis)
        bests = [(c, at) for c in curves if (at := c.best(higher)) is not None]
        rows = [run.rows[-1] for run in group.runs if run.rows]
        line = [
            _mean([c.ys[-1] for c in curves], with_spread=True),
            _mean([c.ys[at] for c, at in bests]),
            _mean([c.xs[at] for c, at in bests]),
        ]
        times = [row["wall_s"] for row in rows if "wall_s" in row]
        wall = readable_time(float(np.mean(times))) if times else "-"
        lines.append([group.name, str(len(group.runs)), *line, wall])
    return lines


def _mean(values: Sequence[float], with_spread: bool = False) -> str:
    if not values:
        return "-"
    spread = f" ± {np.std(values, ddof=1):.3g}" if with_spread and len(values) > 1 else ""
    return f"{np.mean(values):.4g}{spread}"


def higher_is_better(metric: str, task: type[Task]) -> bool | None:
    """None for a metric that has no best value."""
    if metric == task.headline.name:
        return task.headline.higher_is_better
    return HIGHER_IS_BETTER.get(metric.split("/")[-1])


def make_report(groups: Sequence[Group], metrics: Sequence[str], options: Any) -> Any:
    """A W&B report of the same runs and groups, not saved yet."""
    runs = [run for group in groups for run in group.runs]
    entity, project = (runs[0].value(f"tracking.{key}") or "" for key in ("entity", "project"))
    project = options.wandb or f"{entity}/{project}"
    key = runs[0].full_key(options.group_by)
    ids = [run.wandb_id for run in runs]
    return wandb_runs.build_report(project, subject(runs[0]), ids, metrics, options.axis, key)


def _slug(text: str) -> str:
    return "-".join("".join(c if c.isalnum() else " " for c in text).split())


if __name__ == "__main__":
    sys.exit(main())
