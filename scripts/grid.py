"""Sweeps as data: `configs/sweep/*.yaml` and the words of a command line, read strictly.

A sweep is some experiments and some axes: keys of the configuration with the values that each
takes. Its points are all combinations; a search (scripts/search.py) draws points from ranges.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import yaml

from engine.config import ConfigProblem, did_you_mean, read_dataclass
from scripts.launch import CONFIGS, multirun_values, options_of

SEARCHES = ("grid", "random", "optuna")
LEARNING_RATES = ("multiply.lr", "optimizer.lr")
BY_HAND = "by_hand"  # the name of a sweep without a file
_RANGE = re.compile(r"(log|uniform)\(\s*([^,\s]+)\s*,\s*([^,\s]+)\s*\)")
_PLAIN_TEXT = re.compile(r"(?!(?:true|false|null|nan|inf)$)[A-Za-z_][\w./-]*", re.IGNORECASE)


@dataclass(frozen=True)
class SweepFile:
    """What may stand in a file of configs/sweep."""

    experiments: list[str]
    grid: dict[str, Any] = field(default_factory=dict)  # a list of values by key, or a range
    group_by: list[str] = field(default_factory=lambda: ["experiment"])  # a best for each
    along: str | None = None  # the axis of the sensitivity; default: the learning rate's
    metric: str | None = None  # default: the task's headline
    search: str = "grid"
    trials: int = 20  # of a search, for each experiment


@dataclass(frozen=True)
class Options:
    """Words of the command line that are the sweep's own; the others go to its runs."""

    sweep: str = BY_HAND
    gpus_per_run: int = 1
    jobs: int | None = None  # slots at most
    search: str | None = None
    trials: int | None = None
    metric: str | None = None
    along: str | None = None
    group_by: list[str] | None = None
    plan_only: bool = False


@dataclass(frozen=True)
class Range:
    """An interval to draw from, `log(0.1, 10)` or `uniform(0, 1)`."""

    low: float
    high: float
    log: bool

    def at(self, part: float) -> float:
        """The value after this part of the way from low to high, in six digits."""
        if self.log:
            value = self.low * (self.high / self.low) ** part
        else:
            value = self.low + (self.high - self.low) * part
        return float(f"{value:.6g}")


Axes = dict[str, list[Any] | Range]


@dataclass(frozen=True)
class Point:
    """One combination: its value on each axis, and the words that compose it."""

    values: dict[str, Any]
    words: tuple[str, ...]


@dataclass(frozen=True)
class Sweep:
    """A sweep, complete: a file's and what the command line changes of it."""

    name: str
    experiments: list[str]
    axes: Axes
    words: list[str]  # for every run
    group_by: list[str]
    along: str | None
    metric: str | None
    search: str
    trials: int

    def point(self, values: dict[str, Any]) -> Point:
        """The point with these values, one of them the experiment."""
        words = [word_of(key, value) for key, value in values.items()]
        return Point(values, (*words, *self.words))


def read_sweep(arguments: Sequence[str]) -> tuple[Sweep, Options]:
    """The sweep of a command line; ConfigProblem with everything that is wrong with it."""
    problems: list[str] = []
    own, others = _split(arguments)
    options = read_dataclass(Options, own, "", problems)
    if options is None:
        raise ConfigProblem(problems)
    raw = _read_file(options.sweep, problems)
    axes, words = _read_words(others, raw, problems)
    raw |= {
        key: value
        for key in ("search", "trials", "metric", "along", "group_by")
        if (value := getattr(options, key)) is not None
    }
    file = read_dataclass(SweepFile, raw, "", problems)
    if file is None or problems:
        raise ConfigProblem(problems)
    all_axes = {key: _read_axis(key, given, problems) for key, given in (file.grid | axes).items()}
    along = file.along or next((key for key in LEARNING_RATES if key in all_axes), None)
    sweep = Sweep(
        options.sweep,
        file.experiments,
        all_axes,
        words,
        file.group_by,
        along,
        file.metric,
        file.search,
        file.trials,
    )
    problems += _check(sweep, options)
    if problems:
        raise ConfigProblem(problems)
    return sweep, options


def grid_points(sweep: Sweep) -> list[Point]:
    """Every combination, the last axis fastest."""
    lists = [axis for axis in sweep.axes.values() if not isinstance(axis, Range)]
    return [
        sweep.point({"experiment": experiment} | dict(zip(sweep.axes, values, strict=True)))
        for experiment in sweep.experiments
        for values in itertools.product(*lists)
    ]


def word_of(key: str, value: Any) -> str:
    """`key=value` as Hydra's grammar wants it."""
    return f"{key}={_text(value)}"


def _text(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_text, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_text(item)}" for key, item in value.items()) + "}"
    text = str(value)
    if _PLAIN_TEXT.fullmatch(text):
        return text
    quoted = re.sub(r"\\+(?='|$)", lambda match: match[0] * 2, text).replace("'", "\\'")
    return f"'{quoted}'"


def _split(arguments: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The sweep's own words as a mapping, and all others."""
    names = {f.name for f in fields(Options)}
    own: dict[str, Any] = {}
    others = []
    for word in arguments:
        key, equals, text = word.partition("=")
        if equals and key in names:
            value = yaml.safe_load(text)
            own[key] = text.split(",") if key == "group_by" else value
        else:
            others.append(word)
    return own, others


def _read_file(name: str, problems: list[str]) -> dict[str, Any]:
    if name == BY_HAND:
        return {}
    known = options_of("sweep")
    if name not in known:
        problems.append(f"sweep={name} does not exist{did_you_mean(name, known)}")
        return {"experiments": []}
    raw = yaml.safe_load((CONFIGS / "sweep" / f"{name}.yaml").read_text())
    if not isinstance(raw, dict):
        problems.append(f"configs/sweep/{name}.yaml must be a mapping, not {raw!r}")
        return {"experiments": []}
    return raw


def _read_words(
    words: Sequence[str], raw: dict[str, Any], problems: list[str]
) -> tuple[dict[str, Any], list[str]]:
    """Axes that replace or join a file's, and words for every run; experiments go into `raw`."""
    axes: dict[str, Any] = {}
    fixed = []
    for word in words:
        key, _, text = word.partition("=")
        if _RANGE.fullmatch(text):
            axes[key] = text
            continue
        try:
            key, values = multirun_values(word)
        except ConfigProblem as problem:
            problems += problem.problems
            continue
        grid = raw.get("grid", {})
        if key == "experiment":
            raw["experiments"] = values
        elif len(values) > 1 or (isinstance(grid, dict) and key in grid):
            axes[key] = values
        else:
            fixed.append(word_of(key, values[0]) if values else word)
    if "experiments" not in raw:
        known = ", ".join(options_of("sweep"))
        problems.append(f"say sweep=… or experiment=…; the sweeps are {known}")
        raw["experiments"] = []
    return axes, fixed


def _read_axis(key: str, given: Any, problems: list[str]) -> list[Any] | Range:
    where = f"grid: {key}"
    if isinstance(given, list) and given:
        if len({_text(value) for value in given}) < len(given):
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
        problems.append(f"{where}: {given} is no range from a lower to a higher number")
    elif match[1] == "log" and low <= 0:
        problems.append(f"{where}: {given} has no logarithm: begin above 0")
    return Range(low, high, match[1] == "log")


def _check(sweep: Sweep, options: Options) -> list[str]:
    """What types can't say."""
    problems = []
    known = options_of("experiment")
    for name in sweep.experiments:
        if name not in known:
            problems.append(f"experiment={name} does not exist{did_you_mean(name, known)}")
    if sweep.search not in SEARCHES:
        problems.append(f"search={sweep.search} is none of {', '.join(SEARCHES)}")
    ranges = [key for key, axis in sweep.axes.items() if isinstance(axis, Range)]
    if sweep.search == "grid" and ranges:
        keys = ", ".join(ranges)
        problems.append(f"{keys}: to draw from a range say search=random or search=optuna")
    if sweep.search != "grid":
        if not sweep.axes:
            problems.append(f"search={sweep.search} has no axis to draw from")
        if "seed" in sweep.axes:
            problems.append("a seed is not to be searched for: give one, or sweep over a grid")
    names = ["experiment", *sweep.axes]
    for name in [*sweep.group_by, *([sweep.along] if sweep.along else [])]:
        if name not in names:
            problems.append(f"{name} is no axis of this sweep{did_you_mean(name, names)}")
    for name, number in (
        ("trials", sweep.trials),
        ("gpus_per_run", options.gpus_per_run),
        ("jobs", options.jobs),
    ):
        if number is not None and number < 1:
            problems.append(f"{name} must be at least 1, not {number}")
    return problems
