"""torch's own optimizers with the implementation named, for comparisons.

`optim.build_optimizer` is what experiments use: it picks the fastest implementation itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

_CLASSES: dict[str, Any] = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
}


def torch_optimizer(
    name: str,
    params: Iterable[Tensor],
    *,
    foreach: bool | None = None,
    fused: bool | None = None,
    **options: Any,
) -> Optimizer:
    """`torch_optimizer("adamw", params, fused=True, lr=1e-3)`; None leaves the choice to torch."""
    if name not in _CLASSES:
        raise ValueError(f"unknown optimizer {name!r}, known are: {', '.join(_CLASSES)}")
    optimizer: Optimizer = _CLASSES[name](params, foreach=foreach, fused=fused, **options)
    return optimizer
