"""What happens to gradients between backward and step: L2 decay, clipping, LARC, chains of them.

Most transforms look at norms and return a factor for each gradient; the norms are taken once for
all of them. NovoGrad, which needs them too, is handed both and leaves the gradients alone:
clipping then costs it no further pass over memory. For other optimizers the gradients are scaled
in place. Either way the result is that of transforming first and stepping then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor
from torch.optim import SGD, Adam
from torch.optim.optimizer import Optimizer

from .norms import gradient_of, local, squared_norms
from .novograd import NovoGrad

_HALF = (torch.float16, torch.bfloat16)


class Gradients(NamedTuple):
    """What a transform may look at: parallel entries, one per parameter with a gradient."""

    params: list[Tensor]
    lrs: list[float | Tensor]
    norms: Tensor  # float64 vector: L2 norms of the gradients as earlier transforms left them


class Scaling(Protocol):
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


@dataclass(frozen=True)
class AddL2:
    """Adds the gradient of L2 regularisation, g <- g + l2 w, ahead of clipping and LARC.

    `l2` is an option of the parameter groups. `build_optimizer(..., l2_as_transform=True)` sets it
    in place of `weight_decay` for optimizers whose weight decay is L2 (SGD, Adam), which otherwise
    add it after all transforms. Groups without it, such as those of NovoGrad and AdamW, whose
    decay is no part of the gradient, are left alone.
    """


Transform: TypeAlias = Scaling | AddL2


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
    grads = []
    for p in params:
        grad = gradient_of(p)
        if grad is not p.grad:
            p.grad = grad
        grads.append(grad)
    squares = squared_norms(grads)
    total = squares.sum().sqrt()
    factors = torch.ones_like(total)
    pending = optimizer.pending_factors() if isinstance(optimizer, NovoGrad) else None
    if pending is not None:  # of an earlier call for this step
        factors = torch.cat(pending)
        total = (squares.sqrt() * factors).square().sum().sqrt()
    scaled = pending is not None
    per_param = list(zip(optimizer.param_groups, groups, strict=True))
    lrs = [group["lr"] for group, members in per_param for _ in members]
    for transform in transforms:
        if isinstance(transform, AddL2):
            _check_l2(optimizer)
            l2s = [group.get("l2", 0.0) for group, members in per_param for _ in members]
            squares, factors = _add_l2(params, grads, l2s, squares, factors, scaled)
        else:
            seen = Gradients(params, lrs, squares.sqrt() * factors)
            factors = factors * transform.factors(seen).to(factors)
            scaled = True
    if not transforms:
        return total
    one_device = len({p.device for p in params}) == 1
    if isinstance(optimizer, NovoGrad) and one_device:
        sizes = [len(group) for group in groups]
        each = factors.expand(squares.shape).contiguous()
        optimizer.hand_over(torch.split(squares, sizes), torch.split(each, sizes))
    else:
        _scale(params, grads, factors)
    return total


def _scale(params: list[Tensor], grads: list[Tensor], factors: Tensor) -> None:
    plain = [local(_writable_gradient(p, g)) for p, g in zip(params, grads, strict=True)]
    half = any(g.dtype in _HALF for g in plain)
    if factors.dim() == 0 and not half and len({(g.device, g.dtype) for g in plain}) == 1:
        torch._foreach_mul_(plain, factors.to(plain[0].dtype))
        return
    for g, factor in zip(plain, factors.expand(len(plain)).unbind(), strict=True):
        if g.dtype in _HALF:  # the factor keeps its digits
            g.copy_(g.float() * factor.to(g.device, torch.float32))
        else:
            g.mul_(factor.to(g.device, g.dtype))


def _add_l2(
    params: list[Tensor],
    grads: list[Tensor],
    l2s: list[float],
    squares: Tensor,
    factors: Tensor,
    scaled: bool,
) -> tuple[Tensor, Tensor]:
    """g <- factor g + l2 w in place; squared norms and factors of what all gradients are then."""
    kinds: dict[tuple[Any, ...], list[int]] = {}
    for i, l2 in enumerate(l2s):
        if l2 != 0:
            grads[i] = _writable_gradient(params[i], grads[i])
            dtypes = (grads[i].dtype, params[i].dtype)
            kinds.setdefault((l2, grads[i].device, *dtypes), []).append(i)
    each, norms = list(factors.expand(squares.shape).unbind()), list(squares.unbind())
    for (l2, device, dtype, param_dtype), where in kinds.items():
        gs, ws = ([local(ts[i]) for i in where] for ts in (grads, params))
        if dtype in _HALF or dtype != param_dtype:
            for g, w, i in zip(gs, ws, where, strict=True):  # rounded once, at the end
                wide = torch.promote_types(torch.float32, torch.promote_types(dtype, param_dtype))
                g.copy_(torch.add(g.to(wide) * each[i].to(device, wide), w.to(wide), alpha=l2))
        else:
            if scaled:
                torch._foreach_mul_(gs, [each[i].to(device, dtype) for i in where])
            torch._foreach_add_(gs, ws, alpha=l2)
        for i, norm in zip(where, squared_norms([grads[i] for i in where]).unbind(), strict=True):
            norms[i], each[i] = norm.to(squares), torch.ones_like(each[i])
    return (torch.stack(norms), torch.stack(each)) if kinds else (squares, factors)


def _writable_gradient(param: Tensor, grad: Tensor) -> Tensor:
    """The gradient, replaced by a copy if it can't be written to: expanded, or a zero tensor."""
    part = local(grad)
    expanded = any(s == 0 and n > 1 for s, n in zip(part.stride(), part.shape, strict=True))
    if expanded or part._is_zerotensor():
        param.grad = grad = grad.clone(memory_format=torch.contiguous_format)
    return grad


def _check_l2(optimizer: Optimizer) -> None:
    """AddL2 beside an optimizer that adds L2 itself means that the two were not agreed on."""
    if isinstance(optimizer, SGD | Adam):
        for group in optimizer.param_groups:
            decoupled: Any = group.get("decoupled_weight_decay", False)
            if group["weight_decay"] != 0 and not decoupled:
                raise ValueError(
                    f"AddL2: {type(optimizer).__name__} has weight_decay={group['weight_decay']} "
                    "and adds it after all transforms; make the optimizer by "
                    "build_optimizer(..., l2_as_transform=True)"
                )
