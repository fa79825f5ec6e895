"""fp16 and bf16 parameters: the kernel widens them in pieces, and rounds once at the end."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from optim import NovoGrad
from optim.norms import squared_norms

SIZES = (1, 7, 8, 9, 1023, 1024, 1025, 65_536, 65_543, 140_000)  # around the sizes of the pieces
every_dtype = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)


def drawn(dtype: torch.dtype, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator).to(dtype) for size in SIZES]


@every_dtype
def test_norms_are_exact(dtype):
    """Also of values below the normal numbers of fp16."""
    for scale in (1.0, 2.0**-24, 2.0**10):
        tensors = [(t.float() * scale).to(dtype) for t in drawn(dtype, 0)]
        expected = torch.stack([t.double().square().sum() for t in tensors])
        torch.testing.assert_close(squared_norms(tensors), expected, rtol=1e-13, atol=0)


@every_dtype
@pytest.mark.parametrize("decay", ["moment", "update"])
def test_a_step_is_the_float32_step_rounded_once(dtype, decay):
    """To one unit in the last place: products and sums may be fused before the rounding."""
    weights, gradients = drawn(dtype, 1), [drawn(dtype, 2), drawn(dtype, 3)]

    def stepped(
        given: list[torch.Tensor], grads: list[torch.Tensor], state: dict[str, Any] | None
    ) -> tuple[list[torch.Tensor], NovoGrad]:
        params = [nn.Parameter(w.clone()) for w in given]
        optimizer = NovoGrad(params, 0.1, weight_decay=0.01, decay=decay)
        for p, g in zip(params, grads, strict=True):
            p.grad = g.to(p.dtype)
        if state is not None:
            optimizer.load_state_dict(copy.deepcopy(state))
        optimizer.step()
        return [p.detach() for p in params], optimizer

    given: list[torch.Tensor] = weights
    state: dict[str, Any] | None = None
    for grads in gradients:
        half, optimizer = stepped(given, grads, state)
        wide, other = stepped([w.float() for w in given], grads, state)
        eps = torch.finfo(dtype).eps
        for p, q in zip(half, wide, strict=True):
            torch.testing.assert_close(p, q.to(dtype), rtol=eps, atol=0)
        for s, t in zip(optimizer.state.values(), other.state.values(), strict=True):
            assert s["exp_avg"].dtype == dtype
            torch.testing.assert_close(s["exp_avg"], t["exp_avg"].to(dtype), rtol=eps, atol=0)
            assert torch.equal(s["exp_avg_sq"], t["exp_avg_sq"])
        given, state = half, optimizer.state_dict()


@every_dtype
@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_values_that_are_not_finite_stay_in_their_tensor(dtype, value):
    params = [nn.Parameter(w) for w in drawn(dtype, 4)]
    for p, g in zip(params, drawn(dtype, 5), strict=True):
        p.grad = g
    assert params[5].grad is not None
    params[5].grad[1000] = value
    NovoGrad(params, 0.1).step()
    finite = [bool(p.isfinite().all()) for p in params]
    assert finite == [i != 5 for i in range(len(params))]
