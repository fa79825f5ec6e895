"""The smoothed cross entropy against torch's own, and against its definition."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tasks.wmt14.loss import smoothed_cross_entropy

WORDS = 13


def torchs(logits: Tensor, targets: Tensor, smoothing: float, pad: int | None = None) -> Tensor:
    """torch spreads the smoothing over all words, with the right one."""
    words = logits.shape[-1]
    return F.cross_entropy(
        logits.flatten(0, -2),
        targets.flatten(),
        ignore_index=-100 if pad is None else pad,
        reduction="sum",
        label_smoothing=smoothing * words / (words - 1),
    )


def example(kind: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """With the padding 3."""
    targets = torch.randint(WORDS, (4, 5))
    targets[1, 3:] = 3
    return (3 * torch.randn(4, 5, WORDS, dtype=kind)).requires_grad_(), targets


@pytest.mark.parametrize("pad", [None, 3])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_is_torchs(smoothing: float, pad: int | None):
    logits, targets = example()
    ours = smoothed_cross_entropy(logits, targets, smoothing, pad)
    theirs = torchs(logits, targets, smoothing, pad)
    torch.testing.assert_close(ours, theirs)
    gradients = [torch.autograd.grad(0.7 * loss, logits)[0] for loss in (ours, theirs)]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("pad", [None, 3])
def test_gradient_is_that_of_the_loss(pad: int | None):
    logits, targets = example()
    assert torch.autograd.gradcheck(
        lambda z: smoothed_cross_entropy(z, targets, 0.1, pad), (logits,)
    )


def test_is_the_definition():
    """-Σ q log p, with q = 1 - s of the right word and s / (V - 1) of each other one."""
    logits, targets = example()
    q = torch.full_like(logits, 0.1 / (WORDS - 1)).scatter(2, targets[..., None], 0.9)
    expected = -(q * logits.log_softmax(-1)).sum()
    torch.testing.assert_close(smoothed_cross_entropy(logits, targets, 0.1), expected)


def test_padding_has_no_gradient():
    logits, targets = example()
    smoothed_cross_entropy(logits, targets, 0.1, 3).backward()
    assert logits.grad is not None
    assert torch.equal((logits.grad == 0).all(-1), targets == 3)


def test_the_gradient_can_be_asked_for_twice():
    logits, targets = example()
    loss = smoothed_cross_entropy(logits, targets, 0.1)
    (once,) = torch.autograd.grad(loss, logits, retain_graph=True)
    (again,) = torch.autograd.grad(loss, logits)
    assert torch.equal(once, again)


def test_logits_are_left_as_they_were_and_may_be_far_apart():
    logits = torch.tensor([[0.0, 500.0, -500.0]], requires_grad=True)
    before = logits.detach().clone()
    loss = smoothed_cross_entropy(logits, torch.tensor([2]), 0.0)
    loss.backward()
    assert loss.item() == 1000
    assert torch.equal(logits, before)
    assert logits.grad is not None
    assert logits.grad.tolist() == [[0, 1, -1]]


def test_half_precision_is_summed_in_float32():
    logits, targets = example(torch.bfloat16)
    loss = smoothed_cross_entropy(logits, targets, 0.1, 3)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, torchs(logits.float(), targets, 0.1, 3))
    loss.backward()
    assert logits.grad is not None
    assert logits.grad.dtype == torch.bfloat16


def test_works_under_autocast():
    x, matrix = torch.randn(6, 8), torch.randn(WORDS, 8, requires_grad=True)
    targets = torch.randint(WORDS, (6,))
    with torch.autocast("cpu", torch.bfloat16):
        loss = smoothed_cross_entropy(F.linear(x, matrix), targets, 0.1)
    loss.backward()
    exact = torchs(x @ matrix.T, targets, 0.1)
    (gradient,) = torch.autograd.grad(exact, matrix)
    eps = torch.finfo(torch.bfloat16).eps
    assert loss.dtype == torch.float32
    assert abs(loss - exact) < 8 * eps * exact
    assert matrix.grad is not None
    assert (matrix.grad - gradient).norm() < 8 * eps * gradient.norm()


def test_needs_no_data():
    logits = torch.empty(2, 3, WORDS, device="meta", requires_grad=True)
    targets = torch.empty(2, 3, dtype=torch.int64, device="meta")
    loss = smoothed_cross_entropy(logits, targets, 0.1, 0)
    assert loss.shape == ()
    loss.backward()
    assert logits.grad is not None
    assert logits.grad.shape == logits.shape


def test_without_a_gradient():
    logits, targets = example()
    with torch.no_grad():
        loss = smoothed_cross_entropy(logits, targets, 0.0)
    assert not loss.requires_grad
    torch.testing.assert_close(loss, torchs(logits, targets, 0.0))


@pytest.mark.parametrize("smoothing", [-0.1, 1.0, math.nan])
def test_wrong_smoothing_is_named(smoothing: float):
    with pytest.raises(ValueError, match=r"smoothing must be in \[0, 1\)"):
        smoothed_cross_entropy(*example(), smoothing)


def test_wrong_shapes_are_named():
    logits, targets = example()
    with pytest.raises(ValueError, match=r"logits of \(4, 5\) words for targets of \(4, 4\)"):
        smoothed_cross_entropy(logits, targets[:, 1:], 0.1)
