"""The fast convolution is torch's, and is used only where it is faster."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from tasks.librispeech import fast_conv
from tasks.librispeech.fast_conv import convolve
from tasks.librispeech.model import TimeConv


def gradients(function, x, weight):
    y = function(x, weight)
    upstream = torch.sin(torch.arange(y.numel(), dtype=y.dtype)).view_as(y)
    return y, *torch.autograd.grad(y, (x, weight), upstream)


def direct(x, weight):
    return F.conv1d(x, weight, padding=weight.shape[-1] // 2)


def relative(one, other):
    return float((one - other).detach().norm() / other.detach().norm())


@pytest.mark.parametrize("kernel", [9, 11, 25, 33])
@pytest.mark.parametrize("frames", [1, 31, 64, 157])
def test_outputs_and_gradients_are_those_of_torch_in_float64(kernel, frames, monkeypatch):
    monkeypatch.setattr(fast_conv, "SMALLEST", 0)
    monkeypatch.setattr(fast_conv, "NARROWEST", 1)
    monkeypatch.setattr(fast_conv.F, "conv1d", None)  # would be an error
    torch.manual_seed(kernel)
    x = torch.randn(2, 5, frames, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(7, 5, kernel, dtype=torch.float64, requires_grad=True)
    found = gradients(convolve, x, weight)
    monkeypatch.undo()
    for one, other in zip(found, gradients(direct, x, weight), strict=True):
        assert one.shape == other.shape
        assert relative(one, other) < 1e-12


def test_float32_is_as_exact_as_the_direct_sum():
    """Relative to float64: within ten roundings."""
    torch.manual_seed(0)
    x = torch.randn(2, 128, 640, requires_grad=True)
    weight = torch.randn(128, 128, 13, requires_grad=True)
    exact = gradients(direct, *(t.detach().double().requires_grad_() for t in (x, weight)))
    for one, other in zip(gradients(convolve, x, weight), exact, strict=True):
        assert relative(one, other) < 10 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize(
    ("shape", "weight"),
    [((4, 64, 640), (64, 64, 13)), ((1, 128, 100), (128, 128, 13)), ((8, 128, 640), (128, 128, 1))],
    ids=["narrow", "short", "pointwise"],
)
def test_where_it_would_not_be_faster_torch_convolves(shape, weight):
    x, w = torch.randn(shape), torch.randn(weight)
    assert torch.equal(convolve(x, w), direct(x, w))


def test_strides_and_dilations_are_torchs():
    x = torch.randn(8, 128, 640)
    for stride, dilation in ((2, 1), (1, 2)):
        conv = TimeConv(128, 128, 11, stride, 5, dilation, bias=False)
        assert torch.equal(conv(x), F.conv1d(x, conv.weight, None, stride, 5, dilation))
