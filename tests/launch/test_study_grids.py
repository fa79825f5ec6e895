"""Grids of a study: extended until no best value lies at an edge, and tuned again at points."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from analysis.trials import DECAY, HEADLINE, Trial, TrialResult
from launch.study import StudyPlan, read_study
from launch.study_stages import StudyStages, beyond
from tests.analysis.fake_trials import record, result
from tests.launch.study_plans import PLAN, tried, write_plan


def follow(plan: StudyPlan, value: Callable[[Trial, float], float | None]) -> list[Trial]:
    """All trials, where every run ends at once with the value of its trial and learning rate."""

    def ended(trial: Trial) -> TrialResult:
        options = dict(word.split("=") for word in trial.overrides if word.startswith("optimizer."))
        lr, decay = (float(options.get(f"optimizer.{k}", 0)) for k in ("lr", "weight_decay"))
        found = value(trial, lr)
        if found is None:
            return TrialResult(trial, "a/b-0-s0", "diverged")
        metrics = {trial.metric: found}
        given = record("a/b-0-s0", metrics, lr=lr, weight_decay=decay)
        return TrialResult(trial, "a/b-0-s0", "finished", given)

    return [*StudyStages(plan).known(ended)]


def peaks(**at: float) -> Callable[[Trial, float], float]:
    """Best at a learning rate by optimizer."""
    return lambda trial, lr: 50.0 - abs(math.log10(lr / at[trial.optimizer]))


def test_a_grid_is_extended_until_no_best_value_lies_at_an_edge(tmp_path: Path):
    """SGD's best is 10 times beyond its grid, NovoGrad's in the middle, nearer to the lower end."""
    plan = read_study(path=write_plan(tmp_path, extend=5)).only(["digits"])
    found = tried(follow(plan, peaks(sgd=10.0, novograd=0.009)))
    assert found["sgd"] == [0.01, 0.1, 1.0, 10.0, 100.0]
    assert len(found["novograd"]) == len(found["sgd"])  # as many trials for everyone
    assert found["novograd"] == [0.0001, 0.001, 0.01, 0.1, 1.0] or found["novograd"] == [
        1e-05, 0.0001, 0.001, 0.01, 0.1,
    ]  # fmt: skip
    headline = [t for t in follow(plan, peaks(sgd=10.0, novograd=0.009)) if t.study == HEADLINE]
    assert {t.overrides[3] for t in headline} == {"optimizer.lr=10.0", "optimizer.lr=0.01"}


def test_a_grid_is_extended_by_a_number_of_values_at_most(tmp_path: Path):
    for extend in (0, 2):
        plan = read_study(path=write_plan(tmp_path, extend=extend)).only(["digits"])
        found = tried(follow(plan, peaks(sgd=1e6, novograd=0.01)))
        assert [len(values) for values in found.values()] == [3 + extend] * 2
        assert found["sgd"][-1] == 1.0 * 10**extend


def test_where_everything_diverges_smaller_values_are_tried(tmp_path: Path):
    plan = read_study(path=write_plan(tmp_path, extend=3)).only(["digits"])

    def value(trial: Trial, lr: float) -> float | None:
        return (
            None if trial.optimizer == "sgd" and lr > 0.002 else 50.0 - abs(math.log10(lr / 0.01))
        )

    found = tried(follow(plan, value))
    assert found["sgd"] == [0.0001, 0.001, 0.01, 0.1, 1.0]
    assert len(found["novograd"]) == 5


def test_the_decay_of_the_rates_counts_as_a_value_of_the_decays(tmp_path: Path):
    plan = read_study(path=write_plan(tmp_path, extend=2, decays=[0.1, 10.0])).only(["digits"])
    flat = tried(follow(plan, peaks(sgd=0.1, novograd=0.01)), DECAY)
    assert flat["sgd"][0] < 0.0001 < flat["sgd"][-1]  # equal everywhere: the first is taken
    better = follow(plan, lambda t, lr: peaks(sgd=0.1, novograd=0.01)(t, lr) - (t.study == DECAY))
    assert tried(better, DECAY) == {"sgd": [1e-05, 0.001], "novograd": [0.0002, 0.02]}


def test_next_value_beyond_the_nearer_edge():
    def grid(best: float) -> dict[float, TrialResult]:
        return {x: result(60.0 if x == best else 50.0, at=x) for x in (0.1, 1.0, 10.0, 30.0)}

    assert [beyond(grid(best)) for best in (0.1, 1.0, 10.0, 30.0)] == [0.01, 0.01, 90.0, 90.0]
    assert beyond({x: result(None, at=x) for x in (1.0, 2.0)}) == 0.5


def test_points_are_tuned_again_where_a_study_asks(tmp_path: Path):
    """Three rates around the tuned one, on validation data; all seeds at the best, on test data."""
    passes = {
        "data": {"digits": ["budget='40 steps'"]},
        "points": [
            {"at": at, "overrides": {"digits": [f"init_gain={at}"], "other": ["seed=9"]}}
            for at in (1.0, 10.0)
        ],
        "seeds": [0, 1, 2],
        "rates": [0.1, 1.0, 10.0],
    }
    data = {"digits": PLAN["data"]["digits"] | {"report_split": "test"}}
    plan = read_study(path=write_plan(tmp_path, studies={"passes": passes}, data=data, decays=[]))

    def value(trial: Trial, lr: float) -> float:
        best = 1.0 if "init_gain=10.0" in trial.overrides else 0.1
        return 50.0 - abs(math.log10(lr / best))

    found = follow(plan, value)
    again = [t for t in found if t.study == "passes, tuning"]
    assert len(again) == 2 * 2 * 3
    assert {t.metric for t in again} == {"val/top1"}
    assert {t.series for t in again} == {"at 1", "at 10"}
    assert all("evaluation.final=false" in t.overrides for t in again)
    final = [t for t in found if t.study == "passes"]
    assert len(final) == 2 * 2 * 3
    assert {t.metric for t in final} == {"test/top1"}
    assert {t.metric for t in found if t.study == HEADLINE} == {"test/top1"}
    chosen = {(t.at, next(w for w in t.overrides if "optimizer.lr" in w)) for t in final}
    assert chosen == {(1.0, "optimizer.lr=0.1"), (10.0, "optimizer.lr=1.0")}
    assert all("budget='40 steps'" in t.overrides and "seed=9" not in t.overrides for t in final)
