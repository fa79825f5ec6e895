"""The Transformer's parts for CPUs calculate what torch's own calculate."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tasks.wmt14.cpu import WIDE, Linear, linear, product


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def close_to_float64(found: Tensor, exact: Tensor) -> bool:
    """Within what sums of float32 may lose."""
    return bool((found.double() - exact).norm() < 1e-6 * exact.norm())


@pytest.mark.parametrize("columns", [24, WIDE, WIDE + 8])
@pytest.mark.parametrize("transposed", ["neither", "first", "second"])
def test_product(columns: int, transposed: str):
    """Rows that are narrow and wide, of matrices that lie in memory either way."""
    a, b = draw(17, 40), draw(40, columns)
    if transposed == "first":
        a = a.t().contiguous().t()
    if transposed == "second":
        b = b.t().contiguous().t()
    assert close_to_float64(product(a, b), a.double() @ b.double())


@pytest.mark.parametrize(("inner", "outer"), [(48, WIDE), (WIDE, 48), (48, 40)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_and_its_gradients(inner: int, outer: int, bias: bool):
    x = draw(2, 7, inner).requires_grad_()
    weight = draw(outer, inner).requires_grad_()
    offset = draw(outer).requires_grad_() if bias else None
    given = [x, weight] + ([offset] if offset is not None else [])
    exact = [tensor.detach().double().requires_grad_() for tensor in given]
    out, wanted = linear(x, weight, offset), F.linear(*exact)
    assert out.shape == wanted.shape
    assert close_to_float64(out, wanted)
    toward = draw(*out.shape)
    found = torch.autograd.grad(out, given, toward)
    gradients = torch.autograd.grad(wanted, exact, toward.double())
    for one, other in zip(found, gradients, strict=True):
        assert close_to_float64(one, other)


def test_what_needs_no_gradient_gets_none():
    weight = draw(WIDE, 16).requires_grad_()
    (gradient,) = torch.autograd.grad(linear(draw(3, 16), weight).sum(), [weight])
    assert gradient.shape == weight.shape


def test_other_kinds_of_numbers_are_torchs_own():
    module = Linear(16, WIDE).double()
    x = draw(3, 16)
    assert torch.equal(module(x.double()), F.linear(x.double(), module.weight, module.bias))
    module = module.float()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(module(x), F.linear(x, module.weight, module.bias))
