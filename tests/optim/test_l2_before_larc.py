"""L2 ahead of LARC, the order of the paper's speech code, transcribed in NumPy float64.

The reference adds the L2 term to the gradient, clips the global norm, lets LARC scale each tensor
(g + l2 w together) and then steps an optimizer without decay. NovoGrad decays by itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from optim import AddL2, ClipGlobalNorm, Larc, NovoGrad, build_optimizer, transform_gradients
from optim.transforms import Gradients, Transform
from tests.optim.algorithm1 import Algorithm1

Array = NDArray[np.float64]
SHAPES = [(4, 5), (7,), (3, 2, 2), (6,)]
LR, L2, TRUST, MAX_NORM = 0.05, 0.1, 0.002, 2.0


class Reference:
    """Chain and optimizer of the reference, from its description alone."""

    def __init__(self, name: str, weights: list[Array], l2s: list[float], mode: str) -> None:
        self.name, self.l2s, self.mode, self.t = name, l2s, mode, 0
        self.weights = [w.copy() for w in weights]
        self.first = [np.zeros_like(w) for w in weights]
        self.second = [np.zeros_like(w) for w in weights]
        self.novograd = Algorithm1(weights, LR, 0.9, 0.5, weight_decay=L2)

    def step(self, gradients: list[Array]) -> None:
        own_decay = self.name == "novograd"
        if not own_decay:
            gradients = [
                g + l2 * w for g, w, l2 in zip(gradients, self.weights, self.l2s, strict=True)
            ]
        total = float(np.sqrt(sum(np.sum(g * g) for g in gradients)))
        gradients = [g * min(1.0, MAX_NORM / (total + 1e-6)) for g in gradients]
        weights = self.novograd.weights if own_decay else self.weights
        gradients = [self.larc(g, w) for g, w in zip(gradients, weights, strict=True)]
        self.t += 1
        if own_decay:
            self.novograd.step(list(gradients))
            self.weights = self.novograd.weights
            return
        for i, g in enumerate(gradients):
            self.weights[i] = self.weights[i] - LR * self.direction(i, g)

    def larc(self, g: Array, w: Array) -> Array:
        w_norm, g_norm = float(np.linalg.norm(w)), float(np.linalg.norm(g))
        if self.mode == "clip":
            return g * min(max(TRUST * w_norm / (LR * (g_norm + 1e-7)), 1e-7), 1.0)
        return g * max(TRUST * w_norm / (g_norm + 1e-7), 1e-7)

    def direction(self, i: int, g: Array) -> Array:
        if self.name == "sgd":
            self.first[i] = 0.9 * self.first[i] + g
            return self.first[i]
        self.first[i] = 0.9 * self.first[i] + 0.1 * g
        self.second[i] = 0.999 * self.second[i] + 0.001 * g * g
        corrected = self.second[i] / (1 - 0.999**self.t)
        return self.first[i] / (1 - 0.9**self.t) / (np.sqrt(corrected) + 1e-8)


class Rescale:
    """What the engine puts first: an earlier factor that L2 must not be scaled by."""

    def factors(self, gradients: Gradients) -> Tensor:
        return torch.tensor(0.5, dtype=torch.float64)


def parameters(dtype: torch.dtype = torch.float64) -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(s, dtype=torch.float64).to(dtype)) for s in SHAPES]


def gradients(step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(s, generator=generator, dtype=torch.float64) for s in SHAPES]


def options_of(name: str) -> dict[str, Any]:
    return {"betas": (0.9, 0.5), "weight_decay": L2} if name == "novograd" else {}


@pytest.mark.parametrize("mode", ["clip", "scale"])
@pytest.mark.parametrize("rescaled", [False, True])
@pytest.mark.parametrize("name", ["sgd", "adam", "novograd"])
def test_the_reference_order(name, rescaled, mode):
    params = parameters()
    l2s = [L2, 0.0, 2 * L2, 0.0]
    values: list[Any] = [p.detach().numpy() for p in params]
    reference = Reference(name, values, l2s, mode)
    groups: list[Any] = [{"params": [p]} for p in params]
    if name != "novograd":
        groups = [{"params": [p], "weight_decay": d} for p, d in zip(params, l2s, strict=True)]
    optimizer = build_optimizer(name, groups, l2_as_transform=True, lr=LR, **options_of(name))
    chain: list[Transform] = [AddL2(), ClipGlobalNorm(MAX_NORM), Larc(trust=TRUST, mode=mode)]
    if rescaled:
        chain.insert(0, Rescale())
    for step in range(4):
        for p, g in zip(params, gradients(step), strict=True):
            p.grad = g * 2 if rescaled else g.clone()
        reference.step([np.asarray(g) for g in gradients(step)])
        transform_gradients(optimizer, chain)
        optimizer.step()
    for p, w in zip(params, reference.weights, strict=True):
        np.testing.assert_allclose(p.detach().numpy(), w, rtol=0, atol=2e-15)


def test_the_optimizers_own_l2_is_added_after_larc_and_far_too_strong():
    """What the order is about: LARC's factor is about 0.004 here, and decay escapes it."""
    steps = []
    for before in (True, False):
        p = nn.Parameter(torch.ones(10, dtype=torch.float64))
        p.grad = torch.zeros(10, dtype=torch.float64)
        p.grad[0] = 20.0
        optimizer = build_optimizer(
            "sgd", [p], l2_as_transform=before, lr=LR, momentum=0.0, weight_decay=L2
        )
        chain: list[Transform] = [AddL2()] if before else []
        transform_gradients(optimizer, [*chain, Larc(trust=TRUST)])
        optimizer.step()
        steps.append(1.0 - p[1].item())  # an element that only the decay moves
    assert steps[1] / steps[0] > 100


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_alone_it_is_the_optimizers_own_l2(name):
    """Without transforms after it the order makes no difference."""
    ours, torchs = parameters(), parameters()
    moved = build_optimizer(name, ours, l2_as_transform=True, lr=LR, weight_decay=L2)
    plain = build_optimizer(name, torchs, lr=LR, weight_decay=L2)
    assert {group["weight_decay"] for group in moved.param_groups} == {0.0}
    for step in range(3):
        for p, q, g in zip(ours, torchs, gradients(step), strict=True):
            p.grad, q.grad = g.clone(), g.clone()
        transform_gradients(moved, [AddL2()])
        moved.step()
        plain.step()
    for p, q in zip(ours, torchs, strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_gradients_are_rounded_once(dtype):
    params = parameters(dtype)
    optimizer = build_optimizer("sgd", params, l2_as_transform=True, lr=LR, weight_decay=0.3)
    exact = []
    for p, g in zip(params, gradients(0), strict=True):
        p.grad = g.to(dtype)
        exact.append((p.grad.float() * 0.5 + 0.3 * p.detach().float()).to(dtype))
    transform_gradients(optimizer, [Rescale(), AddL2()])
    for p, g in zip(params, exact, strict=True):
        torch.testing.assert_close(p.grad, g, rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["expanded", "zero"])
def test_gradients_that_cannot_be_written_to_are_replaced(kind):
    p = nn.Parameter(torch.arange(4.0))
    p.grad = torch.ones(1).expand(4) if kind == "expanded" else torch._efficientzerotensor(4)
    optimizer = build_optimizer("sgd", [p], l2_as_transform=True, lr=LR, weight_decay=0.5)
    wanted = p.grad * 0.5 + 0.5 * p.detach()
    transform_gradients(optimizer, [Rescale(), AddL2()])
    assert p.grad.tolist() == wanted.tolist()


@pytest.mark.parametrize("name", ["novograd", "adamw"])
def test_other_decays_stay_the_optimizers(name):
    params = parameters()
    optimizer = build_optimizer(name, params, l2_as_transform=True, lr=LR, weight_decay=L2)
    assert all(g["weight_decay"] == L2 and "l2" not in g for g in optimizer.param_groups)
    for p, g in zip(params, gradients(0), strict=True):
        p.grad = g.clone()
    transform_gradients(optimizer, [AddL2()])
    for p, g in zip(params, gradients(0), strict=True):
        torch.testing.assert_close(p.grad, g, rtol=0, atol=0)


def test_novograd_takes_l2_from_a_group_too():
    """Then g + l2 w is what it normalises."""
    p, q = nn.Parameter(torch.arange(1.0, 4.0)), nn.Parameter(torch.arange(1.0, 4.0))
    ours, plain = NovoGrad([{"params": [p], "l2": 0.5}], LR), NovoGrad([q], LR)
    p.grad = torch.ones(3)
    q.grad = torch.ones(3) + 0.5 * q.detach()
    transform_gradients(ours, [AddL2(), ClipGlobalNorm(100.0)])
    ours.step()
    plain.step()
    torch.testing.assert_close(p, q)


def test_adding_it_twice_is_an_error():
    p = nn.Parameter(torch.ones(3))
    optimizer = build_optimizer("sgd", [p], lr=LR, weight_decay=L2)
    p.grad = torch.ones(3)
    with pytest.raises(ValueError, match=r"AddL2: SGD has weight_decay=0.1 .*l2_as_transform=True"):
        transform_gradients(optimizer, [AddL2()])
