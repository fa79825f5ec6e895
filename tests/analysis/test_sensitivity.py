"""The width of the range of good values, against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest

from analysis.sensitivity import Sensitivity, sensitivity

TOP1 = "val/top1"


def width(qualities: dict[float, float | None], metric: str = TOP1) -> Sensitivity:
    found = sensitivity(metric, qualities)
    assert found is not None
    return found


def test_the_loss_is_interpolated_over_the_logarithm():
    """5 % lost is half of the way from 0 to 10 %, on either side of the best."""
    points: dict[float, float | None] = {0.1: 90.0, 1.0: 100.0, 10.0: 90.0}
    found = width(points)
    assert (found.low, found.high) == pytest.approx((10**-0.5, 10**0.5))
    assert found.decades == pytest.approx(1.0)
    worse: dict[float, float | None] = {x: 110.0 if x != 1 else 100.0 for x in points}
    assert width(worse, "valid/ppl").decades == pytest.approx(1.0)
    assert str(found) == "1.00 decades (0.316 … 3.16)"


def test_a_finer_grid_of_the_same_curve_has_the_same_width():
    def curve(step: float) -> dict[float, float | None]:
        exponents = [step * i for i in range(-round(1 / step), round(1 / step) + 1)]
        return {10**x: 100 - 10 * abs(x) for x in exponents}

    assert width(curve(1.0)).decades == pytest.approx(width(curve(0.125)).decades, abs=1e-12)


def test_where_measurements_end_the_width_is_a_lower_bound():
    found = width({0.1: 99.0, 1.0: 100.0, 10.0: 50.0})
    assert (found.low, found.open_below, found.open_above) == (0.1, True, False)
    assert str(found).startswith("≥ ")
    missing = width({0.1: math.nan, 1.0: 100.0, 10.0: 99.0, 100.0: 10.0})
    assert (missing.low, missing.open_below, missing.open_above) == (1.0, True, False)


def test_beside_a_diverged_run_the_range_ends():
    assert width({0.1: 99.0, 1.0: 100.0, 10.0: None}) == Sensitivity(0.1, 1.0, True, False)
    assert width({0.1: None, 1.0: 5.0, 10.0: None}) == Sensitivity(1.0, 1.0, False, False)


def test_a_good_value_beyond_a_bad_one_does_not_count():
    assert 1.0 < width({0.1: 100.0, 1.0: 100.0, 10.0: 50.0, 100.0: 100.0}).decades < 2.0


def test_without_results_there_is_no_width():
    assert sensitivity(TOP1, {1.0: None, 10.0: None}) is None
    assert sensitivity(TOP1, {1.0: 3.0}) is None
    assert width({1.0: -2.0, 10.0: -2.0}, "dev/wer").decades == 0.0  # more errors than words
