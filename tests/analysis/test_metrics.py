"""The table of metrics agrees with the tasks, and its qualities can be compared in percent."""

from __future__ import annotations

import math

import pytest

from analysis.metrics import (
    METRICS,
    UnknownMetric,
    axis_label,
    best_quality,
    find_metric,
    lost_quality,
    metric_label,
    metric_of,
    quality,
    quality_label,
)
from tasks.catalog import TASKS, task_class


@pytest.mark.parametrize("task", TASKS)
def test_direction_is_that_of_the_task(task):
    headline = task_class(task).headline
    assert metric_of(headline.name).higher_is_better == headline.higher_is_better


def test_labels():
    assert metric_label("dev-clean/wer") == "dev-clean WER"
    assert metric_label("test_64/ppl") == "test perplexity"
    assert axis_label("val/top1") == "val top-1, %"
    assert quality_label("dev-clean/wer") == "dev-clean word accuracy, %"


def test_unknown_metrics():
    assert find_metric("train/lr") is None
    with pytest.raises(UnknownMetric, match=r"val/speed: unknown metric.*top1"):
        metric_of("val/speed")


def test_error_rates_are_compared_as_accuracies():
    assert quality("dev-clean/wer", 20.0) == 80.0
    assert lost_quality("dev-clean/wer", 80.0, 76.0) == pytest.approx(0.05)
    assert best_quality("dev-clean/wer", [80.0, None, 76.0]) == 80.0


def test_an_excess_of_perplexity_is_lost_quality():
    assert lost_quality("valid/ppl", 100.0, 105.0) == pytest.approx(0.05)
    assert best_quality("valid/ppl", [105.0, 100.0]) == 100.0


@pytest.mark.parametrize("metric", METRICS)
def test_without_a_finite_value_all_is_lost(metric):
    assert quality(metric, math.inf) is None
    assert quality(metric, None) is None
    assert lost_quality(metric, 1.0, None) == 1.0
