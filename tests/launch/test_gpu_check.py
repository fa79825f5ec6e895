"""How gpu-check measures the distance between devices; the rest is in tests/hollow_cuda."""

from __future__ import annotations

import math

import pytest
import torch

from launch.config_files import options_of
from launch.gpu_check import _task_difference, paper_rows


def test_gradients_that_are_0_but_for_rounding_do_not_count() -> None:
    """As those of the key biases of attention, which change no probability."""
    loss, weight, key_bias = torch.tensor(2.0), torch.ones(3), torch.full((3,), 1e-18)
    expected = [loss, weight, key_bias]
    assert _task_difference(expected, [loss, weight, -key_bias]) < 1e-14
    assert _task_difference(expected, [loss, weight, key_bias + 1e-2]) > 1
    assert _task_difference(expected, [loss, 1.5 * weight, key_bias]) == pytest.approx(0.5)
    assert _task_difference(expected, [1.5 * loss, weight, key_bias]) == pytest.approx(0.5)
    assert _task_difference(expected, [loss, weight * math.nan, key_bias]) == math.inf


def test_all_rows_of_the_paper_are_measured() -> None:
    assert set(paper_rows()) <= set(options_of("experiment"))
    assert len(paper_rows()) == len(set(paper_rows())) > 20
