"""Keeps torch's compiler out of processes that compile nothing: importing it takes two seconds.

Some functions of torch are never compiled, optimizers' constructors among them, and import the
compiler in order to tell it so. Where it is not there, there is nothing to tell. The first step of
torch's own optimizers imports it in any case, unless it is `step_without_wrappers`.
"""

from __future__ import annotations

import gc
import inspect
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

COMPILER = "torch._dynamo"
INITIALISING = {"normal_", "uniform_", "erfinv_", "clamp_", "mul_", "add_", "fill_", "zero_"}
MARK = "__dynamo_disable"  # on such a function: what torch calls in its place


@contextmanager
def torch_compiler_unloaded(*, unless: bool = False) -> Iterator[None]:
    """Such functions do not import the compiler when they are called inside; also a decorator."""
    marked: list[Any] = []
    if not unless and COMPILER not in sys.modules:
        import optim  # noqa: F401  # NovoGrad has such functions

        found = _never_compiled(len(sys.modules))
        marked = [function for function in found if not hasattr(function, MARK)]
    for function in marked:
        setattr(function, MARK, function)
    try:
        yield
    finally:
        for function in marked:
            delattr(function, MARK)


@lru_cache(maxsize=1)
def _never_compiled(modules: int) -> list[Any]:
    """What `torch._disable_dynamo` has wrapped so far, in functions that share their code.

    Found among all objects there are, which takes a while, so again only when `modules`, the number
    of those that are imported, has changed.
    """
    import torch

    code = next(c for c in torch._disable_dynamo.__code__.co_consts if isinstance(c, CodeType))
    wrappers = [f for f in gc.get_referrers(code) if isinstance(f, FunctionType)]
    # Not by `__wrapped__`, in which some have the function of another wrapper.
    place = code.co_freevars.index("fn")
    found = [f.__closure__[place].cell_contents for f in wrappers if f.__closure__]
    return [f for f in found if isinstance(f, FunctionType)]


def step_without_wrappers(optimizer: Any) -> None:
    """A step of any optimizer; torch wraps its own in a function that imports the compiler."""
    import torch

    with torch.no_grad():
        inspect.unwrap(type(optimizer).step)(optimizer)


def unchanged_meta_tensors() -> AbstractContextManager[Any]:
    """Leaves out what initialises weights in place: without memory it does nothing, slowly."""
    from torch.overrides import TorchFunctionMode

    class Unchanged(TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if args and getattr(function, "__name__", "") in INITIALISING and args[0].is_meta:
                return args[0]
            return function(*args, **(kwargs or {}))

    return Unchanged()
