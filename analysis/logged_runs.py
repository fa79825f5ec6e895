"""Runs as their folders or W&B have them: found, selected and grouped for a comparison."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from analysis.curves import Curve, curve
from engine.records import FINISHED, RUN_FILE, RecordError, read_run_file, read_status, wandb_id
from engine.rows import ROWS_FILE, Row, read_rows, sort_rows

SAME = ("task", "scale", "data")  # what the runs of a comparison must agree in


class CompareProblem(Exception):
    """A comparison that can't be made; the message is for the user."""


@dataclass(frozen=True)
class LoggedRun:
    """A run with its configuration; `read` fetches its rows, which may take a while."""

    run_id: str
    wandb_id: str
    config: dict[str, Any]
    status: str  # "finished", or what it is instead
    read: Callable[[], Iterable[Mapping[str, float]]]
    rows: tuple[Row, ...] = ()

    @property
    def is_finished(self) -> bool:
        return self.status == FINISHED

    @property
    def step(self) -> float:
        """The last step that was logged."""
        return self.rows[-1]["step"] if self.rows else 0

    def value(self, key: str) -> str | None:
        """The text of a configuration's value; of a group such as `optimizer` its name."""
        value = self._look_up(self.full_key(key))
        return None if value is None or isinstance(value, dict) else str(value)

    def full_key(self, key: str) -> str:
        """`optimizer.name` for `optimizer`, and every other key as it is."""
        return f"{key}.name" if isinstance(self._look_up(key), dict) else key

    def all_keys(self) -> list[str]:
        """The dotted keys of the configuration, groups too."""

        def flat(node: Mapping[str, Any], prefix: str) -> list[str]:
            below = [flat(v, f"{prefix}{k}.") for k, v in node.items() if isinstance(v, dict)]
            return [f"{prefix}{k}" for k in node] + [name for names in below for name in names]

        return flat(self.config, "")

    def _look_up(self, key: str) -> Any:
        value: Any = self.config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value


@dataclass(frozen=True)
class Group:
    """Finished runs, which are averaged; an unfinished run is a group of its own."""

    name: str
    runs: tuple[LoggedRun, ...]

    @property
    def is_finished(self) -> bool:
        return all(run.is_finished for run in self.runs)

    def common(self, key: str) -> str | None:
        """The value of a key, if all runs have the same."""
        values = {run.value(key) for run in self.runs}
        return values.pop() if len(values) == 1 else None

    def curves(self, metric: str, axis: str) -> list[Curve]:
        """Of the runs that have such a curve."""
        found = [curve(run.rows, metric, axis) for run in self.runs]
        return [c for c in found if len(c.xs)]


class WandbReader(Protocol):
    """What reads runs from W&B: `engine.wandb_runs`."""

    def read_project(self, project: str) -> Sequence[Any]: ...
    def read_offline(self, folder: Path) -> Any: ...


def select_runs(wanted: Namespace, wandb: WandbReader) -> list[LoggedRun]:
    """The runs of a W&B project, or of folders, that match all patterns of the command line."""
    if wanted.from_wandb:
        found = [_of_wandb(run) for run in wandb.read_project(wanted.from_wandb)]
        found = [run for run in found if {"experiment", *SAME} <= set(run.config)]
        if not found:
            raise CompareProblem(
                f"--from-wandb {wanted.from_wandb}: no run there is one of this suite"
            )
    else:
        found = [
            read_logged_run(folder)
            if (folder / RUN_FILE).is_file()
            else _of_wandb(wandb.read_offline(folder))
            for folder in find_folders(wanted.runs, wanted.outputs)
        ]
    return matching(found, wanted.select)


def _of_wandb(run: Any) -> LoggedRun:
    return LoggedRun(run.run_id, run.wandb_id, run.config, run.status, run.read)


def with_rows(
    run: LoggedRun,
    is_cut_short: Callable[[Mapping[str, Any], Sequence[Row], str], bool],
    unit: str,
) -> LoggedRun:
    """The run with its rows in the order of their steps.

    W&B also calls a run finished that was stopped before it had spent its budget.
    """
    try:
        rows = sort_rows(run.read())
        cut = run.is_finished and is_cut_short(run.config, rows, unit)
    except ValueError as problem:
        raise CompareProblem(f"{run.run_id}: {problem}") from problem
    return replace(run, rows=tuple(rows), status="stopped" if cut else run.status)


def read_logged_run(folder: Path) -> LoggedRun:
    """A run from its folder, without its rows yet."""
    try:
        frozen = read_run_file(folder)
        status = read_status(folder).kind or "unfinished"
    except RecordError as problem:
        raise CompareProblem(str(problem)) from problem
    rows = folder / ROWS_FILE
    read = partial(read_rows, rows) if rows.exists() else list
    return LoggedRun(frozen.run_id, wandb_id(frozen.run_id), frozen.config, status, read)


def find_folders(names: Sequence[str], outputs: Path) -> list[Path]:
    """Folders of runs by path or run id, each once; without any names, all below `outputs`."""
    known = sorted(path.parent for path in outputs.rglob(RUN_FILE))
    if not names and not known:
        raise CompareProblem(f"there are no runs below --outputs {outputs}")
    found = [_folder(name, outputs, known) for name in names] or known
    return list({folder.resolve(): folder for folder in found}.values())


def _folder(name: str, outputs: Path, known: Sequence[Path]) -> Path:
    for folder in (Path(name), outputs / name):
        if (folder / RUN_FILE).is_file() or any(folder.glob("*.wandb")):
            return folder
    hint = closest(name, [str(path.relative_to(outputs)) for path in known])
    raise CompareProblem(f"{name} is neither a run's folder nor a run's id{hint}")


def matching(runs: Sequence[LoggedRun], patterns: Mapping[str, str]) -> list[LoggedRun]:
    """The runs whose configuration has, for every key, a value that matches the pattern."""
    chosen = list(runs)
    for key, pattern in patterns.items():
        values = [run.value(key) for run in runs]
        if all(value is None for value in values):
            raise CompareProblem(f"no run has the key {key}{closest_key(key, runs)}")
        chosen = [run for run in chosen if fnmatchcase(run.value(key) or "", pattern)]
        if not chosen:
            there = ", ".join(sorted({value for value in values if value is not None}))
            raise CompareProblem(f"no run has {key}={pattern}; the values of {key} are {there}")
    return chosen


def common_task(runs: Sequence[LoggedRun], tasks: Iterable[str]) -> str:
    """The task of all runs.

    Numbers of different tasks, scales or data must not stand side by side.
    """
    for key in SAME:
        values = [run.value(key) or "none" for run in runs]
        if len(set(values)) > 1:
            counts = ", ".join(f"{values.count(v)} of {v}" for v in sorted(set(values)))
            pick = "--scale …" if key == "scale" else f"{key}=…"
            raise CompareProblem(
                f"runs of different {key} can't be compared ({counts}): choose one with {pick}"
            )
    task = runs[0].value("task") or "none"
    if task not in tasks:
        raise CompareProblem(f"unknown task {task}; known are {', '.join(tasks)}")
    return task


def make_groups(runs: Sequence[LoggedRun], key: str) -> list[Group]:
    """Finished runs by the value of a key, and every other run on its own."""
    if all(run.value(key) is None for run in runs):
        raise CompareProblem(f"--group-by {key}: no such key{closest_key(key, runs)}")
    by_name: dict[str, list[LoggedRun]] = {}
    for run in runs:
        value = run.value(key)
        name = f"{key} not set" if value is None else value if "." not in key else f"{key}={value}"
        name = f"seed {value}" if key == "seed" else name
        if not run.is_finished:
            mark = "-".join(run.run_id.split("-")[-2:])  # fingerprint and seed
            name += f" {mark} ({run.status} at step {run.step:,.0f})"
        by_name.setdefault(name, []).append(run)
    return [Group(name, tuple(found)) for name, found in by_name.items()]


def closest(name: str, known: Iterable[str]) -> str:
    """A hint to the closest known name, or the list of all."""
    names = list(known)
    close = get_close_matches(name, names, n=1)
    if not names:
        return ""
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(names)}"


def closest_key(key: str, runs: Sequence[LoggedRun]) -> str:
    """A hint to the closest key, or the list of those without a dot."""
    names = list(dict.fromkeys(name for run in runs for name in run.all_keys()))
    is_close = bool(get_close_matches(key, names))
    return closest(key, names if is_close else [name for name in names if "." not in name])
