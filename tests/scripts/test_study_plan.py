"""configs/study.yaml: everyone has as many trials, and all runs can be composed."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from engine.config import ConfigProblem
from results.findings import TRIALS
from results.trials import HEADLINE, Tuned, read_trials, tune
from scripts.launch import compose
from scripts.study_plan import FILE, StudyPlan, read_plan

TUNED = Tuned(0.123, 0.0456, 7)


@pytest.fixture(scope="module")
def plan() -> StudyPlan:
    return read_plan()


def test_every_optimizer_has_as_many_trials(plan: StudyPlan):
    for data, options in plan.data.items():
        counts = {
            len([*plan.rates(data, name), *plan.decays(data, name, TUNED)]) for name in options.rows
        }
        assert len(counts) == 1
        assert "novograd" in options.rows
        rates = [trial.at for trial in plan.rates(data, "novograd")]
        assert rates == sorted(set(rates))
        span = 100.0 if options.small_data == "own" else 10.0
        assert rates[-1] / rates[0] >= 0.99 * span
    tasks = {
        plan.rows[data, "novograd"].experiment.split("/")[0]
        for data in plan.data
        if len(plan.data[data].rates) == 7
    }
    assert len(tasks) >= 2


def test_all_four_tasks_on_two_data_sets_each(plan: StudyPlan):
    tasks = [next(iter(plan.rows[d, o].experiment.split("/"))) for d, o in plan.rows]
    assert {task: tasks.count(task) for task in tasks} == dict.fromkeys(
        ("imagenet", "librispeech", "wmt14", "wikitext103"), 6
    )


def test_all_runs_compose(plan: StudyPlan):
    for data, optimizer in plan.rows:
        for trial in plan.others(data, optimizer, TUNED):
            raw = compose(list(trial.words))
            assert raw["scale"] == "mini"
            assert raw["evaluation"]["final"]
            assert raw["seed"] == trial.seed
            if trial.study == HEADLINE:
                assert raw["optimizer"]["lr"] == 0.123
        for trial in plan.rates(data, optimizer):
            raw = compose(list(trial.words))
            assert raw["optimizer"]["lr"] == trial.at
            assert not raw["evaluation"]["final"]


def test_points_are_relative_to_what_tuning_found(plan: StudyPlan):
    others = [*plan.others("cifar10", "novograd", TUNED)]
    batches = {t.at: compose(list(t.words)) for t in others if t.study == "large_batch"}
    sizes = [batches[at]["batch"]["global_size"] for at in (1.0, 8.0, 32.0)]
    assert sizes == [64, 512, 2048]
    # Table 3: 0.007, 0.016 and 0.026; 0.002, 0.006 and 0.01.
    rates = [batches[at]["optimizer"]["lr"] for at in (1.0, 8.0, 32.0)]
    assert rates == [
        0.123,
        pytest.approx(0.123 * 16 / 7, rel=0.01),
        pytest.approx(0.123 * 26 / 7, rel=0.01),
    ]
    decays = [batches[at]["optimizer"]["weight_decay"] for at in (1.0, 8.0, 32.0)]
    assert decays == [
        0.0456,
        pytest.approx(0.0456 * 3, rel=0.01),
        pytest.approx(0.0456 * 5, rel=0.01),
    ]
    longer = {
        t.at: compose(list(t.words))["budget"] for t in others if t.study == "longer_training"
    }
    amounts = [float(str(longer[at]).split()[0]) for at in (1.0, 2.0, 3.0)]
    assert amounts == pytest.approx([amounts[0], 2 * amounts[0], 3 * amounts[0]])


def test_words_for_every_run():
    trial = next(read_plan(["scale=smoke", "tracking=off"]).rates("cifar10", "sgd"))
    assert trial.words[-2:] == ("scale=smoke", "tracking=off")
    assert "scale=mini" not in trial.words


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seeds": "all"}, r"study.yaml: seeds must be a list"),
        ({"sets": []}, "sets is not a known key"),
        ({"studies": {"sleep": {"data": {}, "points": []}}}, "no study has this name"),
        ({"studies": {"beta2": {"data": {"mnist": []}, "points": []}}}, "mnist is no data set"),
        ({"studies": {"beta2": {"data": {}, "points": [{"on": 1}]}}}, "on is not a known key"),
        ({"data": {"x": {"rows": {"sgd": {"experiment": "a"}}}}}, "x.rows.sgd.lr is missing"),
        ({"data": {"x": {"rows": {}, "small_data": "mnist"}}}, "small_data=mnist does not exist"),
    ],
)
def test_a_wrong_file_is_refused(change: dict[str, object], message: str, tmp_path: Path):
    raw = yaml.safe_load(FILE.read_text()) | {"studies": {}}
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(raw | change))
    with pytest.raises(ConfigProblem, match=message):
        read_plan(path=tmp_path / "study.yaml")


def test_the_mini_rows_have_what_tuning_found(plan: StudyPlan):
    """So the demo and the report's column of small data show tuned optimizers."""
    tuned = tune(read_trials(TRIALS))
    for (data, optimizer), row in plan.rows.items():
        if plan.data[data].small_data != "own" or (data, optimizer) not in tuned:
            continue
        found = tuned[data, optimizer]
        raw = compose([f"experiment={row.experiment}", "scale=mini"])["optimizer"]
        assert (data, optimizer, raw["lr"], raw.get("weight_decay")) == (
            data,
            optimizer,
            found.lr,
            found.weight_decay,
        )
