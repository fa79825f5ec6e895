"""What happens to the gradients between backward and step: clipping, LARC, chains of them.

A transform looks at norms and returns a factor for each gradient. The norms are taken once for
the whole chain. NovoGrad, which needs them too, is handed both and leaves the gradients alone:
clipping then costs it no further pass over memory. For other optimizers the gradients are scaled
in place. Either way the result is that of transforming first and stepping then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from optim.norms import gradient_of, local, squared_norms
from optim.novograd import NovoGrad


class Gradients(NamedTuple):
    """What a transform may look at: parallel entries, one per parameter with a gradient."""

    params: list[Tensor]
    lrs: list[float | Tensor]
    norms: Tensor  # float64 vector: L2 norms of the gradients as earlier transforms left them


class Transform(Protocol):
    """Maps gradients to factors."""

    def factors(self, gradients: Gradients) -> Tensor:
        """A factor (float64) for each gradient, or one (0-dim) for all."""
        ...


@dataclass(frozen=True)
class ClipGlobalNorm:
    """Scales all gradients by min(1, max_norm / (norm + 1e-6)), as torch's clip_grad_norm_."""

    max_norm: float

    def __post_init__(self) -> None:
        if not 0 < self.max_norm < math.inf:
            raise ValueError(f"max_norm must be finite and positive, not {self.max_norm!r}")

    def factors(self, gradients: Gradients) -> Tensor:
        total = torch.linalg.vector_norm(gradients.norms)
        return torch.clamp(self.max_norm / (total + 1e-6), max=1.0)


@torch.no_grad()
def transform_gradients(optimizer: Optimizer, transforms: Sequence[Transform]) -> Tensor:
    """Applies the transforms in order; returns the global gradient norm from before them.

    Call it between backward (after GradScaler.unscale_, if there is one) and step, with each
    group's lr already set to that of the step. The norm stays on the device.
    """
    groups = [[p for p in g["params"] if p.grad is not None] for g in optimizer.param_groups]
    params = [p for group in groups for p in group]
    if not params:
        return torch.zeros((), dtype=torch.float64)
    lrs = [g["lr"] for g, ps in zip(optimizer.param_groups, groups, strict=True) for _ in ps]
    grads = []
    for p in params:
        grads.append(gradient_of(p))
        if grads[-1] is not p.grad:
            p.grad = grads[-1]
    squares = squared_norms(grads)
    total = squares.sum().sqrt()
    factors = torch.ones_like(total)
    pending = optimizer.pending_factors() if isinstance(optimizer, NovoGrad) else None
    if pending is not None:  # of an earlier call for this step
        factors = torch.cat(pending)
        total = (squares.sqrt() * factors).square().sum().sqrt()
    for transform in transforms:
        seen = Gradients(params, lrs, squares.sqrt() * factors)
        factors = factors * transform.factors(seen).to(factors)
    if not transforms:
        return total
    one_device = len({p.device for p in params}) == 1
    if isinstance(optimizer, NovoGrad) and one_device:
        sizes = [len(group) for group in groups]
        each = factors.expand(squares.shape).contiguous()
        optimizer.hand_over(torch.split(squares, sizes), torch.split(each, sizes))
    else:
        _scale(grads, factors)
    return total


def _scale(grads: list[Tensor], factors: Tensor) -> None:
    plain = [local(g) for g in grads]
    half = any(g.dtype in (torch.float16, torch.bfloat16) for g in plain)
    if factors.dim() == 0 and not half and len({(g.device, g.dtype) for g in plain}) == 1:
        torch._foreach_mul_(plain, factors.to(plain[0].dtype))
        return
    for g, factor in zip(plain, factors.expand(len(plain)).unbind(), strict=True):
        if g.dtype in (torch.float16, torch.bfloat16):  # the factor keeps its digits
            g.copy_(g.float() * factor.to(g.device, torch.float32))
        else:
            g.mul_(factor.to(g.device, g.dtype))
