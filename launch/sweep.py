"""Sweeps: experiments × axes, from `configs/sweep/*.yaml` and the command line, as trials.

A file states one question for several tasks: `sweep=imagenet_lr` is `lr.yaml` for ImageNet. An
axis is a key of the configuration with the values that it takes; all combinations are run. A search
(launch/search.py) draws points from ranges instead.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

import yaml

from analysis.trials import Trial, score
from engine.config import ConfigProblem
from engine.provenance import fingerprint
from engine.schema import Within, did_you_mean, read_dataclass
from launch.compose import collect, multirun_values, own_folders, searching
from launch.config_files import folders_of, nearest_option, options_of
from launch.override_text import override_of, value_text
from tasks.catalog import TASKS, task_class

SEARCHES = ("grid", "random", "optuna")
LEARNING_RATES = ("multiply.lr", "optimizer.lr")
UNNAMED = "by_hand"  # a sweep without a file
REPLACEABLE = ("search", "trials", "metric", "along", "group_by")  # keys of a file, as arguments
_RANGE = re.compile(r"(log|uniform)\(\s*([^,\s]+)\s*,\s*([^,\s]+)\s*\)")


@dataclass(frozen=True)
class SweepFile:
    """The keys of a sweep; a file of configs/sweep may state any of them for each task."""

    experiments: list[str]
    grid: dict[str, Any] = field(default_factory=dict)  # a list of values by key, or a range
    group_by: list[str] = field(default_factory=lambda: ["experiment"])  # a best of each
    along: str | None = None  # the axis of the sensitivity; default: the learning rate's
    metric: str | None = None  # default: the task's headline
    search: str = "grid"
    trials: Annotated[int, Within(1)] = 20  # of a search, for each experiment


@dataclass(frozen=True)
class SweepOptions:
    """`key=value` arguments of the command itself; others replace the file's, or are its runs'."""

    sweep: str = UNNAMED
    gpus_per_run: Annotated[int, Within(1)] = 1
    jobs: Annotated[int | None, Within(1)] = None  # slots at most
    plan_only: bool = False


@dataclass(frozen=True)
class Range:
    """An interval to draw from, `log(0.1, 10)` or `uniform(0, 1)`."""

    low: float
    high: float
    log: bool

    def at(self, part: float) -> float:
        """The value at this part of the way from low to high, in six digits."""
        if self.log:
            value = self.low * (self.high / self.low) ** part
        else:
            value = self.low + (self.high - self.low) * part
        return float(f"{value:.6g}")


@dataclass(frozen=True, kw_only=True)
class Sweep(SweepFile):
    """A sweep, complete: its file with the changes of the command line."""

    name: str
    axes: dict[str, list[Any] | Range]
    overrides: list[str]  # of every run
    metric: str

    def trial(self, values: dict[str, Any]) -> Trial:
        """The trial with these values, one of them the experiment."""
        words = (*(override_of(key, value) for key, value in values.items()), *self.overrides)
        series = " ".join(f"{k}={v}" for k, v in values.items() if k not in (self.along, "seed"))
        at = values.get(self.along or "", 0.0)
        place = float(at) if isinstance(at, int | float) else 0.0
        seed = int(values.get("seed", 0))
        return Trial(self.name, "", "", series, place, seed, self.metric, words, values)

    def grid_trials(self) -> list[Trial]:
        """Every combination, the last axis fastest."""
        lists = [axis for axis in self.axes.values() if not isinstance(axis, Range)]
        return [
            self.trial({"experiment": experiment} | dict(zip(self.axes, values, strict=True)))
            for experiment in self.experiments
            for values in itertools.product(*lists)
        ]

    def fingerprint(self, run_ids: Sequence[str]) -> str:
        """What tells sweeps of the same name apart: their runs, metric and axes."""
        runs = sorted(set(run_ids))
        return fingerprint({"runs": runs, "metric": self.metric, "axes": repr(self.axes)})

    def describe(self) -> str:
        """What is combined: "3 experiments × 7 multiply.lr"."""
        count = len(self.experiments)
        parts = [f"{count} experiment{'s' if count > 1 else ''}"]
        for key, axis in self.axes.items():
            if isinstance(axis, Range):
                parts.append(f"{key} from {axis.low:g} to {axis.high:g}")
            else:
                parts.append(f"{len(axis)} {key}")
        if self.search != "grid":
            parts.insert(0, f"{self.trials} trials, {self.search}")
        return " × ".join(parts)


def read_sweep(arguments: Sequence[str]) -> tuple[Sweep, SweepOptions]:
    """The sweep of a command line; ConfigProblem lists everything that is wrong with it."""
    problems: list[str] = []
    own, others = _split(arguments)
    instead = {key: own.pop(key) for key in REPLACEABLE if key in own}
    options = read_dataclass(SweepOptions, own, "", problems)
    if options is None:
        raise ConfigProblem(problems)
    folders = own_folders(others, problems)
    raw = _read_file(options.sweep, folders, problems)
    axes, overrides = _read_overrides(others, raw, folders, problems)
    raw |= {key: value for key, value in instead.items() if value is not None}
    file = read_dataclass(SweepFile, raw, "", problems)
    if file is None or problems:
        raise ConfigProblem(problems)
    all_axes = {key: _read_axis(key, given, problems) for key, given in (file.grid | axes).items()}
    along = file.along or next((key for key in LEARNING_RATES if key in all_axes), None)
    chosen = vars(file) | {"along": along, "metric": _metric(file, folders, problems)}
    sweep = Sweep(**chosen, name=options.sweep, axes=all_axes, overrides=overrides)
    problems += _check(sweep, folders)
    if problems:
        raise ConfigProblem(problems)
    return sweep, options


def sweep_files(own: Sequence[Path] = ()) -> dict[str, dict[str, Any]]:
    """What the files state, by the name of the sweep: `<task>_<file>`, or the file's own.

    Those of configs/ and of the user's own folders.
    """
    found: dict[str, dict[str, Any]] = {}
    for path in [p for folder in folders_of(own) for p in sorted(folder.glob("sweep/*.yaml"))]:
        try:
            raw = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as problem:
            raise ConfigProblem([f"{path}: {' '.join(str(problem).split())}"]) from problem
        if not isinstance(raw, dict):
            raise ConfigProblem([f"{path} must be a mapping, not {raw!r}"])
        tasks = raw.pop("tasks", None)
        if tasks is None:
            found[path.stem] = raw
            continue
        for task, given in tasks.items():
            part = given if isinstance(given, dict) else {"experiments": given}
            found[f"{task}_{path.stem}"] = raw | part
    return found


def _split(arguments: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The sweep's own arguments as a mapping, and all others."""
    names = {*(f.name for f in fields(SweepOptions)), *REPLACEABLE}
    own: dict[str, Any] = {}
    others = []
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if equals and key in names:
            own[key] = text.split(",") if key == "group_by" else _value(argument, text)
        else:
            others.append(argument)
    return own, others


def _value(argument: str, text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigProblem([f"{argument!r} can't be read: write key=value"]) from None


def _read_file(name: str, folders: Sequence[Path], problems: list[str]) -> dict[str, Any]:
    if name == UNNAMED:
        return {}
    files = sweep_files(folders)
    if name not in files:
        problems.append(f"sweep={name} does not exist{did_you_mean(name, files)}")
    return files.get(name, {"experiments": []})


def _read_overrides(
    arguments: Sequence[str], raw: dict[str, Any], folders: Sequence[Path], problems: list[str]
) -> tuple[dict[str, Any], list[str]]:
    """Axes that replace or join a file's, and overrides of every run; experiments go to `raw`."""
    axes: dict[str, Any] = {}
    fixed = []
    for argument in arguments:
        key, _, text = argument.partition("=")
        if _RANGE.fullmatch(text):
            axes[key] = text
            continue
        try:
            key, values = multirun_values(argument, folders)
        except ConfigProblem as problem:
            problems += problem.problems
            continue
        grid = raw.get("grid", {})
        if key == "experiment":
            raw["experiments"] = values
        elif isinstance(values, str) or len(values) > 1 or (isinstance(grid, dict) and key in grid):
            axes[key] = values
        else:
            fixed.append(override_of(key, values[0]) if values else argument)
    if "experiments" not in raw:
        known = ", ".join(sweep_files(folders))
        problems.append(f"set sweep=… or experiment=…; the sweeps are {known}")
        raw["experiments"] = []
    return axes, fixed


def _read_axis(key: str, given: Any, problems: list[str]) -> list[Any] | Range:
    where = f"grid: {key}"
    if isinstance(given, list) and given:
        if len({value_text(value) for value in given}) < len(given):
            problems.append(f"{where} has a value twice: {given}")
        return given
    match = _RANGE.fullmatch(given.strip()) if isinstance(given, str) else None
    if match is None:
        wanted = "a list of values, log(low, high) or uniform(low, high)"
        problems.append(f"{where} must be {wanted}, not {given!r}")
        return [None]
    try:
        low, high = float(match[2]), float(match[3])
    except ValueError:
        low = high = math.nan
    if not (low < high and math.isfinite(low) and math.isfinite(high)):
        problems.append(f"{where}: {given} must go from a lower to a higher finite number")
    elif match[1] == "log" and low <= 0:
        problems.append(f"{where}: {given} must start above 0 for a logarithmic scale")
    return Range(low, high, match[1] == "log")


def _task_of(experiment: str, folders: Sequence[Path]) -> str:
    """An experiment's task, which is its folder in configs/; empty if it can't be composed."""
    name = experiment.partition("/")[0]
    if name not in TASKS and folders:
        found = collect([f"experiment={experiment}", "scale=paper", *searching(*folders)], [])
        name = str(found[0]["task"]["name"]) if found else ""
    return name


def _metric(file: SweepFile, folders: Sequence[Path], problems: list[str]) -> str:
    """The sweep's metric: a headline, or another that the tasks evaluate."""
    names = dict.fromkeys(_task_of(experiment, folders) for experiment in file.experiments)
    tasks = [task_class(name) for name in names if name in TASKS]
    headlines = list(dict.fromkeys(task.headline.name for task in tasks))
    if file.metric is None:
        if len(headlines) > 1:
            problems.append(f"set metric=…: the tasks have {', '.join(headlines)}")
        return headlines[0] if headlines else ""
    split = file.metric.partition("/")[0]
    for task in tasks:
        splits = (*task.splits, *task.final_splits)
        if split not in splits:
            known = did_you_mean(split, splits)
            problems.append(f"metric={file.metric}: {split} is not evaluated{known}")
    try:
        score(file.metric, 0.0)
    except ValueError as problem:
        problems.append(f"metric={problem}")
    return file.metric


def _check(sweep: Sweep, folders: Sequence[Path]) -> list[str]:
    """Problems that types do not show."""
    problems = []
    known = options_of("experiment", folders)
    for name in sweep.experiments:
        if name not in known:
            problems.append(f"experiment={name} does not exist{nearest_option(name, known)}")
    if sweep.search not in SEARCHES:
        problems.append(f"search={sweep.search} must be one of {', '.join(SEARCHES)}")
    ranges = [key for key, axis in sweep.axes.items() if isinstance(axis, Range)]
    if sweep.search == "grid" and ranges:
        keys = ", ".join(ranges)
        problems.append(f"{keys}: to draw from a range set search=random or search=optuna")
    if sweep.search != "grid":
        if not sweep.axes:
            problems.append(f"search={sweep.search} has no axis to draw from")
        if "seed" in sweep.axes:
            problems.append("a seed can't be searched for: give one, or sweep over a grid")
    names = ["experiment", *sweep.axes]
    for name in [*sweep.group_by, *([sweep.along] if sweep.along else [])]:
        if name not in names:
            problems.append(f"{name} is not an axis of this sweep{did_you_mean(name, names)}")
    return problems
