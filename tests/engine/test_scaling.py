"""What a smaller scale makes of the paper's numbers."""

from __future__ import annotations

import pytest

from engine.config import ConfigProblem, read_config
from engine.plan import Plan, make_plan
from engine.scaling import Multiply, multiply
from launch.compose import compose

IMAGES = {"paper": 1_281_167, "mini": 520, "short": 50_000}


def recipe(**changes):
    raw = {
        "budget": "90 epochs",
        "batch": {"global_size": 8192, "micro": 128},
        "optimizer": {"name": "sgd", "lr": 0.4, "weight_decay": 1e-4},
        "schedule": {"warmup": "500 steps", "milestones": ["30 epochs", "5 %"]},
        "evaluation": {"every": "1 epochs"},
    }
    return raw | changes


def test_every_number_has_its_factor():
    raw = recipe()
    problems: list[str] = []
    by = Multiply(epochs=0.1, steps=0.01, batch=0.125, lr=2.0, weight_decay=10.0)
    multiply(raw, by, problems)
    assert problems == []
    assert raw == recipe(
        budget="9 epochs",
        batch={"global_size": 1024, "micro": 128},
        optimizer={"name": "sgd", "lr": 0.8, "weight_decay": 1e-3},
        schedule={"warmup": "5 steps", "milestones": ["3 epochs", "5 %"]},
    )


def test_one_changes_nothing_and_nonsense_is_left_to_the_reader():
    for raw in (recipe(), recipe(budget="soon", optimizer={"lr": "much"}, schedule=7, batch=None)):
        before = repr(raw)
        problems: list[str] = []
        multiply(raw, Multiply(), problems)
        assert (repr(raw), problems) == (before, [])
    raw = recipe(budget=100, schedule={"warmup": None})
    multiply(raw, Multiply(0.5, 0.5, 0.5, 0.5, 0.5), [])
    assert (raw["budget"], raw["schedule"]) == (100, {"warmup": None})


def test_a_batch_stays_whole():
    problems: list[str] = []
    multiply(recipe(), Multiply(batch=1 / 3), problems)
    assert problems == ["multiply.batch=0.333333 makes no whole batch of 8192: 2730.67"]


def plan_of(experiment: str, scale: str, *overrides: str) -> Plan:
    config = read_config(compose([f"experiment={experiment}", f"scale={scale}", *overrides]))
    return make_plan(config, "image", IMAGES[scale] // config.batch.global_size, 1)


@pytest.mark.parametrize("scale", ["mini", "short"])
def test_small_rows_keep_the_papers_ratios(scale):
    names = [f"imagenet/{n}" for n in imagenet_rows()]
    paper = {name: plan_of(name, "paper") for name in names}
    small = {name: plan_of(name, scale) for name in names}
    first = "imagenet/novograd_100ep"
    for name in names:
        batches = [plans[name].global_batch / plans[first].global_batch for plans in (paper, small)]
        assert batches[0] == batches[1]
        # The same share of the longest run, but for the rest of each epoch that makes no whole
        # batch, and for half a step at the end.
        epochs = paper[name].epochs / paper[first].epochs * small[first].epochs
        exact = epochs * IMAGES[scale] / small[name].global_batch
        assert exact - epochs - 0.5 <= small[name].steps <= exact + 0.5, name
        share = paper[name].warmup / paper[name].steps
        # To half a step: small runs with large batches have few.
        assert abs(small[name].warmup - share * small[name].steps) <= 0.8
        # Rates by one factor for each optimizer.
        base = f"imagenet/{name.split('/')[1].split('_')[0]}_100ep"
        rates = [plans[name].schedule.lr / plans[base].schedule.lr for plans in (paper, small)]
        assert rates[0] == pytest.approx(rates[1], rel=1e-9)


def imagenet_rows() -> list[str]:
    table1 = ["sgd_100ep", "sgd_200ep", "adamw_100ep", "adamw_200ep"]
    table1 += [f"novograd_{n}ep" for n in (100, 200, 300)]
    large = ["1k", "8k", "32k"]
    return table1 + [f"novograd_{b}_90ep" for b in large] + ["novograd_32k_90ep_warmup"]


def test_the_users_own_values_are_not_multiplied():
    name = "imagenet/novograd_100ep"
    assert plan_of(name, "short", "budget='7 steps'", "batch.global_size=128").steps == 7
    assert plan_of(name, "short", "multiply.epochs=0.06").steps == 6 * 781


@pytest.mark.parametrize("override", ["multiply.epoch=1", "multiply.batch=many", "multiply=3"])
def test_bad_factors_are_named(override):
    with pytest.raises(ConfigProblem, match="multiply"):
        compose(["experiment=imagenet/novograd_100ep", "scale=mini", override])


def test_optimizers_may_have_rates_of_their_own():
    raw, problems = recipe(), list[str]()
    raw["optimizer"]["name"] = "adam"
    before = raw["optimizer"]["lr"]
    rates = {"adam": {"paper": 0.1, "here": 0.3}, "sgd": {"paper": 1.0, "here": 5.0}}
    multiply(raw, Multiply(lr=2.0, lr_of=rates), problems)
    assert raw["optimizer"]["lr"] == pytest.approx(6 * before)
    assert not problems


def test_a_scale_uses_the_learning_rate_that_it_states():
    raw = recipe()
    multiply(raw, Multiply(lr_of={"sgd": {"paper": 0.4, "here": 0.00928}}), [])
    assert raw["optimizer"]["lr"] == 0.00928


@pytest.mark.parametrize(
    "given", [{"paper": 0.1}, {"paper": 0.1, "her": 1.0}, {"paper": 0, "here": 1}]
)
def test_rates_of_a_scale_are_checked(given):
    problems: list[str] = []
    multiply(recipe(), Multiply(lr_of={"sgd": given}), problems)
    assert len(problems) == 1
    assert problems[0].startswith("multiply.lr_of.sgd must be like {paper: 0.4, here: 0.2}")


def test_dropout_keeps_the_rows_ratios():
    for name, dropout in (("adam", 0.075), ("novograd", 0.05)):
        raw = compose([f"experiment=wmt14/{name}", "multiply.dropout=0.25"])
        assert raw["model"]["dropout"] == dropout
