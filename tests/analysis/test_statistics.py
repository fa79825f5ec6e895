"""Comparisons over seeds, against SciPy and against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats  # type: ignore[import-untyped]

from analysis.statistics import PairedDifference, no_worse, paired_interval


def seeds(*values: float) -> dict[int, float]:
    return dict(enumerate(values))


def interval(*given: Any) -> PairedDifference:
    """Where there are two common seeds."""
    found = paired_interval(*given)
    assert found is not None
    return found


@pytest.mark.parametrize("pairs", [2, 3, 5, 20])
def test_paired_interval_is_that_of_scipy(pairs):
    generator = np.random.default_rng(pairs)
    ours, others = generator.normal(50, 3, pairs), generator.normal(48, 3, pairs)
    for confidence in (0.9, 0.95):
        found = interval(seeds(*ours), seeds(*others), confidence)
        wanted = stats.ttest_rel(ours, others).confidence_interval(confidence)
        assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high), rel=1e-12)
        assert found.mean == pytest.approx(float(np.mean(ours - others)), rel=1e-12)
        effect = np.mean(ours - others) / np.std(ours - others, ddof=1)
        assert found.effect_size == pytest.approx(float(effect), rel=1e-12)
        assert found.pairs == pairs


def test_pairing_removes_what_seeds_have_in_common():
    ours, others = seeds(60.0, 50.0, 40.0), seeds(59.0, 48.9, 39.1)
    assert interval(ours, others).low > 0
    unpaired = interval(ours, seeds(39.1, 59.0, 48.9))
    assert unpaired.low < 0 < unpaired.high


def test_only_common_seeds_are_paired():
    found = interval({0: 1.0, 1: 2.0, 2: 9.0}, {1: 1.0, 2: 7.0, 3: 0.0})
    assert (found.mean, found.pairs) == (1.5, 2)
    assert paired_interval({0: 1.0, 1: 2.0}, {1: 1.0}) is None


def test_equal_differences_have_no_effect_size():
    found = interval(seeds(2.0, 3.0), seeds(1.0, 2.0))
    assert (found.low, found.mean, found.high, found.effect_size) == (1.0, 1.0, 1.0, None)
    assert str(found) == "+1.0 % [+1.0, +1.0], n = 2"


def test_no_worse_by_a_percent_or_by_two_standard_errors():
    assert no_worse("val/top1", [50.0, 50.0], [50.4, 50.4])
    assert not no_worse("val/top1", [50.0, 50.0], [51.0, 51.0])
    assert no_worse("val/top1", [48.0, 52.0], [51.0, 51.0])  # a standard error of 2
    assert no_worse("valid/ppl", [100.0], [99.5])
    assert not no_worse("valid/ppl", [100.0], [98.0])
    assert no_worse("valid/ppl", [90.0], [98.0])
