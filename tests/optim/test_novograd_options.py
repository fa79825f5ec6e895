"""Every option in every form, in fp32, on sizes that take every branch of the kernels."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from optim import ClipGlobalNorm, Larc, NovoGrad, novograd_eager, transform_gradients
from tests.optim.algorithm1 import Algorithm1
from tests.optim.implementations import every_implementation, make_novograd, running

SHAPES = [(7,), (40, 30), (40_000,), (33_000, 3)]  # small, several blocks, one thread, all threads
VARIANTS = list(
    itertools.product([False, True], [False, True], ["moment", "update"], [False, True])
)


@every_implementation
@pytest.mark.parametrize(("grad_averaging", "amsgrad", "decay", "maximize"), VARIANTS)
@pytest.mark.parametrize("clipped", [False, True])
def test_every_option(
    implementation, grad_averaging, amsgrad, decay, maximize, clipped, monkeypatch
):
    monkeypatch.setattr(novograd_eager, "_WIDENED_AT_ONCE", 50_000)
    options = {
        "grad_averaging": grad_averaging,
        "amsgrad": amsgrad,
        "decay": decay,
        "maximize": maximize,
    }
    rng = np.random.default_rng(7)
    start = [rng.standard_normal(s).astype(np.float32) for s in SHAPES]
    reference = Algorithm1([w.astype(float) for w in start], 0.1, 0.9, 0.5, 1e-8, 0.1, **options)
    params = [torch.nn.Parameter(torch.tensor(w)) for w in start]
    with running(implementation):
        optimizer = make_novograd(implementation, params, 0.1, (0.9, 0.5), 1e-8, 0.1, **options)
        for step in range(3):
            gradients = [(10.0**-step * rng.standard_normal(s)).astype(np.float32) for s in SHAPES]
            for p, g in zip(params, gradients, strict=True):
                p.grad = torch.tensor(g)
            wide = [g.astype(float) for g in gradients]
            if clipped:
                transform_gradients(optimizer, [ClipGlobalNorm(1.0)])
                total = np.sqrt(sum(np.square(g).sum() for g in wide))
                wide = [g * min(1.0, 1.0 / (total + 1e-6)) for g in wide]
            optimizer.step()
            reference.step(wide)  # type: ignore[arg-type]
    for p, w in zip(params, reference.weights, strict=True):
        error = np.abs(p.detach().numpy() - w) / np.maximum(np.abs(w), 1.0)
        assert error.max() < 3 * 4 * 6e-8  # three steps, a few roundings each
    for p, v in zip(params, reference.v, strict=True):
        assert optimizer.state[p]["exp_avg_sq"].item() == pytest.approx(v, rel=1e-6)


@every_implementation
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_larger_than_a_chunk(implementation, dtype, monkeypatch):
    monkeypatch.setattr(novograd_eager, "_WIDENED_AT_ONCE", 1000)
    torch.manual_seed(0)
    values = [torch.randn(2500).to(dtype), torch.randn(600).to(dtype), torch.randn(700).to(dtype)]
    ours, single = ([torch.nn.Parameter(v.clone()) for v in values] for _ in range(2))
    with running(implementation):
        first = make_novograd(implementation, ours, 0.1, weight_decay=0.1)
        second = NovoGrad(single, 0.1, weight_decay=0.1, foreach=False, fused=False)
        for _ in range(3):
            for p, q in zip(ours, single, strict=True):
                p.grad = torch.randn(p.shape).to(dtype)
                q.grad = p.grad.clone()
            first.step()
            second.step()
    for p, q in zip(ours, single, strict=True):
        torch.testing.assert_close(p, q, rtol=torch.finfo(dtype).eps, atol=1e-6)


def test_single_tensor_stays_single_tensor(monkeypatch):
    """foreach=False alone asks for it, also at the third step."""
    from optim import native

    def refuse(*_: object) -> None:
        raise AssertionError("the kernel was called")

    monkeypatch.setattr(native.TensorTable, "step", refuse)
    p = torch.nn.Parameter(torch.ones(3))
    optimizer = NovoGrad([p], 0.1, foreach=False)
    for _ in range(4):
        p.grad = torch.ones(3)
        optimizer.step()


def test_transforms_of_two_calls_add_up():
    p, q = (torch.nn.Parameter(torch.ones(4, dtype=torch.float64)) for _ in range(2))
    ours, other = NovoGrad([p], 0.1), NovoGrad([q], 0.1)
    p.grad = torch.full((4,), 10.0, dtype=torch.float64)
    assert transform_gradients(ours, [ClipGlobalNorm(1.0)]).item() == pytest.approx(20.0)
    assert transform_gradients(ours, [Larc(0.05)]).item() == pytest.approx(1.0)
    q.grad = torch.full((4,), 10.0, dtype=torch.float64)
    transform_gradients(other, [ClipGlobalNorm(1.0), Larc(0.05)])
    ours.step()
    other.step()
    assert torch.equal(p, q)
    assert ours.state[p]["exp_avg_sq"].item() == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@every_implementation
def test_a_model_that_changes_its_dtype_takes_its_state_along(implementation, dtype):
    p = torch.nn.Parameter(torch.ones(50))
    with running(implementation):
        optimizer = make_novograd(implementation, [p], 0.01)
        for step in range(6):
            if step == 3:
                p.data = p.data.to(dtype)
                p.grad = None
            p.grad = torch.ones(50).to(p.dtype)
            optimizer.step()
    state = optimizer.state[p]
    assert state["exp_avg"].dtype == dtype
    assert state["exp_avg_sq"].dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    exact = Algorithm1([np.ones(50)], 0.01)
    for _ in range(6):
        exact.step([np.ones(50)])
    assert np.allclose(p.detach().double().numpy(), exact.weights[0], rtol=0, atol=0.02)


@every_implementation
def test_the_state_of_another_model_is_refused(implementation):
    small, large = torch.nn.Parameter(torch.ones(4)), torch.nn.Parameter(torch.ones(100_000))
    with running(implementation):
        donor = make_novograd(implementation, [small], 0.1)
        small.grad = torch.ones(4)
        donor.step()
        optimizer = make_novograd(implementation, [large], 0.1)
        optimizer.load_state_dict(donor.state_dict())
        large.grad = torch.ones(100_000)
        with pytest.raises(RuntimeError, match=r"shape \(100000,\) has the state of one of shape"):
            optimizer.step()


def test_the_state_of_an_adam_is_refused_before_anything_changes():
    p = torch.nn.Parameter(torch.ones(4))
    adam = torch.optim.Adam([p], 0.5)
    p.grad = torch.ones(4)
    adam.step()
    optimizer = NovoGrad([p], 0.1)
    with pytest.raises(ValueError, match=r"shape \(4,\): is this the state of an Adam"):
        optimizer.load_state_dict(adam.state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert not optimizer.state


def test_group_keys_of_the_user_are_kept_and_typos_are_not():
    p = torch.nn.Parameter(torch.ones(4))
    optimizer = NovoGrad([{"params": [p], "name": "body", "lr_scale": 0.5}], 0.1)
    assert optimizer.param_groups[0]["lr_scale"] == 0.5
    with pytest.raises(ValueError, match="did you mean 'amsgrad'"):
        NovoGrad([{"params": [p], "amsgard": True}], 0.1)


@pytest.mark.parametrize("lengths", [(1,), (3, 1), ()])
def test_vectors_of_the_wrong_length_are_not_handed_over(lengths):
    params = [torch.nn.Parameter(torch.ones(4)) for _ in range(3)]
    for p in params:
        p.grad = torch.ones(4)
    vectors = [torch.ones(n, dtype=torch.float64) for n in lengths]
    with pytest.raises(ValueError, match=r"needs a vector per parameter group.*\[3\] entries"):
        NovoGrad(params, 0.1).hand_over(vectors, vectors)


def test_gradscaler_is_told_about_groups_that_do_not_unscale():
    p, q = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    optimizer = NovoGrad([p], 0.1, fused=True)
    assert optimizer._step_supports_amp_scaling
    optimizer.add_param_group({"params": [q], "fused": False})
    assert not optimizer._step_supports_amp_scaling


def test_a_fused_step_counts_as_a_change_of_the_parameter():
    """So that autograd notices a backward pass through a weight that has moved since."""
    p = torch.nn.Parameter(torch.ones(2))
    optimizer = NovoGrad([p], 0.1)
    for _ in range(3):
        before = p._version
        p.grad = torch.ones(2)
        optimizer.step()
        assert p._version > before
