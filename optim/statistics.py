"""Per-tensor statistics of a step: norms of gradient, second moment, update and weights.

One row per parameter that had a gradient, as one float64 tensor on the device: nothing is read back
to the host until the caller does. `NovoGrad.statistics()` takes the gradients' norms from the step
itself; `measure_step` serves every optimizer, at the price of a copy of the weights for those that
can't tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from .norms import gradient_of, squared_norms

COLUMNS = ("gradient_norm", "second_moment_root", "update_norm", "weight_norm")


class Statistics(NamedTuple):
    """A row per tensor, in the order of the parameter groups; columns as in COLUMNS."""

    names: list[str]  # of the parameters, or their positions where the optimizer has no names
    values: Tensor  # float64; NaN where a method has no such quantity


class Seen(NamedTuple):
    """What NovoGrad kept of a group's last step."""

    params: list[Tensor]
    squared_norms: Tensor | None  # of the gradients; None if the step did not keep them
    factors: Tensor | None  # what those were multiplied with


class Measured:
    """What `measure_step` yields; `statistics` is there after the block."""

    statistics: Statistics


@contextmanager
def measure_step(optimizer: Optimizer) -> Iterator[Measured]:
    """Measures the step that is made inside the block, of any optimizer.

    with measure_step(optimizer) as measured:
        optimizer.step()
    measured.statistics.values

    The gradient norms are of the gradients as they are before the step, after all transforms. The
    second moment's root is that of the sum over a tensor's elements, without bias correction, so
    that it compares with the gradient's norm.
    """
    measured = Measured()
    own = getattr(optimizer, "statistics", None)
    if own is not None:
        yield measured
        measured.statistics = own()
        return
    groups = optimizer.param_groups
    params = [p for group in groups for p in group["params"] if p.grad is not None]
    gradients = squared_norms([gradient_of(p) for p in params]).sqrt()
    before = [p.detach().clone() for p in params]
    yield measured
    with torch.no_grad():
        torch._foreach_sub_(before, params)
        moments = [_second_moment(optimizer.state.get(p, {}), p) for p in params]
        columns = [gradients, _stack(moments, gradients), *_norms([before, params], gradients)]
    measured.statistics = Statistics(_names(optimizer, params), torch.stack(columns, dim=1))


@torch.no_grad()
def novograd_statistics(optimizer: Optimizer, seen: Mapping[int, Seen]) -> Statistics:
    """From the norms that the last step of each group calculated; passes over m and w alone."""
    parts, every = [], []
    for index, group in enumerate(optimizer.param_groups):
        own = seen.get(index)
        if own is None:  # the step was a compiled one
            moved = [p for p in group["params"] if p.grad is not None and p in optimizer.state]
            own = Seen(moved, None, None)
        every += own.params
        params, states = own.params, [optimizer.state[p] for p in own.params]
        if not params:
            continue
        norms = own.squared_norms
        if norms is None:
            if any(p.grad is None for p in params):
                raise RuntimeError("NovoGrad.statistics: call it between step() and zero_grad()")
            norms = squared_norms([gradient_of(p) for p in params])
        gradients = norms.sqrt()
        if own.factors is not None:
            gradients = gradients * own.factors.abs()
        v_name = "max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"
        roots = torch.stack([s[v_name] for s in states]).to(gradients).clamp(min=0).sqrt()
        # w' = w - lr m, or w' = (1 - lr d) w - lr m, whose change is lr (m + d w') / (1 - lr d).
        lr, d = group["lr"], group["weight_decay"] if group["decay"] == "update" else 0.0
        moments = [s["exp_avg"] for s in states]
        if d != 0:
            moments = [m + d * p for m, p in zip(moments, params, strict=True)]
        updates, weights = _norms([moments, params], gradients)
        factor = lr / (1 - lr * d)
        factor = factor.to(updates).reshape(()) if isinstance(factor, Tensor) else factor
        parts.append(torch.stack([gradients, roots, updates * factor, weights], dim=1))
    if not parts:
        raise RuntimeError("NovoGrad.statistics: call it between step() and zero_grad()")
    return Statistics(_names(optimizer, every), torch.cat([part.to(parts[0]) for part in parts]))


def _norms(lists: Sequence[Sequence[Tensor]], like: Tensor) -> list[Tensor]:
    return [squared_norms(tensors).sqrt().to(like) for tensors in lists]


def _stack(values: Sequence[Tensor | None], like: Tensor) -> Tensor:
    missing = like.new_full((), torch.nan)
    return torch.stack([missing if v is None else v.to(like) for v in values])


def _second_moment(state: dict[str, Any], param: Tensor) -> Tensor | None:
    """Root of the sum of Adam's v, as LAMB and AMSGrad have it too; None for other methods."""
    v = state.get("max_exp_avg_sq", state.get("exp_avg_sq"))
    if not isinstance(v, Tensor) or v.shape != param.shape:
        return None
    return v.sum(dtype=torch.float64).sqrt()


def _names(optimizer: Optimizer, params: Sequence[Tensor]) -> list[str]:
    names: dict[int, str] = {}
    for group in optimizer.param_groups:
        given = group.get("param_names", [])
        for i, p in enumerate(group["params"]):
            names[id(p)] = given[i] if given else str(len(names))
    return [names[id(p)] for p in params]
