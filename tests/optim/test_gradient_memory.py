"""Gradients in any layout, and of any kind of tensor: the values decide, in every implementation.

Everything is compared with float64 calculations on copies of the values.
"""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

from optim import ClipGlobalNorm, Larc, NovoGrad, build_optimizer, native, transform_gradients
from optim.memory import addresses, flat, is_dense, is_readable
from optim.norms import squared_norms
from tests.optim.algorithm1 import Algorithm1
from tests.optim.implementations import (
    IMPLEMENTATIONS,
    every_implementation,
    make_novograd,
    running,
)

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
QUICK = settings(max_examples=60, deadline=None, database=None, derandomize=True)


@st.composite
def layouts(draw: st.DrawFn, shape: tuple[int, ...] | None = None, expand: bool = True) -> Any:
    """A function that makes a tensor of `shape` (or of any) from a seed, with some strides.

    Steps along dimensions, expanded dimensions, permuted ones, an offset into the storage.
    """
    if shape is None:
        shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    steps = [draw(st.integers(1, 3)) for _ in shape]
    shifts = [draw(st.integers(0, 2)) for _ in shape]
    expanded = [expand and draw(st.booleans()) and draw(st.booleans()) for _ in shape]
    order = draw(st.permutations(range(len(shape))))
    offset = draw(st.integers(0, 3))

    def make(dtype: torch.dtype, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        sizes = [
            1 if wide else shift + size * step
            for size, step, shift, wide in zip(shape, steps, shifts, expanded, strict=True)
        ]
        stored = [sizes[i] for i in order]
        storage = torch.randn(offset + math.prod(stored), generator=generator, dtype=torch.float64)
        base = storage.to(dtype)[offset:].view(stored)
        base = base.permute([order.index(i) for i in range(len(shape))])
        cut = tuple(
            slice(None) if wide else slice(shift, shift + size * step, step)
            for size, step, shift, wide in zip(shape, steps, shifts, expanded, strict=True)
        )
        return base[cut].expand(shape)

    return make


def exact_square(tensor: Tensor) -> float:
    return math.fsum(x * x for x in tensor.double().flatten().tolist())


@pytest.mark.parametrize("compiled", [True, False])
@given(makers=st.lists(layouts(), min_size=1, max_size=4), dtype=st.sampled_from(DTYPES))
@QUICK
def test_norms_of_any_layout(compiled, makers, dtype):
    tensors = [make(dtype, seed) for seed, make in enumerate(makers)]
    with running("fused" if compiled else "fused_without_compiler"):
        norms = squared_norms(tensors).tolist()
    assert norms == pytest.approx([exact_square(t) for t in tensors], rel=1e-12)


@given(make=layouts())
@QUICK
def test_flat_has_every_element_once(make):
    tensor = make(torch.float64, 0)
    line = flat(tensor)
    assert line.is_contiguous()
    assert sorted(line.tolist()) == sorted(tensor.flatten().tolist())
    if is_dense(tensor) and tensor.numel() > 0:
        assert line.data_ptr() == tensor.data_ptr()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@given(data=st.data(), dtype=st.sampled_from(DTYPES))
@QUICK
def test_steps_with_any_layout(implementation, data, dtype):
    """Parameters are views too (but not expanded: nothing can write to those)."""
    shapes = [(3, 4), (2, 3, 2), (5,), ()]
    params = [nn.Parameter(data.draw(layouts(s, expand=False))(dtype, 9)) for s in shapes]
    makers = [data.draw(layouts(s)) for s in shapes]
    values: list[Any] = [p.detach().double().numpy().copy() for p in params]
    exact = Algorithm1(values, 0.05, 0.9, 0.5, weight_decay=0.01)
    with running(implementation):
        optimizer = make_novograd(implementation, params, 0.05, (0.9, 0.5), weight_decay=0.01)
        for step in range(3):
            for i, (p, make) in enumerate(zip(params, makers, strict=True)):
                p.grad = make(dtype, 10 * step + i)
            exact.step([p.grad.double().numpy() for p in params if p.grad is not None])
            optimizer.step()
    # v is exact to its own dtype, whatever the parameter's; weights collect three roundings.
    eps = torch.finfo(dtype).eps
    moment_eps = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    for i, p in enumerate(params):
        v = optimizer.state[p]["exp_avg_sq"].item()
        assert v == pytest.approx(exact.v[i], rel=4 * moment_eps)
        np.testing.assert_allclose(p.detach().double(), exact.weights[i], rtol=0, atol=8 * eps)


@pytest.mark.parametrize("name", ["novograd", "sgd"])
@given(data=st.data())
@QUICK
def test_clipping_and_larc_with_any_layout(name, data):
    shapes = [(3, 4), (2, 3, 2), (5,)]
    params = [nn.Parameter(data.draw(layouts(s, expand=False))(torch.float64, 9)) for s in shapes]
    twins = [nn.Parameter(p.detach().clone(memory_format=torch.contiguous_format)) for p in params]
    # Scaling in place, as other optimizers need it, can't be done to an expanded gradient.
    makers = [data.draw(layouts(s, expand=name == "novograd")) for s in shapes]
    for i, (p, q, make) in enumerate(zip(params, twins, makers, strict=True)):
        p.grad = make(torch.float64, i)
        q.grad = p.grad.contiguous().clone()
    total = math.sqrt(sum(exact_square(q.grad) for q in twins if q.grad is not None))
    clip = min(1.0, 0.25 / (total + 1e-6))
    for q in twins:
        assert q.grad is not None
        g = math.sqrt(exact_square(q.grad)) * clip
        w = math.sqrt(exact_square(q.detach()))
        q.grad.mul_(clip * min(max(0.01 * w / (0.05 * (g + 1e-7)), 1e-7), 1.0))
    optimizer, plain = (build_optimizer(name, ps, lr=0.05) for ps in (params, twins))
    norm = transform_gradients(optimizer, [ClipGlobalNorm(0.25), Larc(trust=0.01)])
    assert norm.item() == pytest.approx(total, rel=1e-13)
    if name == "sgd":
        for p, q in zip(params, twins, strict=True):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-13, atol=0)
        return
    optimizer.step()
    plain.step()
    for p, q in zip(params, twins, strict=True):
        torch.testing.assert_close(p.detach(), q.detach(), rtol=0, atol=1e-13)


@every_implementation
def test_gradients_that_autograd_gives(implementation):
    """`torch.autograd.grad` gives stride 2 for a stack's part and stride 0 for a sum's."""
    p, q = nn.Parameter(torch.ones(6)), nn.Parameter(torch.ones(4))
    (p.grad,) = torch.autograd.grad((torch.stack([p, p * 2], dim=1) * torch.ones(6, 2)).sum(), p)
    (q.grad,) = torch.autograd.grad(q.sum(), q)
    assert q.grad.stride() == (0,)
    with running(implementation):
        optimizer = make_novograd(implementation, [p, q], 0.1)
        optimizer.step()
    assert optimizer.state[p]["exp_avg_sq"].item() == 54.0
    assert optimizer.state[q]["exp_avg_sq"].item() == 4.0


def parameter_values() -> list[Tensor]:
    torch.manual_seed(3)
    return [torch.randn(3, 4), torch.randn(5)]


def gradient_values(step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(s, generator=generator) for s in ((3, 4), (5,))]


def run_plainly(implementation: str, factor: float = 1.0) -> list[Tensor]:
    params = [nn.Parameter(v * factor) for v in parameter_values()]
    optimizer = make_novograd(implementation, params, 0.1, weight_decay=0.01, amsgrad=True)
    for step in range(3):
        for p, g in zip(params, gradient_values(step), strict=True):
            p.grad = g * factor
        optimizer.step()
    return [p.detach() for p in params]


@every_implementation
@pytest.mark.parametrize("mixed", [False, True])
def test_wrapper_subclasses(implementation, mixed):
    """Both halves of TwoTensors move as two separate models would, beside plain parameters."""
    with running(implementation):
        params = [nn.Parameter(TwoTensor(v, v * 2)) for v in parameter_values()]
        plain = [nn.Parameter(v) for v in parameter_values()] if mixed else []
        optimizer = make_novograd(
            implementation, [*params, *plain], 0.1, weight_decay=0.01, amsgrad=True
        )
        for step in range(3):
            for p, g in zip(params, gradient_values(step), strict=True):
                p.grad = TwoTensor(g, g * 2)
            for q, g in zip(plain, gradient_values(step), strict=mixed):
                q.grad = g
            optimizer.step()
        once, twice = run_plainly(implementation), run_plainly(implementation, 2.0)
    for p, a, b in zip(params, once, twice, strict=True):
        assert isinstance(p, TwoTensor)
        torch.testing.assert_close(p.a, a)
        torch.testing.assert_close(p.b, b)
    for q, a in zip(plain, once, strict=False):
        torch.testing.assert_close(q.detach(), a)


def test_wrapper_subclasses_are_clipped():
    params = [nn.Parameter(TwoTensor(v, v * 2)) for v in parameter_values()]
    optimizer = NovoGrad(params, 0.1)
    for p, g in zip(params, gradient_values(0), strict=True):
        p.grad = TwoTensor(g, g * 2)
    norm: Any = transform_gradients(optimizer, [ClipGlobalNorm(0.5)])
    optimizer.step()
    exact = math.sqrt(sum(exact_square(g) for g in gradient_values(0)))
    assert norm.a.item() == pytest.approx(exact, rel=1e-12)
    assert norm.b.item() == pytest.approx(2 * exact, rel=1e-12)


class Renamed(Tensor):
    """A subclass that changes nothing about torch's operations: its memory can be read."""


@every_implementation
def test_subclasses_with_memory_of_their_own(implementation):
    with running(implementation):
        params = [nn.Parameter(v.as_subclass(Renamed)) for v in parameter_values()]
        optimizer = make_novograd(implementation, params, 0.1, weight_decay=0.01, amsgrad=True)
        for step in range(3):
            for p, g in zip(params, gradient_values(step), strict=True):
                p.grad = g.as_subclass(Renamed)
            optimizer.step()
        for p, a in zip(params, run_plainly(implementation), strict=True):
            torch.testing.assert_close(p.detach().as_subclass(Tensor), a)


@every_implementation
@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("clip", [True, False])
def test_zero_tensors_are_zero_gradients(implementation, before, clip):
    """They have no memory, but are of type Tensor; also after steps that were ordinary."""

    def run(make_zero: Any) -> list[Tensor]:
        params = [nn.Parameter(v) for v in parameter_values()]
        optimizer = make_novograd(implementation, params, 0.1, weight_decay=0.01)
        for step in range(before + 2):
            for p, g in zip(params, gradient_values(step), strict=True):
                p.grad = g if step < before else make_zero(g.shape)
            if clip:
                transform_gradients(optimizer, [ClipGlobalNorm(0.5), Larc(trust=0.01)])
            optimizer.step()
        return [*(p.detach() for p in params), *(s["exp_avg"] for s in optimizer.state.values())]

    with running(implementation):
        for a, b in zip(run(torch._efficientzerotensor), run(torch.zeros), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


@every_implementation
def test_fake_tensors_step_without_values(implementation):
    with running(implementation), FakeTensorMode():
        params = [nn.Parameter(torch.ones(3, 4)), nn.Parameter(torch.ones(5))]
        for p in params:
            p.grad = torch.ones_like(p)
    assert not is_readable(params[0])
    with running(implementation):
        optimizer = make_novograd(implementation, params, 0.1, amsgrad=True)
        for transforms in ([ClipGlobalNorm(0.5)], []):
            transform_gradients(optimizer, transforms)
            optimizer.step()
    assert all(isinstance(t, FakeTensor) for s in optimizer.state.values() for t in s.values())


@every_implementation
def test_functionalised_steps(implementation):
    """`functionalize` turns in-place operations into others; its tensors are of type Tensor."""

    def train(values: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
        params = [v * 1 for v in values]
        optimizer = make_novograd(implementation, params, 0.1, weight_decay=0.01)
        for _ in range(2):
            for p, g in zip(params, gradients, strict=True):
                p.grad = g
            optimizer.step()
        return params

    values, gradients = parameter_values(), gradient_values(0)
    with running(implementation):
        functional = torch.func.functionalize(train)(values, gradients)
        for a, b in zip(functional, train(values, gradients), strict=True):
            torch.testing.assert_close(a, b)


def test_norms_inside_vmap():
    batch = torch.randn(4, 3, 5)
    each = torch.vmap(lambda g: squared_norms([g, g.t()]))(batch)
    for norms, g in zip(each.tolist(), batch, strict=True):
        assert norms == pytest.approx([exact_square(g)] * 2, rel=1e-12)


def test_what_has_addresses():
    plain = torch.ones(3)
    assert list(addresses([plain, plain]) or []) == [plain.data_ptr()] * 2
    assert addresses([torch.ones(0), plain]) is not None
    assert addresses([plain, torch._efficientzerotensor(3)]) is None
    assert addresses([torch.ones(3, device="meta")]) is None
    assert addresses([torch._to_functional_tensor(plain)]) is None
    assert addresses([torch.eye(3).to_sparse()]) is None
    assert addresses([TwoTensor(plain, plain)]) is None


def test_the_kernel_refuses_what_is_not_contiguous():
    with pytest.raises(ValueError, match="contiguous"):
        native.squared_norms([torch.ones(6)[::2]])


@every_implementation
def test_conjugated_gradients(implementation):
    z = nn.Parameter(torch.ones(3, dtype=torch.complex64))
    w = nn.Parameter(torch.ones(3, dtype=torch.complex64))
    g = torch.randn(3, dtype=torch.complex64)
    z.grad, w.grad = g.conj(), g.conj().resolve_conj()
    assert z.grad.is_conj()
    options: dict[str, Any] = {"foreach": implementation == "foreach"}
    NovoGrad([z], 0.1, **options).step()
    NovoGrad([w], 0.1, **options).step()
    assert torch.equal(z, w)
