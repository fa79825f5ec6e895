"""Functions that torch never compiles do not import its compiler where nothing is compiled."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from launch.torch_compiler import (
    COMPILER,
    MARK,
    _never_compiled,
    step_without_wrappers,
    torch_compiler_unloaded,
    unchanged_meta_tensors,
)
from optim import build_optimizer

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _find_functions_anew() -> None:
    """What was found before lacks those that a test wraps, unless it imports something as well."""
    _never_compiled.cache_clear()


def return_seven() -> int:
    return 7


def test_a_function_that_is_never_compiled_does_not_import_the_compiler(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.delitem(sys.modules, COMPILER, raising=False)
    seven: Any = torch._disable_dynamo(return_seven)
    with torch_compiler_unloaded():
        assert hasattr(seven.__wrapped__, MARK)
        assert seven() == 7
    assert COMPILER not in sys.modules
    assert not hasattr(seven.__wrapped__, MARK)  # so that a later compilation is told


@pytest.mark.parametrize("loaded", [False, True])
def test_it_is_told_where_it_is_there_or_will_be(loaded: bool, monkeypatch: pytest.MonkeyPatch):
    if loaded:
        monkeypatch.setitem(sys.modules, COMPILER, torch)
    else:
        monkeypatch.delitem(sys.modules, COMPILER, raising=False)
    function: Any = torch._disable_dynamo(return_seven)
    with torch_compiler_unloaded(unless=not loaded):
        assert not hasattr(function.__wrapped__, MARK)


def test_a_function_is_found_whatever_other_wrappers_say_of_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, COMPILER, raising=False)
    seven: Any = torch._disable_dynamo(return_seven)
    seven.__wrapped__ = print
    with torch_compiler_unloaded():
        assert seven() == 7
    assert COMPILER not in sys.modules


def test_counting_what_a_run_costs_does_not_import_the_compiler():
    """In a process of its own: torch's optimizers, and operations that are counted."""
    code = """
import sys
from launch.cost import count_cost
from launch.run_spec import make_run_spec

overrides = ["experiment=imagenet/adamw_100ep", "scale=paper", "hardware=dgx1"]
cost = count_cost(make_run_spec(overrides, need_data=False))
assert cost.optimizer_bytes >= 8 * cost.parameters, cost
assert cost.flops_per_step > 1e12, cost
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300, cwd=ROOT)


@pytest.mark.parametrize("name", ["adamw", "sgd", "novograd", "lamb"])
def test_a_step_without_wrappers_is_a_step(name: str):
    def stepped(step: Callable[[Any], object]) -> Tensor:
        weight = nn.Parameter(torch.arange(4.0))
        optimizer = build_optimizer(name, [weight], lr=0.1)
        for _ in range(2):
            weight.grad = torch.ones(4)
            step(optimizer)
        return weight.detach()

    assert torch.equal(stepped(step_without_wrappers), stepped(lambda o: o.step()))


def test_only_tensors_without_memory_are_not_initialised():
    weight = nn.Parameter(torch.zeros(4))
    with unchanged_meta_tensors():
        nn.init.trunc_normal_(weight)
        with torch.device("meta"):
            layer = nn.Linear(3, 5)
            nn.init.trunc_normal_(layer.weight)
    assert weight.count_nonzero() == 4
    assert layer.weight.is_meta
    assert layer.weight.shape == (5, 3)
    assert layer.weight.requires_grad
