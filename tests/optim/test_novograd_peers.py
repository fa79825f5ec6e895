"""Other NovoGrads as oracles, where they follow the paper, and proof of where they do not."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import nn

from optim import NovoGrad

PEERS = {  # imported when they are made: it takes seconds
    "timm": ("timm.optim", "NvNovoGrad"),
    "torch-optimizer": ("torch_optimizer", "NovoGrad"),
    "monai": ("monai.optimizers", "Novograd"),
    "pytorch-optimizer": ("pytorch_optimizer", "NovoGrad"),
}
every_peer = pytest.mark.parametrize("peer", PEERS)
NVIDIA_FAMILY = ["timm", "torch-optimizer", "monai"]


def make_peer(peer: str, params: list[nn.Parameter], lr: float, **options: Any):
    module, name = PEERS[peer]
    return getattr(importlib.import_module(module), name)(params, lr=lr, **options)


def trajectories(peer: str, gradients: list[list[torch.Tensor]], lr=0.05, **options: Any):
    """Weights after all steps: (ours, theirs), in float64."""
    torch.manual_seed(1)
    start = [torch.randn_like(g) for g in gradients[0]]
    ours, theirs = ([nn.Parameter(w.clone()) for w in start] for _ in range(2))
    optimizer = NovoGrad(ours, lr, **options)
    other = make_peer(peer, theirs, lr, **options)
    for step in gradients:
        for p, q, g in zip(ours, theirs, step, strict=True):
            p.grad, q.grad = g.clone(), g.clone()
        optimizer.step()
        other.step()
    return torch.cat([p.detach().flatten() for p in ours]), torch.cat(
        [p.detach().flatten() for p in theirs]
    )


def random_gradients(steps=5, dtype=torch.float64):
    generator = torch.Generator().manual_seed(2)
    shapes = [(3, 4), (7,), (2, 3, 2, 2)]
    return [
        [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in shapes]
        for _ in range(steps)
    ]


@every_peer
@pytest.mark.parametrize("betas", [(0.95, 0.98), (0.95, 0.25), (0.9, 0.0)])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_ordinary_steps_agree(peer, betas, weight_decay):
    """To the precision of their v, which the NVIDIA family keeps in fp32."""
    options = {"betas": betas, "weight_decay": weight_decay, "eps": 1e-8}
    ours, theirs = trajectories(peer, random_gradients(), **options)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-8)


@pytest.mark.parametrize("peer", NVIDIA_FAMILY)
def test_amsgrad_agrees(peer):
    ours, theirs = trajectories(peer, random_gradients(), betas=(0.95, 0.5), amsgrad=True)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-8)


@pytest.mark.parametrize("peer", NVIDIA_FAMILY)
def test_their_states_continue_in_ours(peer):
    gradients = random_gradients(6, torch.float32)
    params = [nn.Parameter(torch.randn_like(g)) for g in gradients[0]]
    options: dict[str, Any] = {"betas": (0.95, 0.5), "weight_decay": 0.01}
    other = make_peer(peer, params, 0.05, **options)
    for step in gradients[:3]:
        for p, g in zip(params, step, strict=True):
            p.grad = g.clone()
        other.step()
    copies = [nn.Parameter(p.detach().clone()) for p in params]
    ours = NovoGrad(copies, 0.05, **options)
    state = other.state_dict()
    ours.load_state_dict(
        {
            "state": {
                key: {name: torch.as_tensor(value).clone() for name, value in entry.items()}
                for key, entry in state["state"].items()
            },
            "param_groups": state["param_groups"],
        }
    )
    for step in gradients[3:]:
        for p, q, g in zip(params, copies, step, strict=True):
            p.grad, q.grad = g.clone(), g.clone()
        other.step()
        ours.step()
    for p, q in zip(params, copies, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-6)


# Where they differ, as the table in optim/README.md says. Should one of these tests fail after an
# update of a peer, the peer has changed and the table is out of date.


@pytest.mark.parametrize("peer", NVIDIA_FAMILY)
def test_the_nvidia_family_damps_the_first_averaged_moment(peer):
    """The paper's m_1 = g_1 / |g_1| + d w_1 has no factor 1 - beta1."""
    gradients = random_gradients(1)
    ours, theirs = trajectories(peer, gradients, betas=(0.9, 0.25), grad_averaging=True)
    assert (ours - theirs).abs().max() > 1e-3


def test_pytorch_optimizer_amplifies_after_zero_gradients():
    gradients = [[torch.zeros(3, dtype=torch.float64)], [torch.ones(3, dtype=torch.float64)]]
    ours, theirs = trajectories("pytorch-optimizer", gradients, lr=1.0, betas=(0.0, 0.98))
    assert (ours - theirs).abs().max() > 3


@every_peer
def test_they_overwrite_the_gradient(peer):
    p = nn.Parameter(torch.ones(3))
    p.grad = torch.full((3,), 2.0)
    kept = p.grad
    make_peer(peer, [p], 0.1, weight_decay=0.1).step()
    assert kept.tolist() != [2.0, 2.0, 2.0]


@pytest.mark.parametrize("peer", NVIDIA_FAMILY)
def test_they_stop_for_good_after_a_huge_gradient(peer):
    p = nn.Parameter(torch.zeros(3))
    optimizer = make_peer(peer, [p], 0.1, betas=(0.0, 0.25), weight_decay=0.0)
    for size in (1e20, *[1.0] * 100):
        p.grad = torch.full((3,), size)
        optimizer.step()
    assert p.tolist() == [0.0, 0.0, 0.0] or p.isnan().all()


@pytest.mark.parametrize("peer", NVIDIA_FAMILY)
def test_their_v_is_cast_by_loading_under_half_precision(peer):
    p = nn.Parameter(torch.ones(300, dtype=torch.bfloat16))
    optimizer = make_peer(peer, [p], 0.1)
    p.grad = torch.randn(300).bfloat16()
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.state[p]["exp_avg_sq"].dtype == torch.bfloat16
