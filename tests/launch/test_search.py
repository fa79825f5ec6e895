"""Searches: points from ranges, on the same slots, with the same records."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from engine.config import ConfigProblem
from launch import search, sweep_state
from launch.scheduler import Job
from launch.search import OptunaSearch, random_trials
from launch.sweep import Range, Sweep, read_sweep
from scripts import sweep
from tests.analysis.fake_trials import result
from tests.launch.instant_runs import InstantRuns

EXPERIMENTS = ["imagenet/sgd_100ep", "imagenet/novograd_100ep"]
RANGES = {"multiply.lr": Range(0.1, 10.0, True), "init_gain": Range(0.5, 2.0, False)}


def make_sweep(kind: str, trials: int, **changes: Any) -> Sweep:
    given = {"experiments": EXPERIMENTS, "axes": RANGES, "overrides": ["scale=smoke"]} | changes
    own = {"group_by": ["experiment"], "along": None, "metric": "val/top1"}
    return Sweep(name="made_up", search=kind, trials=trials, **given | own)


def test_random_trials_are_the_same_for_all_and_stay_when_more_are_wanted():
    few, many = (random_trials(make_sweep("random", trials)) for trials in (10, 100))
    assert (len(few), len(many)) == (20, 200)
    sgd, novograd = few[:10], few[10:]
    assert [p.axes["multiply.lr"] for p in sgd] == [p.axes["multiply.lr"] for p in novograd]
    assert sgd == many[:10]
    rates = [math.log10(p.axes["multiply.lr"]) for p in many]
    assert -1 <= min(rates) < -0.8
    assert 0.8 < max(rates) <= 1
    assert abs(sum(rates) / len(rates)) < 0.15
    assert all(0.5 <= p.axes["init_gain"] <= 2.0 for p in many)
    assert sgd[0].overrides[0] == "experiment=imagenet/sgd_100ep"


def test_a_space_with_few_points_is_no_endless_search():
    axes = {"multiply.lr": [1.0, 2.0]}
    points = random_trials(make_sweep("random", 10, axes=axes, experiments=EXPERIMENTS[:1]))
    assert sorted(p.axes["multiply.lr"] for p in points) == [1.0, 2.0]


def test_ranges_are_read():
    arguments = ["experiment=imagenet/novograd_100ep", "scale=smoke", "search=random", "trials=3"]
    found, _ = read_sweep([*arguments, "multiply.lr=log(0.1,10)", "init_gain=uniform(0.5, 2)"])
    assert found.axes == RANGES
    assert (found.search, found.trials, found.along) == ("random", 3, "multiply.lr")


def test_without_optuna_there_is_a_message(monkeypatch):
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(search.importlib, "import_module", missing)
    with pytest.raises(ConfigProblem, match="pip install optuna, or use search=random"):
        search.load_optuna()


def test_an_optuna_study_resumes_after_a_kill(tmp_path):
    pytest.importorskip("optuna")
    sweep = make_sweep("optuna", 6, experiments=EXPERIMENTS[:1])
    file = tmp_path / "optuna.db"
    first = OptunaSearch(sweep, file, "mark")
    asked = [first.ask() for _ in range(3)]
    assert asked[0]
    assert asked[1]
    first.tell(asked[0], result(70.0))
    first.tell(asked[1], result(None))  # diverged; the third runs when the search is killed

    second = OptunaSearch(sweep, file, "mark")
    assert [trial.axes for trial in second.known(lambda _: result(None))] == [
        t.axes for t in asked[:2] if t
    ]
    asked_again = []
    while (trial := second.ask()) is not None:
        asked_again.append(trial)
        second.tell(trial, result(60.0))
    assert asked_again[0].axes == asked[2].axes if asked[2] else False
    assert len(asked_again) == 4
    assert len({trial.overrides for trial in [*asked_again, *asked] if trial}) == 6
    assert OptunaSearch(sweep, file, "mark").ask() is None
    assert not list(OptunaSearch(sweep, file, "other").known(lambda _: result(None)))


def test_a_repeated_point_is_asked_for_again(tmp_path):
    pytest.importorskip("optuna")
    axes = {"multiply.lr": [1.0]}
    search = OptunaSearch(make_sweep("optuna", 1, axes=axes), tmp_path / "optuna.db", "mark")
    trial = search.ask()
    assert trial
    search.tell(trial, None)
    assert not list(search.known(lambda _: result(None)))
    again = search.ask()
    assert again
    assert again.overrides != trial.overrides  # that of the other experiment: they take turns


def best_near(job: Job) -> dict[str, float] | int:
    """Best at a rate of 0.007; diverges above 0.03."""
    away = math.log10(job.spec.config.optimizer["lr"] / 0.007)
    return 5 if away > 0.6 else {"val/top1": 80 - 10 * away**2}


@pytest.mark.parametrize("kind", ["random", "optuna"])
def test_a_search_that_is_stopped_resumes(kind, tmp_path, monkeypatch, capsys):
    if kind == "optuna":
        pytest.importorskip("optuna")
    given = ["experiment=imagenet/novograd_100ep", "multiply.lr=log(0.1,10)", f"search={kind}"]
    given += [f"paths.{name}={tmp_path / name}" for name in ("outputs", "data")]
    given += ["trials=4", "scale=smoke", "hardware=cpu"]

    def run(most: int | None = None) -> tuple[int, InstantRuns]:
        runs = InstantRuns(best_near, most)
        monkeypatch.setattr(sweep_state, "run_jobs", runs)
        return sweep.main(given), runs

    status, first = run(most=2)
    assert status == 75
    assert "4 trials, " + kind in capsys.readouterr().out
    status, second = run()
    assert status == 0
    assert "runs       4, 2 done, 2 to do" in capsys.readouterr().out
    assert len({*first.run_ids, *second.run_ids}) == 4
    (path,) = tmp_path.glob("outputs/sweeps/by_hand/*/results.json")
    runs = json.loads(path.read_text())["runs"]
    assert {one["run_id"] for one in runs} == {*first.run_ids, *second.run_ids}
    assert all(one["status"] in ("finished", "diverged") for one in runs)
    assert (path.parents[1] / "optuna.db").exists() == (kind == "optuna")
    status, third = run()
    assert (status, third.jobs) == (0, [])
