"""NovoGrad's step in torch operations: one tensor at a time, and many at once (foreach).

`single_tensor` is the form to read beside Algorithm 1 of the paper; `multi_tensor` and the fused
kernels are tested against it. Nothing here reads a value back to the host.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

NO_GRADIENT_YET = -1.0  # v of a tensor that has not had a non-zero gradient
_WIDENED_AT_ONCE = 1 << 24  # elements of half-precision lists that are widened at a time


class Hyper(NamedTuple):
    """The options of one parameter group that the arithmetic needs."""

    lr: float | Tensor
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    grad_averaging: bool
    decay: str
    maximize: bool


class Tensors(NamedTuple):
    """Parallel lists, one entry per parameter, and what a gradient transform handed over."""

    params: Sequence[Tensor]
    grads: Sequence[Tensor]
    exp_avgs: Sequence[Tensor]
    exp_avg_sqs: Sequence[Tensor]
    max_exp_avg_sqs: Sequence[Tensor]  # empty without AMSGrad
    squared_norms: Tensor | None  # of the gradients as stored, in float64
    gradient_factors: Tensor | None  # what each gradient is multiplied with, in float64

    def select(self, where: Sequence[int]) -> Tensors:
        """The entries at these positions."""
        if len(where) == len(self.params):
            return self
        lists = [[ts[i] for i in where] if ts else [] for ts in self[:5]]
        # Not v[where], which would copy the positions to the device.
        each = [None if v is None else v.unbind() for v in self[5:]]
        vectors = [None if vs is None else torch.stack([vs[i] for i in where]) for vs in each]
        return Tensors(*lists, *vectors)  # type: ignore[arg-type]

    def by_device_and_dtype(self) -> Iterator[Tensors]:
        """Parts whose parameters share device and dtype, and whose gradients share a dtype."""
        if len({p.dtype for p in self.params} | {g.dtype for g in self.grads}) == 1:
            if len({p.device for p in self.params}) == 1:
                yield self
                return
        kinds: dict[tuple[object, ...], list[int]] = {}
        for i, (param, grad) in enumerate(zip(self.params, self.grads, strict=True)):
            kinds.setdefault((param.device, param.dtype, grad.dtype), []).append(i)
        yield from map(self.select, kinds.values())


class SecondMoment(NamedTuple):
    """What one step makes of v: the state to keep and the factors of the update."""

    exp_avg_sq: Tensor
    max_exp_avg_sq: Tensor | None
    inverse: Tensor  # 1 / (sqrt(v) + eps)
    share: Tensor | float  # of the normalised gradient and decay that enters the moment


def second_moment(
    squared_norm: Tensor, exp_avg_sq: Tensor, max_exp_avg_sq: Tensor | None, hyper: Hyper
) -> SecondMoment:
    """v_t from the squared norm of g_t, for one tensor (0-dim) or for many (1-dim).

    Calculated in float64, stored in v's dtype, saturated at its maximum. v_1 = |g_1|^2 needs no
    branch on the step: v starts at NO_GRADIENT_YET and stays there while the gradient is zero.
    """
    old = exp_avg_sq.to(squared_norm.dtype)
    limit = torch.finfo(exp_avg_sq.dtype).max
    averaged = hyper.beta2 * old + (1 - hyper.beta2) * squared_norm
    new = torch.where(old > 0, averaged, squared_norm)
    unborn = (old < 0) & (squared_norm == 0)
    kept = torch.where(unborn, old, new).clamp(max=limit).to(exp_avg_sq.dtype)
    kept_max = None
    if max_exp_avg_sq is not None:  # AMSGrad
        new = torch.maximum(new, max_exp_avg_sq.to(new.dtype))
        kept_max = new.clamp(max=limit).to(exp_avg_sq.dtype)
    denominator = new.sqrt() + hyper.eps
    # 0 / 0 := 0: where the denominator is zero, so is the gradient.
    inverse = denominator.reciprocal().masked_fill(denominator == 0, 1.0).clamp(max=limit)
    share: Tensor | float = 1.0
    if hyper.grad_averaging:  # m_1 is not damped, as in the paper's "moments initialization"
        first = (old < 0) & (squared_norm > 0)
        share = torch.full_like(new, 1 - hyper.beta1).masked_fill(first, 1.0)
    return SecondMoment(kept, kept_max, inverse, share)


def signed_factors(tensors: Tensors, hyper: Hyper) -> Tensor | float:
    """What the stored gradients are multiplied with to get those of the loss to minimise."""
    sign = -1.0 if hyper.maximize else 1.0
    return sign if tensors.gradient_factors is None else sign * tensors.gradient_factors


def second_moments(part: Tensors, hyper: Hyper) -> tuple[SecondMoment, Tensor | float]:
    """`second_moment` of all tensors at once, and their gradients' factors."""
    assert part.squared_norms is not None
    factors = signed_factors(part, hyper)
    v = torch.stack(list(part.exp_avg_sqs))
    v_max = torch.stack(list(part.max_exp_avg_sqs)) if part.max_exp_avg_sqs else None
    return second_moment(part.squared_norms * factors**2, v, v_max, hyper), factors


def single_tensor(tensors: Tensors, hyper: Hyper) -> None:
    """Algorithm 1, tensor by tensor. Needs `tensors.squared_norms`."""
    assert tensors.squared_norms is not None
    factors = signed_factors(tensors, hyper)
    for i, param in enumerate(tensors.params):
        exp_avg, exp_avg_sq = tensors.exp_avgs[i], tensors.exp_avg_sqs[i]
        max_exp_avg_sq = tensors.max_exp_avg_sqs[i] if tensors.max_exp_avg_sqs else None
        factor = factors if isinstance(factors, float) else factors[i]
        squared_norm = tensors.squared_norms[i] * factor**2
        moment = second_moment(squared_norm, exp_avg_sq, max_exp_avg_sq, hyper)
        exp_avg_sq.copy_(moment.exp_avg_sq)
        if max_exp_avg_sq is not None and moment.max_exp_avg_sq is not None:
            max_exp_avg_sq.copy_(moment.max_exp_avg_sq)

        compute = exp_avg_sq.dtype  # fp32 under half-precision parameters: rounded once, at the end
        weight = param.to(compute)
        update = tensors.grads[i].to(compute) * (moment.inverse * factor).to(compute)
        if hyper.decay == "moment" and hyper.weight_decay != 0:
            update = update + hyper.weight_decay * weight
        if isinstance(moment.share, Tensor):
            update = update * moment.share.to(compute)
        first_moment = hyper.beta1 * exp_avg.to(compute) + update
        exp_avg.copy_(first_moment)
        if hyper.decay == "update" and hyper.weight_decay != 0:  # footnote 2
            first_moment = first_moment + hyper.weight_decay * weight
        param.copy_(weight - hyper.lr * first_moment)


def multi_tensor(tensors: Tensors, hyper: Hyper) -> None:
    """The same over lists, in place: no temporaries in fp32 and float64, bounded ones below."""
    for part in tensors.by_device_and_dtype():
        moment, factors = second_moments(part, hyper)
        torch._foreach_copy_(list(part.exp_avg_sqs), list(moment.exp_avg_sq.unbind()))
        if moment.max_exp_avg_sq is not None:
            torch._foreach_copy_(list(part.max_exp_avg_sqs), list(moment.max_exp_avg_sq.unbind()))

        compute = moment.exp_avg_sq.dtype
        gradient = (moment.inverse * factors * moment.share).to(compute).unbind()
        decay = None
        if isinstance(moment.share, Tensor):
            decay = (moment.share * hyper.weight_decay).to(compute).unbind()
        if part.params[0].dtype == part.grads[0].dtype == compute:
            params, grads, exp_avgs = map(list, (part.params, part.grads, part.exp_avgs))
            _update_lists(params, grads, exp_avgs, gradient, decay, hyper)
        else:
            _update_widened(part, compute, gradient, decay, hyper)


def _update_lists(
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    gradient: Sequence[Tensor],
    decay: Sequence[Tensor] | None,
    hyper: Hyper,
) -> None:
    """m <- beta1 m + a g + d w and w <- w - lr m; a and d are 0-dim tensors, one per tensor."""
    wd, lr = hyper.weight_decay, hyper.lr
    torch._foreach_mul_(exp_avgs, hyper.beta1)
    torch._foreach_addcmul_(exp_avgs, grads, list(gradient))
    if wd != 0 and hyper.decay == "moment":
        if decay is None:
            torch._foreach_add_(exp_avgs, params, alpha=wd)
        else:
            torch._foreach_addcmul_(exp_avgs, params, list(decay))
    if wd != 0 and hyper.decay == "update":
        torch._foreach_mul_(params, 1 - lr * wd)
    if isinstance(lr, Tensor):  # stays on the device: alpha would be read back to the host
        torch._foreach_addcmul_(params, exp_avgs, [-lr.to(params[0].dtype)] * len(params))
    else:
        torch._foreach_add_(params, exp_avgs, alpha=-lr)


def _update_widened(
    part: Tensors,
    compute: torch.dtype,
    gradient: Sequence[Tensor],
    decay: Sequence[Tensor] | None,
    hyper: Hyper,
) -> None:
    pieces = [
        (i, *piece)
        for i, ts in enumerate(zip(part.params, part.grads, part.exp_avgs, strict=True))
        for piece in _pieces(*ts)
    ]
    for chunk in _chunks([p.numel() for _, p, _, _ in pieces]):
        some = [pieces[j] for j in chunk]
        stored_params, stored_moments = [p for _, p, _, _ in some], [m for _, _, _, m in some]
        params, exp_avgs = ([t.to(compute) for t in ts] for ts in (stored_params, stored_moments))
        grads = [g.to(compute) for _, _, g, _ in some]
        a = [gradient[i] for i, _, _, _ in some]
        d = None if decay is None else [decay[i] for i, _, _, _ in some]
        _update_lists(params, grads, exp_avgs, a, d, hyper)
        torch._foreach_copy_(stored_moments, exp_avgs)
        torch._foreach_copy_(stored_params, params)


def _pieces(param: Tensor, grad: Tensor, exp_avg: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """A large tensor in views of at most _WIDENED_AT_ONCE elements."""
    three = (param, grad, exp_avg)
    if param.numel() <= _WIDENED_AT_ONCE or not all(t.is_contiguous() for t in three):
        return [three]
    views = (torch.split(t.view(-1), _WIDENED_AT_ONCE) for t in three)
    return list(zip(*views, strict=True))


def _chunks(sizes: Sequence[int]) -> Iterator[list[int]]:
    """Runs of positions whose sizes stay within _WIDENED_AT_ONCE, or are single."""
    chunk: list[int] = []
    total = 0
    for i, size in enumerate(sizes):
        if chunk and total + size > _WIDENED_AT_ONCE:
            yield chunk
            chunk, total = [], 0
        chunk.append(i)
        total += size
    if chunk:
        yield chunk
