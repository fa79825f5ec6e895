"""Matrix products are what torch's own are, whichever library makes them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tasks import products
from tasks.products import LARGE, Linear, linear, product

WIDE = LARGE // 32  # columns of a large factor of the tests


@pytest.fixture(params=["oneDNN", "MKL"], autouse=True)
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of large products, on whatever processor the tests run."""
    name: str = request.param
    monkeypatch.setattr(products, "onednn_is_faster", lambda: name == "oneDNN")
    return name


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def close_to_float64(found: Tensor, exact: Tensor) -> bool:
    """Within what sums of float32 may lose."""
    return bool((found.double() - exact).norm() < 1e-6 * exact.norm())


@pytest.mark.parametrize(("rows", "columns"), [(17, 24), (LARGE // 40 + 1, 2 * WIDE)])
@pytest.mark.parametrize("transposed", ["neither", "first", "second"])
@pytest.mark.parametrize("plus", [True, False])
def test_product(rows: int, columns: int, transposed: str, plus: bool):
    """Small and large factors that lie in memory either way."""
    a, b, offsets = draw(rows, 40), draw(40, columns), draw(columns)
    if transposed == "first":
        a = a.t().contiguous().t()
    if transposed == "second":
        b = b.t().contiguous().t()
    exact = a.double() @ b.double() + (offsets.double() if plus else 0)
    assert close_to_float64(product(a, b, offsets if plus else None), exact)


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
    weight = draw(WIDE, 48).requires_grad_()
    (gradient,) = torch.autograd.grad(linear(draw(3, 48), weight).sum(), [weight])
    assert gradient.shape == weight.shape


@pytest.mark.parametrize("shape", [(48,), (0, 48), (2, 0, 48)])
def test_vectors_and_empty_inputs(shape: tuple[int, ...]):
    x, weight = draw(*shape).requires_grad_(), draw(WIDE, 48).requires_grad_()
    out = linear(x, weight)
    assert torch.equal(out, F.linear(x, weight))
    gradients = torch.autograd.grad(out.sum(), [x, weight])
    wanted = torch.autograd.grad(F.linear(x, weight).sum(), [x, weight])
    assert all(map(torch.equal, gradients, wanted))


@pytest.mark.parametrize("offsets", [draw(2 * WIDE)[::2], draw(1).expand(WIDE)])
def test_offsets_need_not_lie_side_by_side(offsets: Tensor):
    a, b = draw(LARGE // 48 + 1, 48), draw(48, WIDE)
    exact = a.double() @ b.double() + offsets.double()
    assert close_to_float64(product(a, b, offsets), exact)
    assert close_to_float64(linear(a, b.t(), offsets), exact)


@pytest.mark.slow
def test_compiled_code_is_one_graph():
    x, weight = draw(3, 48), draw(WIDE, 48)
    compiled = torch.compile(linear, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x, weight), F.linear(x, weight))


def test_other_kinds_of_numbers_are_torchs_own():
    module = Linear(48, WIDE).double()
    x = draw(3, 48)
    assert torch.equal(module(x.double()), F.linear(x.double(), module.weight, module.bias))
    module = module.float()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(module(x), F.linear(x, module.weight, module.bias))


@pytest.mark.parametrize(
    ("capability", "maker", "faster"),
    [
        ("AVX512", "AuthenticAMD", True),
        ("AVX512", "GenuineIntel", False),
        ("AVX2", "AuthenticAMD", False),
    ],
)
def test_onednn_serves_processors_that_mkl_does_not(
    capability: str, maker: str, faster: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.undo()  # the fixture's choice
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(Path, "read_text", lambda _: f"vendor_id\t: {maker}\n")
    assert products.onednn_is_faster.__wrapped__() == faster


def test_mkl_serves_where_torch_lacks_onednns_function(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(Path, "read_text", lambda _: "vendor_id\t: AuthenticAMD\n")
    assert products.onednn_is_faster.__wrapped__()
    monkeypatch.setattr(torch.ops, "mkldnn", SimpleNamespace())
    assert not products.onednn_is_faster.__wrapped__()
