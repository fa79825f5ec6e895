"""Functions that torch never compiles do not import its compiler where nothing is compiled."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import nn

from launch.torch_compiler import COMPILER, MARK, torch_compiler_unloaded, unchanged_meta_tensors


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
