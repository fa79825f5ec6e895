"""`wandb agent` runs the same trials as the sweep itself; a sweep's runs carry its name."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml

from engine import wandb_runs
from engine.config import recipe_fingerprint
from engine.wandb_runs import WandbProblem
from launch import wandb_sweep
from launch.config_files import ROOT
from launch.run_spec import read_overrides
from launch.search import open_sweep
from launch.sweep import read_sweep
from scripts import sweep

BASE = ["scale=smoke", "hardware=cpu"]


def agents_command(file: dict[str, Any], values: dict[str, Any]) -> list[str]:
    """What `wandb agent` executes for one set of values, by W&B's own functions."""
    from wandb.sdk.launch.sweeps import utils  # takes seconds

    given = {name: {"value": value} for name, value in values.items()}
    found = utils.create_sweep_command_args({"args": given}) | {"env": ["/usr/bin/env"]}
    arguments: list[str] = []
    for part in utils.create_sweep_command([*file["command"]]):
        arguments += found[part[2:-1]] if part.startswith("${") else [part]
    return arguments


@pytest.mark.parametrize("name", ["imagenet_beta2", "librispeech_warmup", "imagenet_search"])
def test_an_agent_runs_the_trials_of_the_sweep(name, capsys, tmp_path):
    where = [f"paths.outputs={tmp_path}"]
    assert sweep.main(["--wandb-config", f"sweep={name}", *BASE, *where]) == 0
    file = yaml.safe_load(capsys.readouterr().out)
    assert (file["name"], file["project"]) == (name, "novograd-repro")
    better = name.startswith("imagenet")
    assert file["metric"]["goal"] == ("maximize" if better else "minimize")
    axes = {
        key: {given["values"][0]: 0, given["values"][-1]: 0}
        if "values" in given
        else [given["min"], given["max"]]
        for key, given in file["parameters"].items()
    }
    agents = set()
    for values in itertools.product(*axes.values()):
        command = agents_command(file, dict(zip(axes, values, strict=True)))
        start = command.index("scripts.launch")
        assert command[:2] == ["/usr/bin/env", ".venv/bin/python"]
        config, _ = read_overrides(command[start + 1 :], must_exist=False)
        assert config.tracking.wandb == "auto"
        assert config.tracking.sweep == name
        agents.add(recipe_fingerprint(config))
    if name == "imagenet_search":
        assert file["method"] == "random"
        assert file["parameters"]["multiply.lr"]["distribution"] == "log_uniform_values"
        assert file["run_cap"] == 48
    else:
        found, _ = read_sweep([f"sweep={name}", *BASE, *where])
        own = [read_overrides([*trial.overrides])[0] for trial in found.grid_trials()]
        assert agents <= {recipe_fingerprint(config) for config in own}


def test_the_file_needs_no_data_and_refuses_what_does_not_compose(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("DATA_ROOT", str(tmp_path))
    assert sweep.main(["--wandb-config", "sweep=wmt14_lr", "scale=mini", "hardware=cpu"]) == 0
    assert "wmt14/novograd" in capsys.readouterr().out
    assert sweep.main(["--wandb-config", "sweep=wmt14_lr", "optimizer.rl=1", *BASE]) == 2
    said = capsys.readouterr()
    assert not said.out
    assert "optimizer.rl" in said.err


def test_interpreters_outside_the_checkout_are_the_agents_own(monkeypatch):
    monkeypatch.setattr("sys.executable", "/opt/python")
    file = yaml.safe_load(wandb_sweep.sweep_file(*read_sweep(["sweep=imagenet_lr", *BASE])))
    assert file["command"][1] == "${interpreter}"
    assert Path(ROOT, "scripts", "launch.py").exists()


def test_a_sweep_ends_with_a_report_of_its_runs(monkeypatch, tmp_path):
    given = ["sweep=imagenet_lr", *BASE, f"paths.outputs={tmp_path}", "plan_only=true"]
    found, options = read_sweep([*given, "tracking=wandb"])
    runs = open_sweep(found, options).expected()
    assert {run.config.tracking.sweep for run in runs} == {"imagenet_lr"}
    saved: list[Any] = []

    def save(report: Any) -> str:
        saved.append(report)
        return "https://wandb.example/report"

    monkeypatch.setattr(wandb_runs, "save_report", save)
    assert wandb_sweep.report(found, runs) == "W&B report: https://wandb.example/report\n"
    (report,) = saved
    assert (report.entity, report.project) == ("", "novograd-repro")
    assert report.title == "imagenet_lr, scale smoke"
    (grid,) = report.blocks
    assert runs[0].run_id.replace("/", "-") in grid.runsets[0].filters
    assert grid.runsets[0].groupby == ["config.experiment"]
    assert [type(panel).__name__ for panel in grid.panels] == [
        "LinePlot",
        "LinePlot",
        "ScatterPlot",
    ]
    report._to_model()  # what would be sent

    def refuse(report: Any) -> str:
        raise WandbProblem("W&B: no key is configured")

    monkeypatch.setattr(wandb_runs, "save_report", refuse)
    line = wandb_sweep.report(found, runs)
    assert "no key is configured" in line
    assert "python -m scripts.compare tracking.sweep=imagenet_lr --wandb-report" in line
    found, options = read_sweep(given)
    assert wandb_sweep.report(found, open_sweep(found, options).expected()) == ""
