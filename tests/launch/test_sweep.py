"""Sweeps: their files, their trials, their runs on slots."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from analysis.paper import rows_of
from engine.config import NOT_SCIENCE, SCALES, ConfigProblem, read_config
from engine.plan import make_plan
from engine.provenance import fingerprint
from engine.records import read_record
from launch import sweep_state
from launch.compose import CONFIGS, compose, multirun_values
from launch.run_spec import make_run_spec
from launch.scheduler import Job
from launch.search import open_sweep, random_trials
from launch.sweep import Range, override_of, read_sweep, sweep_files
from scripts import sweep
from tasks.base import DataProblem
from tasks.catalog import TASKS, task_class
from tests.launch.sweeping import STEPS, began, give_orders

SWEEPS = sweep_files()
NOVOGRAD = "experiment=imagenet/novograd_100ep"
SEVEN = [0.1, 0.215443, 0.464159, 1.0, 2.15443, 4.64159, 10.0]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


def command(folder: Path, data: Path, *more: str) -> list[str]:
    """Four runs: two learning rates with two seeds."""
    base = ["scale=smoke", "hardware=cpu", f"paths.data={data}", "jobs=2", NOVOGRAD]
    return [*base, f"paths.outputs={folder / 'outputs'}", "multiply.lr=0.1,1", "seed=0,1", *more]


def jobs_of(arguments: list[str]) -> list[Job]:
    """Of all trials, also where several are the same run."""
    state = open_sweep(*read_sweep(arguments))
    return [state._start(trial) for trial in state.known()]


def results_of(folder: Path) -> dict[str, Any]:
    (path,) = folder.glob("outputs/sweeps/by_hand/*/results.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


# The files.


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", SWEEPS)
def test_every_sweep_composes_at_every_scale(name, scale, data):
    """Each experiment of it at both ends of all axes."""
    found, _ = read_sweep([f"sweep={name}", f"scale={scale}", "hardware=cpu", f"paths.data={data}"])
    assert random_trials(found) if found.search == "random" else found.grid_trials()
    runs = set()
    for end in (0, -1):
        axes = {k: a.at(-end) if isinstance(a, Range) else a[end] for k, a in found.axes.items()}
        for experiment in found.experiments:
            trial = found.trial({"experiment": experiment} | axes)
            runs.add(fingerprint_of(list(trial.overrides), need_data=scale == "smoke"))
    assert len(runs) == len(found.experiments) * (2 if found.axes else 1)


def fingerprint_of(arguments: list[str], *, need_data: bool) -> str:
    """Of a run that can be planned, as far as that is known without data."""
    try:
        return make_run_spec(arguments, need_data=need_data).fingerprint
    except DataProblem:
        config = read_config(compose(arguments))
        assert make_plan(config, task_class(config.task.name).unit, 50, 1).steps > 0
        return fingerprint(asdict(config), NOT_SCIENCE)


@pytest.mark.parametrize("path", sorted((CONFIGS / "sweep").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_file_names_a_command(path):
    lines = path.read_text().splitlines()
    head = [line for line in lines if line.startswith("#")]
    command, name, *_ = head[-1].removeprefix("#   make ").replace("SWEEP=", "").split()
    assert command == "sweep"
    assert name in SWEEPS
    assert name.endswith(path.stem)
    assert len(head) > 1
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("task", TASKS)
def test_learning_rates_are_factors_over_two_decades(task):
    found, _ = read_sweep([f"sweep={task}_lr", "scale=paper"])
    assert found.axes == {"multiply.lr": SEVEN}
    steps = [b / a for a, b in pairwise(SEVEN)]
    assert steps == pytest.approx([10 ** (1 / 3)] * 6, rel=1e-5)
    assert len(found.experiments) == 3
    decays, _ = read_sweep([f"sweep={task}_lr_wd", "scale=paper"])
    assert decays.axes["multiply.lr"] == SEVEN
    assert len(decays.axes) == 2


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("scale", SCALES)
def test_a_factor_of_one_is_the_experiment_itself(task, scale):
    """A scale's own factor would be replaced by the sweep's: it must be in multiply.lr_of."""
    found, _ = read_sweep([f"sweep={task}_lr", "scale=paper"])
    for experiment in found.experiments:
        plain = [f"experiment={experiment}", f"scale={scale}", "hardware=cpu"]
        factors = ["multiply.lr=1", "multiply.weight_decay=1"]
        assert compose([*plain, *factors]) == compose(plain)


def test_batches_are_scaled_with_the_papers_pairs():
    """The rows of the large-batch tables, all of them."""
    for task, tables in (("imagenet", {3}), ("librispeech", {5})):
        found, _ = read_sweep([f"sweep={task}_batch", "scale=paper"])
        assert {row.experiment for row in rows_of(task, tables)} - {None} <= set(found.experiments)


# The command line.


def test_overrides_are_read_as_in_hydras_multirun():
    assert multirun_values("seed=0,1,2") == ("seed", [0, 1, 2])
    assert multirun_values("optimizer.lr=choice(0.1,1e-3)") == ("optimizer.lr", [0.1, 1e-3])
    assert multirun_values("seed=range(1,4)") == ("seed", [1, 2, 3])
    assert multirun_values("budget='1 epochs','2 epochs'") == ("budget", ["1 epochs", "2 epochs"])
    betas = multirun_values("optimizer.betas=[0.9,0.1],[0.9,0]")
    assert betas == ("optimizer.betas", [[0.9, 0.1], [0.9, 0]])
    assert multirun_values("seed=3") == ("seed", [3])
    assert multirun_values("~gradient.larc") == ("~gradient.larc", [])
    assert multirun_values("seed=range(3)") == ("seed", [0, 1, 2])
    assert multirun_values("seed=shuffle(range(3))") == ("seed", [0, 1, 2])  # in one order
    assert multirun_values("experiment=glob(wmt14/*,exclude=*/variant/*)") == (
        "experiment",
        ["wmt14/adam", "wmt14/adamw", "wmt14/novograd"],
    )
    assert multirun_values("multiply.lr=interval(0,1)") == ("multiply.lr", "uniform(0.0, 1.0)")
    logarithmic = multirun_values("multiply.lr=tag(log,interval(0.1,10))")
    assert logarithmic == ("multiply.lr", "log(0.1, 10.0)")
    with pytest.raises(ConfigProblem, match="matches nothing"):
        multirun_values("experiment=glob(nothing*)")
    with pytest.raises(ConfigProblem, match="seed is no config group"):
        multirun_values("seed=glob(*)")
    for override in ("seed", "seed=1 2="):
        with pytest.raises(ConfigProblem, match="can't be read"):
            multirun_values(override)


@pytest.mark.parametrize(
    "value",
    [None, True, 3, 0.1, 1e-8, 1e30, "plain", "5 %", "true", "it's", "a\\'b", "1e3", "", "a=b,c",
     [0.95, 0.0], ["5 epochs", "7 epochs"], {"a": 1, "b": [2.5, "x y"]}],
)  # fmt: skip
def test_a_value_survives_an_override(value):
    assert multirun_values(override_of("key", value)) == ("key", [value])


def test_lists_on_the_command_line_multiply_and_replace():
    base = ["sweep=imagenet_lr", "scale=smoke"]
    found, options = read_sweep([*base, "seed=0,1", "gpus_per_run=2", "hardware=dgx1"])
    assert found.axes == {"multiply.lr": SEVEN, "seed": [0, 1]}
    assert found.overrides == ["scale=smoke", "hardware=dgx1"]
    assert len(found.grid_trials()) == 3 * 7 * 2
    assert options.gpus_per_run == 2
    found, _ = read_sweep([*base, "multiply.lr=1", NOVOGRAD])
    assert found.axes == {"multiply.lr": [1]}
    (trial,) = found.grid_trials()
    assert trial.overrides == (NOVOGRAD, "multiply.lr=1", "scale=smoke")
    assert (trial.at, trial.metric) == (1.0, "val/top1")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["sweep=imagenet_rl"], "sweep=imagenet_rl does not exist; did you mean 'imagenet_lr'"),
        (["seed=0,1"], "set sweep=… or experiment=…"),
        (["experiment=imagenet/novograd"], "does not exist; did you mean"),
        ([NOVOGRAD, "gpus_per_run=two"], "gpus_per_run must be an integer, not 'two'"),
        ([NOVOGRAD, "gpus_per_run=0"], "gpus_per_run must be at least 1"),
        ([NOVOGRAD, "jobs=0"], "jobs must be at least 1"),
        ([NOVOGRAD, "jobs={"], "'jobs={' can't be read: write key=value"),
        ([NOVOGRAD, "seed=0,0"], "has a value twice"),
        ([NOVOGRAD, "group_by=lr"], "lr is not an axis of this sweep"),
        ([NOVOGRAD, "multiply.lr=log(0.1,10)"], "set search=random or search=optuna"),
        ([NOVOGRAD, "multiply.lr=interval(0.1,10)"], "set search=random or search=optuna"),
        (["experiment=qqq"], "does not exist; there are imagenet/ (12: adamw_100ep,"),
        ([NOVOGRAD, "search=grids"], "search=grids must be one of"),
        ([NOVOGRAD, "search=random"], "has no axis to draw from"),
        ([NOVOGRAD, "search=random", "seed=0,1"], "a seed can't be searched for"),
        ([NOVOGRAD, "search=random", "multiply.lr=log(0,1)"], "must start above 0"),
        ([NOVOGRAD, "search=random", "multiply.lr=log(2,1)"], "must go from a lower"),
        ([NOVOGRAD, "optimizer.lr=-1,-2"], "not -2"),
        ([NOVOGRAD, "gpus_per_run=3"], "do not divide among 3 processes"),
        ([NOVOGRAD, "metric=vall/top1"], "vall is not evaluated; did you mean 'val'"),
        ([NOVOGRAD, "metric=val/speed"], "val/speed: unknown metric"),
    ],
)
def test_a_wrong_command_line_is_one_message(arguments, complaint, tmp_path, capsys):
    paths = [f"paths.{name}={tmp_path / name}" for name in ("outputs", "data")]
    assert sweep.main([*arguments, "scale=smoke", "hardware=cpu", *paths]) == 2
    output = capsys.readouterr()
    assert complaint in output.err
    assert not (tmp_path / "outputs").exists()


# Runs; all launchers but the last one are fake.


def test_failures_are_gone_past_and_a_second_call_runs_what_is_missing(
    tmp_path, data, monkeypatch, capsys
):
    arguments = command(tmp_path, data)
    special = {"lr=0.1 seed=1": {"do": "fail"}, "lr=1 seed=0": {"do": "diverge"}}
    jobs = jobs_of(arguments)
    give_orders(monkeypatch, tmp_path, jobs, special)
    assert sweep.main(arguments) == 1
    output = capsys.readouterr()
    assert "runs       4, 0 done, 4 to do" in output.out
    assert "slots      2 × 1 cpu" in output.out
    assert "imagenet/novograd_100ep multiply.lr=0.1 seed=1: failed; see" in output.err
    assert len(output.err.splitlines()) == 1
    log = Path(output.err.strip().partition("see ")[2])
    assert "a failure that was ordered" in log.read_text()
    found = results_of(tmp_path)
    places = [(run["axes"]["multiply.lr"], run["axes"]["seed"]) for run in found["runs"]]
    status = dict(zip(places, (run["status"] for run in found["runs"]), strict=True))
    assert status == {
        (0.1, 0): "finished",
        (0.1, 1): "failed",
        (1, 0): "diverged",
        (1, 1): "finished",
    }

    assert len(began(tmp_path)) == 4
    give_orders(monkeypatch, tmp_path, jobs)
    assert sweep.main(arguments) == 0
    assert "runs       4, 3 done, 1 to do" in capsys.readouterr().out
    assert began(tmp_path)[4:] == [jobs[1].spec.run_id]
    (group,) = results_of(tmp_path)["groups"]
    summary = [group[key] for key in ("best", "at", "seeds", "diverged", "missing")]
    assert summary == [1.5 + STEPS, {"multiply.lr": 0.1}, 2, 1, 0]
    assert sweep.main(arguments) == 0
    assert "runs       4, 4 done, 0 to do" in capsys.readouterr().out
    assert len(began(tmp_path)) == 5


def test_a_stop_signal_saves_all_and_the_same_command_resumes(tmp_path, data, monkeypatch):
    slow = {"seed": {"seconds": 0.5, "steps": 50}}
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    for folder in (undisturbed, disturbed):
        folder.mkdir()
        arguments = command(folder, data)
        give_orders(monkeypatch, folder, jobs_of(arguments), slow)
        if folder is disturbed:
            asking = threading.Thread(target=_terminate_when_two_run, args=(folder,))
            asking.start()
            assert sweep.main(arguments) == 75
            asking.join()
            assert {run["status"] for run in results_of(folder)["runs"]} == {"missing"}
            states = [int(path.read_text()) for path in folder.rglob("state")]
            assert len(states) == 2
            assert all(0 < state < 50 for state in states)
        assert sweep.main(arguments) == 0
    assert results_of(disturbed) == results_of(undisturbed)
    assert len(began(disturbed)) == 6


def _terminate_when_two_run(folder: Path) -> None:
    while len(began(folder)) < 2:
        time.sleep(0.02)
    time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGTERM)


def test_points_that_are_the_same_run_are_run_once(tmp_path, data, monkeypatch, capsys):
    """The user's own learning rate stands, whatever the factor."""
    arguments = command(tmp_path, data, "optimizer.lr=0.01")
    give_orders(monkeypatch, tmp_path, jobs_of(arguments))
    assert sweep.main(arguments) == 0
    assert "runs       2, 0 done, 2 to do" in capsys.readouterr().out
    assert len(began(tmp_path)) == 2
    assert [run["status"] for run in results_of(tmp_path)["runs"]] == ["finished"] * 4


def test_a_plan_is_shown_and_nothing_runs(tmp_path, monkeypatch, capsys):
    """Also of a machine that is not here: eight V100s as four slots."""
    monkeypatch.setattr(sweep_state, "run_jobs", None)
    arguments = ["sweep=imagenet_lr", "scale=paper", "hardware=dgx1", "gpus_per_run=2"]
    paths = [f"paths.{name}={tmp_path / name}" for name in ("outputs", "data")]
    assert sweep.main([*arguments, *paths, "plan_only=true"]) == 0
    output = capsys.readouterr().out
    assert "imagenet_lr at scale paper: 3 experiments × 7 multiply.lr" in output
    assert "runs       21, 0 done, 21 to do" in output
    assert "slots      4 × 2 cuda" in output
    assert "GPU 0,1, GPU 2,3, GPU 4,5, GPU 6,7" in output
    assert "if hardware.tflops are sustained" in output
    assert not list(tmp_path.iterdir())


def test_a_real_sweep_of_two_runs(tmp_path, data, capfd):
    """One finishes, one diverges, and both are results."""
    paths = [f"paths.outputs={tmp_path / 'outputs'}"]
    few = ["scale=smoke", "hardware=cpu", f"paths.data={data}", "budget='4 steps'"]
    arguments = [NOVOGRAD, "optimizer.lr=0.01,1e30", "jobs=2", *few, *paths]
    assert sweep.main(arguments) == 0
    output = capfd.readouterr().out
    assert "multiply" not in output
    assert "optimizer.lr=1e+30: diverged after" in output
    good, bad = results_of(tmp_path)["runs"]
    record = read_record(tmp_path / "outputs" / good["run_id"] / "record.json")
    assert [good[key] for key in ("run_id", "status", "lr")] == [record.run_id, "finished", 0.01]
    assert good["final"] == record.final["val/top1"]
    assert record.config["hardware"]["processes"] == 1
    assert (bad["status"], bad["final"]) == ("diverged", None)
    (table,) = tmp_path.glob("outputs/sweeps/by_hand/*/results.csv")
    assert len(table.read_text().splitlines()) == 3
    assert sweep.main(arguments) == 0
    assert "2 done, 0 to do" in capfd.readouterr().out
