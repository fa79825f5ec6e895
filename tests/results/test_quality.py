"""How good results are, and in which range they stay good."""

from __future__ import annotations

import math

import pytest

from results.quality import can_tell, lost, no_worse, quality, quality_name, width


def test_qualities():
    assert quality("val/top1", 55.0) == 55.0
    assert quality("dev-clean/wer", 8.0) == 92.0
    assert quality_name("dev-clean/wer") == "dev-clean word accuracy, %"
    assert quality("valid/ppl", math.inf) is None
    assert quality("valid/ppl", None) is None


@pytest.mark.parametrize(
    ("metric", "better", "other", "part"),
    [
        ("val/top1", 50.0, 45.0, 0.1),
        ("val/top1", 50.0, 55.0, -0.1),
        ("valid/ppl", 100.0, 110.0, 0.1),
        ("valid/ppl", 100.0, None, 1.0),
        ("val/top1", None, 50.0, 1.0),
        ("dev/wer", -3.0, 5.0, 0.0),
    ],
)
def test_lost(metric: str, better: float | None, other: float | None, part: float):
    assert lost(metric, better, other) == pytest.approx(part)


def test_width_between_measured_rates():
    """Half of the way from 0 to 10 % lost, on either side of the best."""
    points: dict[float, float | None] = {0.1: 90.0, 1.0: 100.0, 10.0: 90.0}
    assert width(points, "val/top1") == pytest.approx(1.0)
    assert width({x: 110.0 if x != 1 else 100.0 for x in points}, "valid/ppl") == pytest.approx(1.0)


def test_width_ends_where_nothing_was_measured_and_beside_what_diverged():
    assert width({0.1: 99.0, 1.0: 100.0, 10.0: 98.0}, "val/top1") == pytest.approx(2.0)
    assert width({0.1: 99.0, 1.0: 100.0, 10.0: None}, "val/top1") == pytest.approx(1.0)
    assert width({1.0: 100.0, 10.0: None}, "val/top1") == 0.0
    assert width({1.0: None, 10.0: None}, "val/top1") is None
    assert width({1.0: -2.0, 10.0: -2.0}, "dev/wer") == 0.0  # more errors than words


def test_a_good_rate_beyond_a_bad_one_does_not_count():
    points: dict[float, float | None] = {0.1: 100.0, 1.0: 100.0, 10.0: 50.0, 100.0: 100.0}
    found = width(points, "val/top1")
    assert found is not None
    assert 1.0 < found < 2.0


def test_no_worse_by_a_percent_or_by_two_standard_errors():
    assert no_worse("val/top1", [50.0, 50.0], [50.4, 50.4])
    assert not no_worse("val/top1", [50.0, 50.0], [51.0, 51.0])
    assert no_worse("val/top1", [48.0, 52.0], [51.0, 51.0])
    assert no_worse("val/top1", [60.0, 60.0], [51.0, 51.0])
    assert not no_worse("valid/ppl", [60.0, 60.0], [51.0, 51.0])


def test_seeds_tell_of_a_difference_that_is_there_or_would_show():
    assert can_tell([50.0, 51.0], [50.0, 51.0])
    assert not can_tell([40.0, 60.0], [50.0, 50.0])
    assert can_tell([40.0, 60.0], [90.0, 90.0])  # far more than the seeds differ
