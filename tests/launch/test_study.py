"""The study's files, the trials that they ask for, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analysis.trials import DECAY, HEADLINE, RATES, Trial, TrialResult, Tuned, read_trials, tune
from engine.config import ConfigProblem
from engine.records import read_records
from launch.compose import compose
from launch.config_files import ROOT
from launch.study import FILE, SHORT, StudyPlan, read_study
from launch.study_stages import StudyStages
from tests.launch.study_plans import write_plan

TUNED = Tuned(0.123, 0.0456)


@pytest.fixture(scope="module")
def plan() -> StudyPlan:
    return read_study()


def missing(trial: Trial) -> TrialResult:
    return TrialResult(trial, "", "missing")


def test_all_four_tasks_on_two_data_sets_each(plan: StudyPlan):
    tasks = [row.task for row in plan.rows.values()]
    rows = {"imagenet": 6, "librispeech": 6, "wmt14": 6, "wikitext103": 6}
    assert {task: tasks.count(task) for task in tasks} == rows


def test_every_optimizer_has_as_many_tuning_trials_over_a_decade_or_two(plan: StudyPlan):
    expected = [*StudyStages(plan).expected(missing)]
    for data, options in plan.data.items():
        assert "novograd" in options.rows
        tuning = [t for t in expected if t.data == data and t.study in (RATES, DECAY)]
        assert len({sum(t.optimizer == name for t in tuning) for name in options.rows}) == 1
        assert options.rates == sorted(set(options.rates))
        span = 100.0 if options.small_data == "own" else 10.0
        assert options.rates[-1] / options.rates[0] >= 0.99 * span


def test_all_runs_compose(plan: StudyPlan):
    composed = set()
    for trial in StudyStages(plan).expected(missing):
        assert f"seed={trial.seed}" in trial.overrides
        others = [o for o in trial.overrides if not o.startswith(("seed=", "optimizer.lr="))]
        if (kind := (trial.study, *others)) in composed:
            continue  # the same but for the seed or the learning rate
        composed.add(kind)
        raw = compose(list(trial.overrides))
        assert raw["scale"] == "mini"
        tunes = trial.study in (RATES, DECAY) or trial.study.endswith(", tuning")
        assert raw["evaluation"]["final"] != tunes  # tuning does not see test data
        split = trial.metric.partition("/")[0]
        assert tunes == (split in ("val", "valid", "dev-clean"))
        if trial.study == RATES:
            assert raw["optimizer"]["lr"] == trial.at


def points(plan: StudyPlan, study: str) -> dict[float, dict[str, Any]]:
    """The points of NovoGrad on CIFAR-10 by position, the first series."""
    found: dict[float, dict[str, Any]] = {}
    for point in plan.studies[study].points:
        values = point.scaled("novograd", TUNED)
        for trial in plan.point_trials(study, point, "cifar10", "novograd", values):
            found.setdefault(trial.at, compose(list(trial.overrides)))
    return found


def test_points_are_relative_to_what_tuning_found(plan: StudyPlan):
    batches = points(plan, "large_batch")
    assert [one["batch"]["global_size"] for one in batches.values()] == [16, 128, 512]
    # Table 3: 0.007, 0.016 and 0.026; 0.002, 0.006 and 0.01.
    rates = [one["optimizer"]["lr"] / 0.123 for one in batches.values()]
    assert rates == pytest.approx([1, 16 / 7, 26 / 7], rel=0.01)
    decays = [one["optimizer"]["weight_decay"] / 0.0456 for one in batches.values()]
    assert decays == pytest.approx([1, 3, 5], rel=0.01)
    budgets = [float(one["budget"].split()[0]) for one in points(plan, "longer_training").values()]
    assert budgets == pytest.approx([budgets[0], 2 * budgets[0], 3 * budgets[0]])
    assert {one["lr_per_tensor"] for one in points(plan, "tensor_sizes").values()} == {"sqrt_size"}


def test_overrides_of_every_run():
    trial = read_study(["scale=smoke", "tracking=off"]).rate_trial("cifar10", "sgd", 0.1)
    assert trial.overrides[-2:] == ("scale=smoke", "tracking=off")
    assert "scale=mini" not in trial.overrides


def test_points_of_some_data_sets_only(plan: StudyPlan):
    """Few passes at as many steps need more data than some sets have."""
    trials = [t for t in StudyStages(plan).expected(missing) if t.study == "passes"]
    asked = {data: sorted({t.at for t in trials if t.data == data}) for data in plan.data}
    asked = {data: points for data, points in asked.items() if points}
    assert asked == {
        "cifar10": [1.5, 3, 10, 30, 100],
        "small-wiki": [1.5, 3, 10, 30, 100],
        "many-commands": [8, 30, 60, 100],
        "program-messages": [30, 60, 100],
        "multi30k": [3, 10, 30, 60],
    }


@pytest.mark.parametrize("file", [FILE, SHORT], ids=lambda file: file.stem)
def test_published_trials_are_those_of_the_file(file: Path):
    """And the scale's rows have what tuning found, where it and the headline are published."""
    plan = read_study(path=file)
    records = {one.run_id: one for one in read_records(ROOT / "results" / "runs")}
    published = read_trials(ROOT / "results" / "studies" / file.stem / "trials.csv", records)
    by_trial = {one.trial: one for one in published}
    known = {*StudyStages(plan).known(lambda trial: by_trial.get(trial, missing(trial)))}
    assert set(by_trial) <= known
    unfinished = {t.data for t in known - set(by_trial) if t.study in (RATES, DECAY, HEADLINE)}
    tuned = tune(published)
    for (data, optimizer), row in plan.rows.items():
        if data not in unfinished and plan.data[data].small_data == "own":
            raw = compose([f"experiment={row.experiment}", f"scale={plan.scale}"])["optimizer"]
            assert Tuned(raw["lr"], raw.get("weight_decay")) == tuned[data, optimizer]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seeds": "all"}, r"study.yaml: seeds must be a list"),
        ({"sets": []}, "sets is not a known key"),
        ({"studies": {"sleep": {"data": {}, "points": []}}}, "no study has this name"),
        ({"studies": {"headline": {"data": {}, "points": []}}}, "no study has this name"),
        ({"studies": {"beta2": {"data": {"mnist": []}, "points": []}}}, "mnist is not a data set"),
        ({"studies": {"beta2": {"data": {}, "points": [{"on": 1}]}}}, "on is not a known key"),
        (
            {"studies": {"beta2": {"data": {}, "points": [], "optimizers": {"mnist": ["sgd"]}}}},
            "beta2.optimizers: mnist is not a data set of the study",
        ),
        (
            {"studies": {"beta2": {"data": {}, "points": [], "optimizers": {"digits": ["lamb"]}}}},
            "beta2.optimizers.digits: must be a list of novograd, sgd",
        ),
        ({"data": {"x": {"rows": {"sgd": {"experiment": "a"}}}}}, "x.rows.sgd.lr is missing"),
        ({"data": {"x": {"rows": {}, "small_data": "mnist"}}}, "small_data=mnist does not exist"),
        (
            {"data": {"x": {"rows": {n: {"experiment": "a", "lr": 1} | d for n, d in
             (("sgd", {}), ("adam", {"weight_decay": 0.1}))}}}},
            "x.rows: tune weight_decay of all optimizers or of none",
        ),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused(change: dict[str, Any], message: str, tmp_path: Path):
    with pytest.raises(ConfigProblem, match=message):
        read_study(path=write_plan(tmp_path, **{"studies": {}} | change))


# --- Stages ---
