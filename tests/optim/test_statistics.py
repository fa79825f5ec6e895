"""Norms of each tensor's gradient, second moment, update and weights, against float64 by hand."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from optim import ClipGlobalNorm, NovoGrad, build_optimizer, measure_step, transform_gradients
from optim import statistics as module
from optim.statistics import COLUMNS, Statistics
from tests.optim.implementations import every_implementation, make_novograd, running

NAMES = ["a", "b", "c"]


def parameters(dtype: torch.dtype = torch.float64) -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(s, dtype=torch.float64).to(dtype)) for s in ((6, 4), (7,), ())]


def groups_of(params: list[nn.Parameter]) -> list[dict[str, Any]]:
    named = list(zip(NAMES, params, strict=True))
    return [{"params": named[:2], "lr": 0.02}, {"params": named[2:], "weight_decay": 0.1}]


def set_gradients(params: list[nn.Parameter], step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p.dtype)


def check(found: Statistics, columns: list[list[float]], rel: float = 1e-12) -> None:
    assert found.values.shape == (len(found.names), len(COLUMNS))
    assert found.values.dtype == torch.float64
    for column, wanted in zip(found.values.t().tolist(), columns, strict=True):
        assert column == pytest.approx(wanted, rel=rel, nan_ok=True)


@every_implementation
@pytest.mark.parametrize("decay", ["moment", "update"])
@pytest.mark.parametrize("clip", [False, True])
def test_novograds_are_those_of_its_step(implementation, decay, clip):
    params = parameters()
    options: dict[str, Any] = {"weight_decay": 0.3, "decay": decay, "betas": (0.9, 0.5)}
    with running(implementation):
        optimizer = make_novograd(implementation, groups_of(params), 0.01, **options)
        v: list[float] = []
        for step in range(4):
            optimizer.zero_grad()
            set_gradients(params, step)
            factor = 1.0
            if clip:
                total = transform_gradients(optimizer, [ClipGlobalNorm(0.5)]).item()
                factor = 0.5 / (total + 1e-6)
            before = [p.detach().clone() for p in params]
            optimizer.step()
            gradients = [p.grad.norm().item() * factor for p in params if p.grad is not None]
            squares = [g * g for g in gradients]
            v = [0.5 * x + 0.5 * g for x, g in zip(v, squares, strict=True)] if v else squares
            found = optimizer.statistics()
            assert found.names == NAMES
            check(
                found,
                [
                    gradients,
                    [x**0.5 for x in v],
                    [(p.detach() - w).norm().item() for p, w in zip(params, before, strict=True)],
                    [p.detach().norm().item() for p in params],
                ],
                rel=1e-10,  # updates are differences of weights here
            )


@pytest.mark.parametrize("options", [{}, {"foreach": True}])
def test_ordinary_steps_leave_no_pass_over_gradients(options):
    """The kernel's and the lists' norms are used; only m and w are read."""
    params = parameters(torch.float32)
    optimizer = NovoGrad(params, 0.01, **options)
    for step in range(3):
        set_gradients(params, step)
        optimizer.step()
    with mock.patch.object(module, "squared_norms", wraps=module.squared_norms) as spy:
        optimizer.statistics()
    read = {id(tensor) for call in spy.call_args_list for tensor in call.args[0]}
    moments = {id(state["exp_avg"]) for state in optimizer.state.values()}
    assert read == moments | {id(p) for p in params}


@pytest.mark.parametrize("mixed", [False, True])
def test_missing_gradients_and_mixed_dtypes(mixed):
    params = parameters()
    if mixed:
        params[1] = nn.Parameter(params[1].detach().float())
    optimizer = NovoGrad(zip(NAMES, params, strict=True), 0.01)
    for step in range(3):
        optimizer.zero_grad()
        set_gradients(params, step)
        params[0].grad = None
        optimizer.step()
    found = optimizer.statistics()
    assert found.names == ["b", "c"]
    norms = [p.grad.double().norm().item() for p in params[1:] if p.grad is not None]
    assert found.values[:, 0].tolist() == pytest.approx(norms, rel=1e-12)


def test_after_a_compiled_step_gradients_are_looked_at():
    torch.compiler.reset()
    params = parameters()
    optimizer = NovoGrad(params, torch.tensor(0.01, dtype=torch.float64))
    set_gradients(params, 0)
    optimizer.step()
    step = torch.compile(optimizer.step, backend="eager", fullgraph=True)
    optimizer.zero_grad()
    set_gradients(params, 1)
    step()
    found = optimizer.statistics().values[:, 0].tolist()
    assert found == pytest.approx([p.grad.norm().item() for p in params if p.grad is not None])
    torch.compiler.reset()


def test_without_a_step_one_message_says_when():
    optimizer = NovoGrad(parameters(), 0.01)
    with pytest.raises(RuntimeError, match=r"between step\(\) and zero_grad\(\)"):
        optimizer.statistics()


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw", "lamb", "lion", "adafactor", "novograd"])
def test_the_generic_way_measures_every_optimizer(name):
    params = parameters()
    optimizer = build_optimizer(name, groups_of(params), lr=0.01)
    for step in range(3):
        set_gradients(params, step)
        kept = [p.grad.clone() for p in params if p.grad is not None]
        before = [p.detach().clone() for p in params]
        with measure_step(optimizer) as measured:
            optimizer.step()
    found = measured.statistics
    assert found.names == NAMES
    roots = [float("nan")] * 3
    if name in ("adam", "adamw", "lamb"):
        roots = [optimizer.state[p]["exp_avg_sq"].sum().sqrt().item() for p in params]
    if name == "novograd":
        roots = [optimizer.state[p]["exp_avg_sq"].sqrt().item() for p in params]
    check(
        found,
        [
            [g.norm().item() for g in kept],
            roots,
            [(p.detach() - w).norm().item() for p, w in zip(params, before, strict=True)],
            [p.detach().norm().item() for p in params],
        ],
        rel=1e-10,
    )


def test_nothing_waits_for_the_device():
    """A meta tensor has no value to read: any synchronisation would raise."""
    p = nn.Parameter(torch.empty(4, 3, device="meta"))
    for optimizer in (NovoGrad([p], 0.1), build_optimizer("adamw", [p], lr=0.1)):
        p.grad = torch.empty_like(p)
        with measure_step(optimizer) as measured:
            optimizer.step()
        assert measured.statistics.values.device.type == "meta"
