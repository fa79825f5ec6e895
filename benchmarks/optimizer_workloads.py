"""What optimizers are timed on: parameters of real models, and gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Shape = tuple[int, ...]


def resnet50v2() -> list[Shape]:
    """ResNet-50 v2 for ImageNet."""
    shapes: list[Shape] = [(64, 3, 7, 7)]
    channels = 64
    for width, blocks in zip((64, 128, 256, 512), (3, 4, 6, 3), strict=True):
        for block in range(blocks):
            shapes += [(channels,)] * 2
            shapes += [(4 * width, channels, 1, 1)] if block == 0 else []
            shapes += [(width, channels, 1, 1), (width,), (width,)]
            shapes += [(width, width, 3, 3), (width,), (width,), (4 * width, width, 1, 1)]
            channels = 4 * width
    shapes += [(channels,), (channels,), (1000, channels), (1000,)]
    return _checked(shapes, 153, 25_549_352)


def transformer_big() -> list[Shape]:
    """Transformer-big with one embedding of 8192 pieces."""
    norm: list[Shape] = [(1024,)] * 2
    attention: list[Shape] = [(1024, 1024), (1024,)] * 4
    feed_forward: list[Shape] = [(4096, 1024), (4096,), (1024, 4096), (1024,)]
    encoder = [*attention, *norm, *feed_forward, *norm]
    decoder = [*attention, *norm, *encoder]
    return _checked([(8192, 1024), *encoder * 6, *decoder * 6], 253, 184_745_984)


def small_tensors() -> list[Shape]:
    """A thousand tensors, for which calls cost more than arithmetic."""
    return _checked([(64,), (256,), (1024,), (4096,), (21600,)] * 200, 1000, 5_408_000)


def _checked(shapes: list[Shape], tensors: int, parameters: int) -> list[Shape]:
    assert (len(shapes), sum(map(math.prod, shapes))) == (tensors, parameters)
    return shapes


@dataclass(frozen=True)
class ParameterSet:
    """Parameters to step, and in how many rounds."""

    shapes: Callable[[], list[Shape]]
    rounds: int
    dtype: torch.dtype = torch.float32


PARAMETER_SETS = {
    "resnet50v2": ParameterSet(resnet50v2, 27),
    "transformer_big": ParameterSet(transformer_big, 12),
    "small_tensors": ParameterSet(small_tensors, 45),
    "resnet50v2_bf16": ParameterSet(resnet50v2, 27, torch.bfloat16),
    "resnet50v2_fp16": ParameterSet(resnet50v2, 27, torch.float16),
}


class Workload:
    """Parameters with gradients, and a copy of these to write them anew."""

    def __init__(self, parameters: ParameterSet, device: torch.device | None = None) -> None:
        source = torch.Generator().manual_seed(0)
        shapes, dtype = parameters.shapes(), parameters.dtype

        def drawn() -> list[Tensor]:
            return [torch.randn(shape, generator=source).to(device, dtype) for shape in shapes]

        self.params = [torch.nn.Parameter(values) for values in drawn()]
        self._kept = drawn()
        self._grads = [g.clone() for g in self._kept]
        for param, grad in zip(self.params, self._grads, strict=True):
            param.grad = grad
        self.numel = sum(map(math.prod, shapes))
        self.bytes = self.numel * dtype.itemsize

    def refill(self) -> None:
        """Undoes what an optimizer has done to the gradients."""
        torch._foreach_copy_(self._grads, self._kept)
