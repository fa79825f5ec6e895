"""Sweeps and W&B: a sweep file for `wandb agent`, and a report of a sweep's runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from analysis.trials import score
from engine import wandb_runs
from engine.records import wandb_id
from launch.config_files import ROOT
from launch.override_text import override_of, value_text
from launch.run_spec import RunSpec, read_overrides
from launch.search import random_trials
from launch.sweep import Range, Sweep, SweepOptions

METHODS = {"grid": "grid", "random": "random", "optuna": "bayes"}
# Factors of a sweep are not in a run's configuration; these are what they multiply.
MULTIPLIED = {"multiply.lr": "optimizer.lr", "multiply.weight_decay": "optimizer.weight_decay"}


def sweep_file(sweep: Sweep, options: SweepOptions) -> str:
    """A W&B sweep file (YAML) whose agents run the trials of a sweep.

    Every trial is one `python -m scripts.launch` from the checkout's root. All trials, or as many
    random ones, are composed first: ConfigProblem where one is wrong. Data is not needed.
    """
    trials = sweep.grid_trials() if sweep.search == "grid" else random_trials(sweep)
    found = [read_overrides([*trial.overrides], must_exist=False)[0] for trial in trials]
    tracking = found[0].tracking
    goal = "maximize" if score(sweep.metric, 1.0) > 0 else "minimize"
    parameters: dict[str, Any] = {"experiment": {"values": list(sweep.experiments)}}
    parameters |= {key: _parameter(axis) for key, axis in sweep.axes.items()}
    file: dict[str, Any] = {
        "name": sweep.name,
        "project": tracking.project,
        **({"entity": tracking.entity} if tracking.entity else {}),
        "program": "scripts/launch.py",
        "method": METHODS[sweep.search],
        "metric": {"name": f"final/{sweep.metric}", "goal": goal},
        "parameters": parameters,
        "command": _command(sweep, options),
    }
    if sweep.search != "grid":
        file["run_cap"] = sweep.trials * len(sweep.experiments)
    return yaml.safe_dump(file, sort_keys=False, allow_unicode=True, width=1000)


def _command(sweep: Sweep, options: SweepOptions) -> list[str]:
    """With this environment's interpreter where it belongs to the checkout."""
    here = Path(sys.executable)
    python = str(here.relative_to(ROOT)) if here.is_relative_to(ROOT) else "${interpreter}"
    fixed = [f"hardware.processes={options.gpus_per_run}"]
    if not any(override.partition("=")[0] == "tracking" for override in sweep.overrides):
        fixed.append("tracking=wandb")
    fixed += [override_of("tracking.sweep", sweep.name), *sweep.overrides]
    return ["${env}", python, "-m", "scripts.launch", *fixed, "${args_no_hyphens}"]


def _parameter(axis: list[Any] | Range) -> dict[str, Any]:
    """An agent writes `key=value` as it finds the value: texts and lists are in Hydra's grammar."""
    if isinstance(axis, Range):
        kind = "log_uniform_values" if axis.log else "uniform"
        return {"distribution": kind, "min": axis.low, "max": axis.high}
    plain = all(isinstance(value, int | float) and not isinstance(value, bool) for value in axis)
    return {"values": [v if plain else value_text(v) for v in axis]}


def report(sweep: Sweep, runs: Sequence[RunSpec]) -> str:
    """Saves a W&B report of a sweep's runs; a line with its address, or with how to get it later.

    Empty where the runs do not go to W&B. Nothing that fails here makes the sweep fail.
    """
    tracking = runs[0].config.tracking
    if tracking.wandb == "off":
        return ""
    keys = [MULTIPLIED.get(key, key) for key in (*sweep.group_by, *sweep.axes) if key != "seed"]
    try:
        if tracking.wandb == "offline":
            raise wandb_runs.WandbProblem("the runs are offline")
        made = wandb_runs.build_report(
            project=f"{tracking.entity or ''}/{tracking.project}",
            title=f"{tracking.sweep}, scale {runs[0].config.scale}",
            run_ids=[wandb_id(run.run_id) for run in runs],
            metrics=[sweep.metric, "train/loss"],
            axis="epoch",
            group_key=keys[0],
            along=MULTIPLIED.get(sweep.along, sweep.along) if sweep.along else None,
        )
        return f"W&B report: {wandb_runs.save_report(made)}\n"
    except wandb_runs.WandbProblem as problem:
        later = f"python -m scripts.compare tracking.sweep={tracking.sweep} --wandb-report"
        return f"W&B report: not saved ({problem}); after `make wandb-sync`: {later}\n"
