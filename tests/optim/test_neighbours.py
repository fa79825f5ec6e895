"""The methods that NovoGrad is compared with: each is its library's, and does what it should."""

from __future__ import annotations

import importlib
import math
from typing import Any
from unittest import mock

import pytest
import torch
import yaml
from torch import Tensor, nn

from optim import (
    ClipGlobalNorm,
    Larc,
    build_optimizer,
    build_param_groups,
    transform_gradients,
)
from optim.factory import KINDS
from tests.test_setup import ROOT

LR, DECAY = 0.02, 0.1
SOURCES: dict[str, Any] = {
    "adafactor": lambda ps: torch.optim.Adafactor(ps, lr=LR, weight_decay=DECAY),
    "lamb": lambda ps: of_timm().Lamb(ps, lr=LR, weight_decay=DECAY, max_grad_norm=None),
    "lars": lambda ps: of_timm().Lars(ps, lr=LR, weight_decay=DECAY, momentum=0.9),
    "lion": lambda ps: of_timm().Lion(ps, lr=LR, weight_decay=DECAY),
    "muon": lambda ps: of_timm().Muon(
        ps, lr=LR, weight_decay=DECAY, nesterov=True, ns_coefficients="original"
    ),
}


def of_timm() -> Any:
    """Imported when it is needed: it takes seconds."""
    return importlib.import_module("timm.optim")


every_neighbour = pytest.mark.parametrize("name", SOURCES)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.Flatten(), nn.LayerNorm(8), nn.Linear(8, 6), nn.Linear(6, 4)
    ).double()


def train(net: nn.Module, optimizer: Any, steps: int = 4, transforms: Any = ()) -> None:
    for step in range(steps):
        x = torch.randn(5, 3, 3, 3, generator=torch.Generator().manual_seed(step)).double()
        optimizer.zero_grad()
        net(x).square().sum().backward()
        if transforms:
            transform_gradients(optimizer, transforms)
        optimizer.step()


@every_neighbour
def test_it_is_its_source(name):
    ours, theirs = network(), network()
    train(ours, build_optimizer(name, ours.parameters(), lr=LR, weight_decay=DECAY))
    train(theirs, SOURCES[name](theirs.parameters()))
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(p, q)


@every_neighbour
def test_the_yaml_states_the_factorys_defaults(name):
    text = (ROOT / "configs" / "optimizer" / f"{name}.yaml").read_text()
    stated = yaml.safe_load(text)
    assert stated.pop("name") == name
    assert stated.pop("lr") == "???"
    defaults = {key: value for key, value in KINDS[name].options.items() if key != "lr"}
    assert {k: tuple(v) if isinstance(v, list) else v for k, v in stated.items()} == defaults


@every_neighbour
def test_states_resume_bit_for_bit(name, tmp_path):
    straight, resumed = network(), network()
    train(straight, build_optimizer(name, straight.parameters(), lr=LR), 6)
    first = build_optimizer(name, resumed.parameters(), lr=LR)
    train(resumed, first, 3)
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second = build_optimizer(name, resumed.parameters(), lr=LR)
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for step in range(3, 6):
        x = torch.randn(5, 3, 3, 3, generator=torch.Generator().manual_seed(step)).double()
        second.zero_grad()
        resumed(x).square().sum().backward()
        second.step()
    for p, q in zip(straight.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(p, q)


@every_neighbour
def test_decay_rates_and_clipping_work_as_for_the_others(name):
    """Groups from the same rules; per-tensor rates; the chain of gradient transforms."""
    net, other = network(), network()
    groups = build_param_groups(
        net.named_parameters(), DECAY, decay="matrices", lr=LR, lr_per_tensor="sqrt_size"
    )
    optimizer = build_optimizer(name, groups, lr=LR, l2_as_transform=True)
    for group in optimizer.param_groups:
        root = math.sqrt(group["params"][0].numel())
        assert group["lr"] == LR * root
        assert group["weight_decay"] == (DECAY / root if group["params"][0].dim() > 1 else 0.0)
    plain = build_optimizer(
        name, build_param_groups(other.named_parameters(), DECAY, "matrices"), lr=LR
    )
    train(other, plain, 2, [ClipGlobalNorm(0.1), Larc(trust=0.01)])
    assert all(p.isfinite().all() for p in other.parameters())


@every_neighbour
def test_the_global_norm_is_clipped_before_the_step(name):
    """Not once more inside: LAMB's own clipping is off."""
    ours, hand = network(), network()
    train(ours, build_optimizer(name, ours.parameters(), lr=LR), 2, [ClipGlobalNorm(3.0)])
    source = build_optimizer(name, hand.parameters(), lr=LR)
    for step in range(2):
        x = torch.randn(5, 3, 3, 3, generator=torch.Generator().manual_seed(step)).double()
        source.zero_grad()
        hand(x).square().sum().backward()
        assert nn.utils.clip_grad_norm_(hand.parameters(), 3.0) > 3.0
        source.step()
    for p, q in zip(ours.parameters(), hand.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-7, atol=1e-9)


def stepped(name: str, w: Tensor, gradients: list[Tensor], **options: Any) -> Tensor:
    p = nn.Parameter(w.clone())
    optimizer = build_optimizer(name, [p], lr=LR, weight_decay=DECAY, **options)
    for g in gradients:
        p.grad = g.clone()
        optimizer.step()
    return p.detach()


def values() -> tuple[Tensor, list[Tensor]]:
    generator = torch.Generator().manual_seed(7)
    draws = torch.randn(5, 6, 8, generator=generator, dtype=torch.float64)
    return draws[0], list(draws[1:])


def test_lion_is_its_papers():
    w, gradients = values()
    expected, m = w.clone(), torch.zeros_like(w)
    for g in gradients:
        update = (0.9 * m + 0.1 * g).sign()
        m = 0.99 * m + 0.01 * g
        expected = expected - LR * (update + DECAY * expected)
    torch.testing.assert_close(stepped("lion", w, gradients), expected, rtol=0, atol=1e-14)


def test_lars_is_its_papers():
    w, gradients = values()
    expected, m = w.clone(), torch.zeros_like(w)
    for g in gradients:
        rate = 0.001 * expected.norm() / (g.norm() + DECAY * expected.norm() + 1e-8)
        m = 0.9 * m + rate * (g + DECAY * expected)
        expected = expected - LR * m
    torch.testing.assert_close(stepped("lars", w, gradients), expected, rtol=0, atol=1e-14)


def test_lamb_is_its_papers():
    w, gradients = values()
    expected, m, v = w.clone(), torch.zeros_like(w), torch.zeros_like(w)
    for t, g in enumerate(gradients, 1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        r = (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-6) + DECAY * expected
        expected = expected - LR * expected.norm() / r.norm() * r
    torch.testing.assert_close(stepped("lamb", w, gradients), expected, rtol=0, atol=1e-13)


def test_muon_is_torchs_for_matrices():
    """Up to the bfloat16 of its Newton-Schulz iteration."""
    w, gradients = values()
    p = nn.Parameter(w.clone())
    source = torch.optim.Muon([p], lr=LR, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw")
    for g in gradients:
        p.grad = g.clone()
        source.step()
    ours = stepped("muon", w, gradients)
    moved = (p.detach() - w).norm()
    assert (ours - p.detach()).norm() < 0.02 * moved


def test_without_timm_one_message_says_what_to_install():
    real = importlib.import_module

    def without_timm(name: str, *args: Any) -> Any:
        if name.startswith("timm"):
            raise ModuleNotFoundError(name)
        return real(name, *args)

    with mock.patch.object(importlib, "import_module", without_timm):
        with pytest.raises(ValueError, match="lamb: it is timm's, which is not installed: pip"):
            build_optimizer("lamb", network().parameters(), lr=LR)
        build_optimizer("adafactor", network().parameters(), lr=LR)
