"""Dropout that draws its numbers faster on a CPU; on other devices it is torch's own."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Dropout(nn.Dropout):
    """As torch's; what remains may be added to another tensor at once."""

    def forward(self, x: Tensor, onto: Tensor | None = None) -> Tensor:
        """Of x some become 0, the others are divided by 1 - p; they are added to `onto`."""
        if self.training and self.p:
            return drop(x, self.p, onto)
        return x if onto is None else onto + x


def drop(x: Tensor, p: float, onto: Tensor | None = None) -> Tensor:
    """With probability p a number becomes 0, else it is divided by 1 - p; all are added to `onto`.

    On a CPU torch takes most of the time to draw. There a number is dropped where 32 bits of the
    generator are below p · 2³². torch.compile cannot trace `random_`: it gets torch's own dropout.
    """
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        x = F.dropout(x, p)
        return x if onto is None else onto + x
    bits = torch.empty((x.numel() + 1) // 2, dtype=torch.int64).random_(-(2**63), None)
    numbers = bits.view(torch.int32)[: x.numel()].view(x.shape)  # from -2³¹
    kept = torch.empty(x.shape, dtype=x.dtype)
    torch.ge(numbers, round((p - 0.5) * 2**32), out=kept)
    onto = x.new_zeros(()) if onto is None else onto
    return torch.addcmul(onto, x, kept, value=1 / (1 - p))
