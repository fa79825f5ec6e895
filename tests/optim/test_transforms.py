"""Clipping, LARC and chains: equal to transforming the gradients first and stepping then."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from optim import ClipGlobalNorm, Larc, NovoGrad, build_optimizer, transform_gradients
from optim.transforms import Transform
from tests.optim.implementations import every_implementation, make_novograd, running

CHAINS: dict[str, list[Transform]] = {
    "clip": [ClipGlobalNorm(0.25)],
    "loose_clip": [ClipGlobalNorm(1e6)],
    "larc": [Larc(trust=0.01)],
    "larc_scale": [Larc(trust=0.01, mode="scale")],
    "clip_then_larc": [ClipGlobalNorm(0.25), Larc(trust=0.01)],
    "larc_then_clip": [Larc(trust=0.01), ClipGlobalNorm(0.25)],
}


def parameters(dtype=torch.float64):
    torch.manual_seed(0)
    shapes = [(4, 5), (7,), (3, 2, 2), (6,)]
    return [nn.Parameter(torch.randn(s, dtype=dtype)) for s in shapes]


def set_gradients(params, step):
    generator = torch.Generator().manual_seed(step)
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p.dtype)


def larc_by_hand(larc, params, lr):
    for p in params:
        w, g = p.detach().norm(), p.grad.norm()
        if larc.mode == "clip":
            factor = min(max(larc.trust * w / (lr * (g + larc.eps)), larc.min_update), 1.0)
        else:
            factor = max(larc.trust * w / (g + larc.eps), larc.min_update)
        p.grad.mul_(factor)


@every_implementation
@pytest.mark.parametrize("chain", CHAINS)
def test_novograd_with_norms_handed_over_equals_transform_then_step(implementation, chain):
    fast, slow = parameters(), parameters()
    with running(implementation):
        groups = [{"params": fast[:2]}, {"params": fast[2:], "weight_decay": 0.1}]
        first = make_novograd(implementation, groups, 0.05, (0.9, 0.5), maximize=True)
        groups = [{"params": slow[:2]}, {"params": slow[2:], "weight_decay": 0.1}]
        second = make_novograd(implementation, groups, 0.05, (0.9, 0.5), maximize=True)
        for step in range(4):
            set_gradients(fast, step)
            set_gradients(slow, step)
            if step == 1:
                fast[1].grad = slow[1].grad = None
            kept = [copy.deepcopy(p.grad) for p in fast]
            norm = transform_gradients(first, CHAINS[chain])
            with_gradient = [p for p in slow if p.grad is not None]
            by_hand = torch.cat([p.grad.flatten() for p in with_gradient]).norm()
            assert norm.item() == pytest.approx(by_hand.item(), rel=1e-14)
            for transform in CHAINS[chain]:
                if isinstance(transform, ClipGlobalNorm):
                    nn.utils.clip_grad_norm_(slow, transform.max_norm)
                else:
                    larc_by_hand(transform, with_gradient, 0.05)
            first.step()
            second.step()
            for p, grad in zip(fast, kept, strict=True):  # left alone
                assert grad is None or torch.equal(p.grad, grad)
    for p, q in zip(fast, slow, strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("chain", CHAINS)
def test_other_optimizers_get_scaled_gradients(name, chain):
    ours, hand = parameters(), parameters()
    optimizer = build_optimizer(name, ours, lr=0.05)
    set_gradients(ours, 0)
    set_gradients(hand, 0)
    transform_gradients(optimizer, CHAINS[chain])
    for transform in CHAINS[chain]:
        if isinstance(transform, ClipGlobalNorm):
            nn.utils.clip_grad_norm_(hand, transform.max_norm)
        else:
            larc_by_hand(transform, hand, 0.05)
    for p, q in zip(ours, hand, strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-14, atol=0)


def test_larc_cancels_for_novograd_without_averaging_of_v():
    """beta2 = 0 divides by the norm of the already scaled gradient (up to eps)."""
    plain, with_larc = parameters(), parameters()
    first = NovoGrad(plain, 0.05, (0.9, 0.0), eps=0.0)
    second = NovoGrad(with_larc, 0.05, (0.9, 0.0), eps=0.0)
    third_params = parameters()
    third = NovoGrad(third_params, 0.05, (0.9, 0.9), eps=0.0)
    for step in range(4):
        for params in (plain, with_larc, third_params):
            set_gradients(params, step)
        first.step()
        transform_gradients(second, [Larc(trust=0.001)])
        second.step()
        transform_gradients(third, [Larc(trust=0.001)])
        third.step()
    for p, q in zip(plain, with_larc, strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-14)
    assert any(
        (p - q).abs().max() > 1e-4 for p, q in zip(plain, third_params, strict=True)
    )  # it does not cancel otherwise


def test_larc_of_fresh_zero_weights_and_of_a_zero_learning_rate():
    zero = nn.Parameter(torch.zeros(3))
    optimizer = build_optimizer("sgd", [zero], lr=0.1)
    zero.grad = torch.ones(3)
    transform_gradients(optimizer, [Larc()])
    assert zero.grad.tolist() == pytest.approx([1e-7] * 3)  # min_update, as in the reference
    optimizer.param_groups[0]["lr"] = 0.0  # the first step of a warm-up
    zero.grad = torch.ones(3)
    transform_gradients(optimizer, [Larc()])
    assert zero.grad.tolist() == [1.0] * 3


def test_changing_gradients_after_the_hand_over_is_an_error():
    params = parameters()
    optimizer = NovoGrad(params, 0.1)
    set_gradients(params, 0)
    transform_gradients(optimizer, [ClipGlobalNorm(1.0)])
    params[0].grad.mul_(2)
    with pytest.raises(RuntimeError, match="gradients changed after their norms"):
        optimizer.step()
    optimizer.step()  # the norms are forgotten, the step is an ordinary one


def test_skipped_steps_leave_no_stale_norms():
    """GradScaler may skip a step after the transform; zero_grad then forgets the norms."""
    params, others = parameters(), parameters()
    optimizer, plain = NovoGrad(params, 0.1), NovoGrad(others, 0.1)
    set_gradients(params, 0)
    transform_gradients(optimizer, [ClipGlobalNorm(1e-3)])
    optimizer.zero_grad()
    set_gradients(params, 1)
    set_gradients(others, 1)
    optimizer.step()
    plain.step()
    for p, q in zip(params, others, strict=True):
        assert torch.equal(p, q)


def test_no_gradients_and_no_transforms():
    params = parameters()
    optimizer = NovoGrad(params, 0.1)
    assert transform_gradients(optimizer, [ClipGlobalNorm(1.0)]).item() == 0.0
    set_gradients(params, 0)
    norm = transform_gradients(optimizer, [])  # the norm alone, for the log
    assert norm.item() == pytest.approx(torch.cat([p.grad.flatten() for p in params]).norm().item())


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_limits_are_refused(value):
    with pytest.raises(ValueError, match="max_norm must be finite and positive"):
        ClipGlobalNorm(value)


@pytest.mark.parametrize(
    "options", [{"mode": "clamp"}, {"trust": -1.0}, {"eps": float("nan")}, {"min_update": -1e-7}]
)
def test_bad_larc_options_are_refused(options):
    with pytest.raises(ValueError, match="LARC: "):
        Larc(**options)
