"""The code of docs/optimizer-examples.md by heading, and how tests run it."""

from __future__ import annotations

import importlib
import re
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

PAGE = Path(__file__).parents[2] / "docs" / "optimizer-examples.md"
_CODE = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
_START, *_SECTIONS = PAGE.read_text().split("\n## ")
(SET_UP,) = _CODE.findall(_START)
EXAMPLES: dict[str, str] = {}
for _section in _SECTIONS:
    (EXAMPLES[_section.split("\n")[0]],) = _CODE.findall(_section)


@contextmanager
def _example_module() -> Iterator[types.ModuleType]:
    """A module for the code, which finds the folder optim/ as novograd, as after `pip install .`"""
    module = types.ModuleType("example")
    sys.modules |= {"novograd": importlib.import_module("optim"), module.__name__: module}
    try:
        yield module
    finally:
        del sys.modules["novograd"], sys.modules[module.__name__]


def run_example(heading: str) -> dict[str, Any]:
    """Runs the set-up and the example; returns their names, with the loss before and after."""
    with _example_module() as module:
        names = vars(module)
        exec(compile(SET_UP, f"{PAGE.name}: set-up", "exec"), names)
        names["loss_before"] = _loss(names)
        exec(compile(EXAMPLES[heading], f"{PAGE.name}: {heading}", "exec"), names)
    names["loss_after"] = _loss(names)
    return names


def _loss(names: dict[str, Any]) -> float:
    with torch.no_grad():
        return cross_entropy(names["model"](names["inputs"]), names["labels"]).item()
