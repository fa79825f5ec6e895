"""CTC against the sum over all paths."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from tasks.librispeech.loss import ctc, frames_needed


def all_paths(log_p: Tensor, target: list[int], blank: int) -> Tensor:
    """-log of the sum of p over every path that spells the target; log_p (T, classes)."""
    paths = []
    for path in itertools.product(range(log_p.shape[1]), repeat=len(log_p)):
        spelled = [symbol for symbol, _ in itertools.groupby(path) if symbol != blank]
        if spelled == target:
            paths.append(log_p[torch.arange(len(log_p)), list(path)].sum())
    return -torch.logsumexp(torch.stack(paths), 0)


def batch(dtype: torch.dtype, frames: int = 5) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits; the third utterance is too short for its text, 1 blank 1; the fourth just not."""
    logits = torch.randn(4, frames, 3, dtype=dtype, requires_grad=True)
    lengths = torch.tensor([frames, frames - 1, 2, 3])
    targets = torch.tensor([[0, 1, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1]])
    return logits, lengths, targets, torch.tensor([3, 1, 2, 2])


def test_sum_over_all_paths():
    logits, lengths, targets, target_lengths = batch(torch.float64)
    out = ctc(logits.log_softmax(-1), lengths, targets, target_lengths, blank=2)
    expected = sum(
        all_paths(logits[i].log_softmax(-1)[: lengths[i]], targets[i, :n].tolist(), blank=2)
        for i, n in enumerate(target_lengths.tolist())
        if i != 2
    )
    assert isinstance(expected, Tensor)
    assert out.total.dtype == torch.float64
    assert out.weight == 4
    assert out.impossible.item() == 1
    torch.testing.assert_close(out.total, expected, rtol=0, atol=1e-12)
    (gradient,) = torch.autograd.grad(out.total, logits)
    (expected_gradient,) = torch.autograd.grad(expected, logits)
    torch.testing.assert_close(gradient, expected_gradient, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_utterance_without_alignment_has_no_loss_and_no_gradient(dtype: torch.dtype):
    logits, lengths, targets, target_lengths = batch(dtype)
    out = ctc(logits.log_softmax(-1), lengths, targets, target_lengths, blank=2)
    out.total.backward()
    assert logits.grad is not None
    assert out.total.isfinite()
    assert logits.grad.isfinite().all()
    assert (logits.grad[2] == 0).all()
    assert (logits.grad[[0, 1, 3]] != 0).any(-1).any(-1).all()
    for row, length in zip(logits.grad, lengths, strict=True):
        assert (row[length:] == 0).all()


def test_a_batch_of_nothing_but_such_utterances():
    logits = torch.randn(2, 4, 29, requires_grad=True)
    targets = torch.tensor([[3, 3, 3], [5, 6, 7]])
    out = ctc(logits.log_softmax(-1), torch.tensor([4, 2]), targets, torch.tensor([3, 3]))
    out.total.backward()
    assert logits.grad is not None
    assert out.total.item() == 0
    assert out.impossible.item() == 2
    assert (logits.grad == 0).all()


def test_another_infinity_stays():
    log_p = torch.full((1, 3, 29), -math.inf)
    assert ctc(log_p, torch.tensor([3]), torch.tensor([[1]]), torch.tensor([1])).total == math.inf


def test_frames_needed():
    targets = torch.tensor([[4, 4, 4, 4], [1, 2, 2, 2], [7, 7, 7, 7]])
    assert frames_needed(targets, torch.tensor([4, 3, 0])).tolist() == [7, 4, 0]


def test_operations_can_be_counted():
    log_p = torch.randn(2, 9, 29, device="meta", requires_grad=True)
    lengths = torch.empty(2, dtype=torch.long, device="meta")
    targets = torch.empty(2, 3, dtype=torch.long, device="meta")
    ctc(log_p, lengths, targets, lengths).total.backward()
