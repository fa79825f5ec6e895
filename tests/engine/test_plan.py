from __future__ import annotations

import pytest

from engine.config import ConfigProblem
from engine.plan import Duration, make_plan, micro_batches_of
from tests.engine.toy import toy_config


@pytest.mark.parametrize(
    ("text", "amount", "unit"),
    [
        ("100 epochs", 100, "epochs"),
        ("1 epoch", 1, "epochs"),
        ("12e9 tokens", 12e9, "tokens"),
        ("5 %", 5, "%"),
        ("0.5%", 0.5, "%"),
        ("500 Steps", 500, "steps"),
    ],
)
def test_durations(text, amount, unit):
    assert Duration.parse(text, "budget", "token") == Duration(amount, unit)


@pytest.mark.parametrize("text", ["", "100", "epochs", "-1 epochs", "1 fortnight", "nan steps"])
def test_bad_durations(text):
    with pytest.raises(ValueError, match="budget must be a duration such as '100 epochs'"):
        Duration.parse(text, "budget", "token")


def test_integers(tmp_path):
    """Table 7: 12e9 tokens of 256 × 128 a step are 366,211 updates."""
    config = toy_config(
        tmp_path,
        budget="12e9 tokens",
        batch__global_size=32_768,
        batch__micro=4_096,
        schedule__warmup="5 %",
        evaluation__every="1 epochs",
    )
    plan = make_plan(config, "token", 3_150, 8)
    assert plan.steps == 366_211
    assert plan.accumulation == 1
    assert plan.warmup == 18_311
    assert plan.eval_every == 3_150
    assert plan.epochs == pytest.approx(116.2, abs=0.1)


@pytest.mark.parametrize(("processes", "accumulation"), [(1, 8), (2, 4), (4, 2), (8, 1)])
def test_accumulation_follows_from_the_global_batch(tmp_path, processes, accumulation):
    plan = make_plan(toy_config(tmp_path), "example", 12, processes)
    assert plan.accumulation == accumulation
    assert plan.micro_batches == 8


def test_what_does_not_divide_is_explained(tmp_path):
    with pytest.raises(ConfigProblem, match="8 micro-batches of 2 do not divide among 3 processes"):
        micro_batches_of(toy_config(tmp_path), 3)
    with pytest.raises(ConfigProblem, match=r"16 = 5 × 3 \+ 1"):
        micro_batches_of(toy_config(tmp_path, batch__micro=3), 1)
