"""Schedules against the closed formulas of the recipes."""

from __future__ import annotations

import math
import pickle

import pytest

from optim import Schedule, warmup_steps


def test_cosine_to_zero():
    """ImageNet, AdamW and NovoGrad: lr (1 + cos(pi t / T)) / 2 over 125,100 steps."""
    schedule = Schedule("cosine", lr=0.007, total=125_100)
    for t in (0, 1, 31_275, 62_550, 125_099):
        assert schedule(t) == 0.007 * 0.5 * (1 + math.cos(math.pi * t / 125_100))
    assert schedule(0) == 0.007
    assert schedule(125_100) == 0.0


def test_quadratic_decay_of_sgd():
    schedule = Schedule("polynomial", lr=0.4, total=125_100, power=2.0)
    for t in (0, 1, 100_000, 125_099):
        assert schedule(t) == pytest.approx(0.4 * (1 - t / 125_100) ** 2, rel=1e-15)


def test_quadratic_decay_to_a_floor():
    """Table 4: (lr - 1e-5)(1 - t/T)^2 + 1e-5; Table 5's B=512 row: max(lr (1 - t/T)^2, 1e-5)."""
    added = Schedule("polynomial", lr=0.02, total=439_200, floor=1e-5)
    cut = Schedule("polynomial", lr=0.015, total=220_000, floor=1e-5, floor_mode="cut")
    for t in (0, 1, 200_000, 219_999):
        assert added(t) == pytest.approx((0.02 - 1e-5) * (1 - t / 439_200) ** 2 + 1e-5, rel=1e-15)
        assert cut(t) == max(0.015 * (1 - t / 220_000) ** 2, 1e-5)
    assert added(439_200) == cut(220_000) == 1e-5


def test_warm_up_from_zero_then_cosine_over_the_rest():
    """ImageNet 32K: lr t / 500 for t < 500, then cosine over the remaining 3,010 steps."""
    schedule = Schedule("cosine", lr=0.026, total=3_510, warmup=500)
    assert schedule(0) == 0.0
    assert schedule(250) == 0.013
    assert schedule(500) == 0.026
    assert schedule(2_005) == pytest.approx(0.013)  # the middle of what remains


def test_warm_up_above_zero():
    """NMT: lr (t + 1) / 4001 for t < 4000, then cosine over 96,000 steps."""
    schedule = Schedule("cosine", lr=0.04, total=100_000, warmup=4_000, warmup_from="above_zero")
    assert schedule(0) == 0.04 / 4001
    assert schedule(3_999) == 0.04 * 4000 / 4001
    assert schedule(4_000) == 0.04
    assert schedule(52_000) == pytest.approx(0.02)


def test_constant_with_warm_up():
    schedule = Schedule("constant", lr=0.1, total=10, warmup=2)
    assert [schedule(t) for t in range(4)] == [0.0, 0.05, 0.1, 0.1]


def test_warm_up_as_a_fraction_of_all_steps():
    """Table 5: 0.05 of 27,600 updates, 0.08 of 3,600."""
    assert warmup_steps(0.05, 27_600) == 1_380
    assert warmup_steps(0.08, 3_600) == 288
    assert warmup_steps(500, 3_510) == 500
    assert warmup_steps(0, 10) == warmup_steps(0.0, 10) == 0
    for bad in (1.5, -1, float("nan"), True):
        with pytest.raises(ValueError, match="warm-up"):
            warmup_steps(bad, 10)


def test_schedules_are_values():
    schedule = Schedule("cosine", lr=0.1, total=10)
    assert pickle.loads(pickle.dumps(schedule)) == schedule
    assert hash(schedule) == hash(Schedule("cosine", lr=0.1, total=10))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shape": "cosin"}, "shape must be one of .*'cosine'"),
        ({"warmup_from": "one"}, "warmup_from must be one of"),
        ({"floor_mode": "max"}, "floor_mode must be one of"),
        ({"lr": float("nan")}, "lr must be finite"),
        ({"lr": -0.1}, "lr must be finite and not negative"),
        ({"power": -1.0}, "power must be"),
        ({"floor": 0.2}, "floor=0.2 is above lr=0.1"),
        ({"total": 0}, "total must be at least 1"),
        ({"warmup": 10}, "warmup must be at least 0 and less than total=10"),
        ({"warmup": -1}, "warmup must be"),
    ],
)
def test_bad_schedules_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Schedule(**{"shape": "cosine", "lr": 0.1, "total": 10, **options})
    with pytest.raises(ValueError, match="step must not be negative"):
        Schedule("cosine", lr=0.1, total=10)(-1)


def test_staircase_with_a_warmup_from_a_rate_of_its_own():
    """Goyal et al.: from 0.1 to 3.2 in five epochs, a tenth after 30, 60 and 80."""
    schedule = Schedule("staircase", 3.2, 90, 5, start=0.1, milestones=(30, 60, 80))
    assert schedule(0) == 0.1
    assert schedule(4) == pytest.approx(0.1 + 3.1 * 4 / 5, rel=1e-15)
    assert schedule(5) == schedule(29) == 3.2
    for step, factor in ((30, 0.1), (59, 0.1), (60, 0.01), (79, 0.01), (80, 0.001), (89, 0.001)):
        assert schedule(step) == pytest.approx(3.2 * factor, rel=1e-15)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"shape": "staircase"}, "needs some"),
        ({"shape": "cosine", "milestones": (3,)}, "belong to the staircase"),
        ({"shape": "staircase", "milestones": (5, 3)}, "must increase"),
        ({"shape": "cosine", "start": 2.0}, "start=2.0 is above lr"),
        ({"shape": "cosine", "factor": -1.0}, "factor must be finite and not negative"),
    ],
)
def test_wrong_staircases_are_refused(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        Schedule(**({"lr": 1.0, "total": 10} | options))
