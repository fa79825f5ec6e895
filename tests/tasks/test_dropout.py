"""Dropout that is faster on a CPU."""

from __future__ import annotations

import math

import pytest
import torch

from tasks.dropout import Dropout


@pytest.mark.parametrize("rate", [0.05, 0.2, 0.5])
def test_dropout_draws_as_many_as_it_should(rate: float):
    x, onto = torch.randn(3, 257, 1025), torch.randn(3, 257, 1025)
    drop = Dropout(rate)
    torch.manual_seed(1)
    kept = drop(torch.ones_like(x))
    assert set(kept.unique().tolist()) == {0.0, torch.tensor(1 / (1 - rate)).item()}
    dropped = (kept == 0).double()
    deviation = math.sqrt(rate * (1 - rate))
    assert abs(dropped.mean() - rate) < 5 * deviation / math.sqrt(x.numel())
    pairs = (dropped[..., 1:] * dropped[..., :-1]).mean()  # halves of one 64-bit number, too
    assert abs(pairs - rate**2) < 5 * deviation / math.sqrt(x.numel())
    torch.manual_seed(1)
    torch.testing.assert_close(drop(x, onto), onto + x * kept)
    assert not torch.equal(drop(torch.ones_like(x)), kept)
    assert torch.equal(drop.eval()(x, onto), x + onto)


def test_the_gradient_goes_where_dropout_left_numbers():
    x = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    onto = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    out = Dropout(0.4)(x, onto)
    ours, through = torch.autograd.grad(out.sum(), [x, onto])
    torch.testing.assert_close(out - onto, x * ours, rtol=1e-12, atol=1e-12)
    assert torch.equal(through, torch.ones_like(onto))
