"""NovoGrad against Algorithm 1, transcribed independently in NumPy float64."""

from __future__ import annotations

from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from optim import native
from tests.optim.algorithm1 import Algorithm1
from tests.optim.implementations import every_implementation, make_novograd, running

SHAPES = st.lists(
    st.sampled_from([(), (1,), (7,), (3, 4), (2, 3, 2, 2), (0,), (130,), (41, 31)]),
    min_size=1,
    max_size=4,
)
OPTIONS = st.fixed_dictionaries(
    {
        "beta1": st.sampled_from([0.0, 0.9, 0.95]),
        "beta2": st.sampled_from([0.0, 0.25, 0.98]),
        "eps": st.sampled_from([0.0, 1e-8, 1e-2]),
        "weight_decay": st.sampled_from([0.0, 0.002, 0.1]),
        "grad_averaging": st.booleans(),
        "amsgrad": st.booleans(),
        "decay": st.sampled_from(["moment", "update"]),
        "maximize": st.booleans(),
    }
)
# What a tensor's gradient is like at a step: missing, zero, or noise of a size.
KINDS = st.sampled_from([None, 0.0, 1e-3, 1.0, 1.0, 1.0, 1e3])


def make_gradients(rng: np.random.Generator, shapes: list[Any], kinds: list[list[float | None]]):
    return [
        [
            None if kind is None else kind * rng.standard_normal(s)
            for s, kind in zip(shapes, ks, strict=True)
        ]
        for ks in kinds
    ]


def run_both(implementation, options, weights, gradients, lr=0.02, dtype=torch.float64):
    """(ours, reference) after all steps."""
    reference = Algorithm1(list(weights), lr, **options)
    options = dict(options)
    betas = options.pop("beta1"), options.pop("beta2")
    params = [torch.nn.Parameter(torch.tensor(w, dtype=dtype)) for w in weights]
    with running(implementation):
        optimizer = make_novograd(implementation, params, lr, betas, **options)
        for step in gradients:
            for p, g in zip(params, step, strict=True):
                p.grad = None if g is None else torch.tensor(g, dtype=dtype)
            optimizer.step()
            reference.step(step)
    return params, optimizer, reference


@every_implementation
@hypothesis.given(shapes=SHAPES, options=OPTIONS, seed=st.integers(0, 2**32 - 1), data=st.data())
@hypothesis.settings(max_examples=60, deadline=None, derandomize=True)
def test_float64_equals_the_paper_to_rounding(implementation, shapes, options, seed, data):
    kinds = [[data.draw(KINDS) for _ in shapes] for _ in range(data.draw(st.integers(1, 6)))]
    rng = np.random.default_rng(seed)
    weights = [np.asarray(rng.standard_normal(s)) for s in shapes]
    gradients = make_gradients(rng, shapes, kinds)
    params, _, reference = run_both(implementation, options, weights, gradients)
    for p, w in zip(params, reference.weights, strict=True):
        # A step moves a weight by about lr; one rounding of a weight of size one is 1.1e-16.
        scale = np.maximum(np.abs(w), 1.0)
        assert np.all(np.abs(p.detach().numpy() - w) <= 1e-15 * scale)


@every_implementation
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("decay", ["moment", "update"])
def test_lower_precisions_follow_to_their_own_rounding(implementation, dtype, decay):
    """Weights start as values of the dtype; each step may round a weight and a moment once."""
    rng = np.random.default_rng(0)
    shapes: list[Any] = [(64,), (33, 17), (70_001,)]
    weights = [torch.tensor(rng.standard_normal(s)).to(dtype).double().numpy() for s in shapes]
    gradients = [
        [torch.tensor(rng.standard_normal(s)).to(dtype).double().numpy() for s in shapes]
        for _ in range(4)
    ]
    options = {"beta1": 0.9, "beta2": 0.5, "weight_decay": 0.01, "decay": decay}
    params, optimizer, reference = run_both(
        implementation, options, weights, gradients, dtype=dtype
    )
    unit = torch.finfo(dtype).eps / 2  # largest relative error of one rounding
    # Without temporaries, decay in the update shrinks a weight, and rounds, before it is moved.
    in_two_passes = decay == "update" and implementation in ("foreach", "fused_without_compiler")
    roundings = 4 * (2 if in_two_passes else 1)
    for p, w, v in zip(params, reference.weights, reference.v, strict=True):
        error = np.abs(p.detach().double().numpy() - w)
        assert np.all(error <= roundings * unit * (np.maximum(np.abs(w), 1.0) + 0.5))
        state = optimizer.state[p]
        assert state["exp_avg"].dtype == dtype
        assert state["exp_avg_sq"].dtype == torch.float32
        assert v is not None
        assert abs(state["exp_avg_sq"].item() - v) <= 4e-7 * v  # v itself loses no bits


@pytest.mark.skipif(not native.supports(torch.float32), reason="no C++ compiler")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_number_of_threads_changes_no_bit(dtype):
    def run(threads: int) -> list[torch.nn.Parameter]:
        torch.manual_seed(1)
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        params = [torch.nn.Parameter(torch.randn(n).to(dtype)) for n in (10, 40_000, 300_001)]
        optimizer = make_novograd("fused", params, 0.1, weight_decay=0.01)
        for _ in range(3):
            for p in params:
                p.grad = torch.randn(p.shape).to(dtype)
            optimizer.step()
        torch.set_num_threads(before)
        return params

    for one, three in zip(run(1), run(3), strict=True):
        assert torch.equal(one, three)


@every_implementation
def test_beta2_zero_is_normalised_gradient_descent(implementation):
    """The paper's note 1: the size of the gradient does not matter at all."""
    finals = []
    for scale in (1.0, 64.0):  # a power of two: scaling is exact
        torch.manual_seed(3)
        params = [torch.nn.Parameter(torch.randn(5, 5, dtype=torch.float64))]
        with running(implementation):
            optimizer = make_novograd(implementation, params, 0.1, (0.9, 0.0), eps=0.0)
            for _ in range(3):
                params[0].grad = scale * torch.randn(5, 5, dtype=torch.float64)
                optimizer.step()
        finals.append(params[0].detach())
    assert torch.equal(*finals)
