"""Where torch's suite assumes what NovoGrad is not: each difference, and why."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from optim import NovoGrad
from tests.optim.torch_optimizer_inputs import closure_of, weight_and_bias


def test_exception_a_complex_tensor_is_one_layer_not_two():
    """torch compares a complex tensor with its real and imaginary parts as two parameters, which
    holds for pointwise methods; NovoGrad divides by one norm of both."""
    z = nn.Parameter(torch.tensor([3.0 + 4.0j]))
    z.grad = torch.tensor([3.0 + 4.0j])
    optimizer = NovoGrad([z], 1.0, (0.0, 0.0))
    optimizer.step()
    assert optimizer.state[z]["exp_avg_sq"].item() == 25.0
    torch.testing.assert_close(z.detach(), torch.tensor([3.0 + 4.0j]) * 0.8)


def test_exception_there_is_no_step_in_the_state():
    """Nothing is corrected for bias, so steps are not counted: `state["step"]` does not exist."""
    params = weight_and_bias()
    optimizer = NovoGrad(params, amsgrad=True)
    optimizer.step(closure_of(params, optimizer))
    names = {name for state in optimizer.state.values() for name in state}
    assert names == {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}


def test_exception_v_is_a_scalar_in_fp32_whatever_the_parameter():
    """torch expects state of the parameter's shape and dtype."""
    p = nn.Parameter(torch.ones(4, 3, dtype=torch.bfloat16))
    p.grad = torch.ones_like(p)
    optimizer = NovoGrad([p])
    optimizer.step()
    v = optimizer.state[p]["exp_avg_sq"]
    assert v.shape == ()
    assert v.dtype == torch.float32


def test_exception_the_cpu_default_is_fused_not_the_loop():
    """torch's CPU default is the single-tensor loop; NovoGrad's kernel is exact and faster. No
    global switch to foreach is looked at."""
    defaults = NovoGrad(weight_and_bias()).defaults
    assert defaults["foreach"] is None
    assert defaults["fused"] is None


@pytest.mark.parametrize("option", [{"differentiable": True}, {"betas": (torch.tensor(0.9), 0.2)}])
def test_exception_steps_are_not_differentiable_and_betas_are_numbers(option):
    with pytest.raises((TypeError, ValueError)):
        NovoGrad(weight_and_bias(), **option)


def test_exception_sparse_gradients_are_refused():
    """The norm of a sparse gradient is cheap, but momentum and decay make every update dense."""
    embedding = nn.Embedding(5, 3, sparse=True)
    optimizer = NovoGrad(embedding.parameters())
    embedding(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(RuntimeError, match="sparse gradients are not supported"):
        optimizer.step()


def test_exception_momentum_is_called_beta1():
    """Schedulers that look for a group's `momentum` find `betas` instead, as with Adam."""
    group = NovoGrad(weight_and_bias()).param_groups[0]
    assert "momentum" not in group
    assert "betas" in group
