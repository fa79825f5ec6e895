"""Initial weights that are larger or smaller than a model's own, to see what an optimizer bears."""

from __future__ import annotations

import torch
from torch import nn


def scale_weights(module: nn.Module, gain: float) -> None:
    """Multiplies every weight of two or more dimensions; biases and normalisations stay.

    Weights that are shared are multiplied once. A gain of exactly 1 touches nothing.
    """
    if gain == 1.0:
        return
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.dim() >= 2 and not name.endswith("bias"):
                parameter.mul_(gain)
