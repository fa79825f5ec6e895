"""What torch's tools expect beyond its suite: defaults, duplicates, GradScaler, dynamo."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from optim import NovoGrad
from tests.optim.torch_optimizer_inputs import weight_and_bias


def test_a_learning_rate_is_not_needed():
    """Tools construct optimizers without one."""
    assert NovoGrad(weight_and_bias()).defaults["lr"] == 0.01


@pytest.mark.parametrize("named", [False, True])
def test_a_parameter_that_is_listed_twice_moves_once(named):
    p, q, twin = (nn.Parameter(torch.ones(3)) for _ in range(3))
    listed: Any = [("p", p), ("q", q), ("p", p)] if named else [p, q, p]
    with pytest.warns(UserWarning, match="duplicate parameters"):
        optimizer = NovoGrad(listed, 0.1)
    plain = NovoGrad([twin], 0.1)
    for t in (p, q, twin):
        t.grad = torch.ones(3)
    optimizer.step()
    plain.step()
    assert torch.equal(p, twin)
    assert [id(t) for t in optimizer.param_groups[0]["params"]] == [id(p), id(q)]
    assert optimizer.param_groups[0].get("param_names", ["p", "q"]) == ["p", "q"]
    with pytest.raises(ValueError, match="more than one parameter group"):
        optimizer.add_param_group({"params": [("p", p)] if named else [p]})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("capturable", [False, True])
def test_a_refused_fused_step_leaves_no_state(capturable):
    device = "cpu" if capturable else "meta"
    p = nn.Parameter(torch.ones(2, device=device))
    p.grad = torch.ones_like(p)
    optimizer = NovoGrad([p], fused=True, capturable=capturable)
    message = "`fused=True` .*requires .*params .*, not " + ("on cpu" if capturable else "torch")
    with pytest.raises(RuntimeError, match=message):
        optimizer.step()
    assert optimizer.state == {}
    if not capturable:  # materialised, as torch's deferred initialisation does it
        q = nn.Parameter(torch.ones(2))
        q.grad = torch.ones(2)
        optimizer.param_groups[0]["params"] = [q]
        optimizer.step()
        assert (q < 1).all()


@pytest.mark.parametrize("overflow", [False, True])
@pytest.mark.parametrize(
    ("dtype", "clip"),
    [
        (torch.float32, False),
        (torch.float32, True),
        (torch.bfloat16, True),
        (torch.bfloat16, False),
        (torch.float16, False),  # GradScaler.unscale_ refuses fp16 gradients
    ],
)
def test_grad_scaler_leaves_the_gradients_that_fused_adam_leaves(overflow, dtype, clip):
    gradients = []
    for make in (NovoGrad, torch.optim.Adam):
        p = nn.Parameter(torch.ones(3, dtype=dtype))
        optimizer: Any = make([p], lr=0.1, fused=True)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        scaler.scale(torch.ones(()))
        p.grad = torch.full((3,), torch.inf if overflow else 2048.0, dtype=dtype)
        if clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_([p], 1.0)
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == (512.0 if overflow else 1024.0)
        assert (p == 1).all().item() == overflow
        gradients.append(p.grad)
    torch.testing.assert_close(*gradients, rtol=0, atol=0, equal_nan=True)


def test_a_compiled_function_may_train_and_add_groups():
    """torch keeps dynamo out of zero_grad and add_param_group; so does NovoGrad."""
    torch.compiler.reset()
    params, more = weight_and_bias(), weight_and_bias()
    optimizer = NovoGrad(params, torch.tensor(0.05))
    x = torch.ones(5)

    @torch.compile(backend="eager")
    def train() -> Tensor:
        optimizer.zero_grad()
        loss = (params[0].mv(x) + params[1]).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    losses = [train().item() for _ in range(5)]
    assert losses[-1] < losses[0]

    @torch.compile(backend="eager")
    def grow() -> None:
        optimizer.add_param_group({"params": more, "lr": 0.5})

    grow()
    assert optimizer.param_groups[1]["lr"] == 0.5
    torch.compiler.reset()
