"""NovoGrad's fused step on the CPU: our kernel, or torch's fused SGD kernel where it is missing.

Both make one pass over parameter, gradient and moment, without temporaries, and leave the
gradient as it is. torch's kernel computes
    m <- mu m + (1 - dampening) (g + decay w),      w <- w - lr m
which with 1 - dampening = a and decay = d / a is NovoGrad's m <- beta1 m + a g + d w.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import is_, itemgetter
from typing import Any

import torch
from torch import Tensor

from . import native
from .located import Layouts, Located, locate
from .memory import PLAIN_TYPES, addresses, is_dense, is_readable
from .norms import squared_norms
from .novograd_eager import (
    Hyper,
    Tensors,
    multi_tensor,
    second_moments,
    single_tensor,
)

State = Mapping[Tensor, dict[str, Any]]
_IN_STATE = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
_SMALL = 1 << 15  # elements up to which lists are faster than a kernel call for each tensor
_LEAST_FACTOR = 1e-6  # below, 1 - (1 - a) would cost fp32 digits


def step(
    tensors: Tensors,
    hyper: Hyper,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    """One step of CPU parameters; `grad_scale` and `found_inf` as GradScaler sets them.

    With a `grad_scale` the gradients are unscaled as well, as torch's fused optimizers leave them.
    """
    if found_inf is not None and found_inf.item() != 0:
        return
    scale = 1.0 if grad_scale is None else 1.0 / grad_scale.item()
    for part in tensors.by_device_and_dtype():
        fits = [_fits(*ts) for ts in zip(part.params, part.grads, part.exp_avgs, strict=True)]
        if all(fits):
            _step_dense(part, hyper, scale)
            continue
        odd = [i for i, fit in enumerate(fits) if not fit]
        _single_tensor(part.select(odd), hyper, scale)
        if len(odd) < len(fits):
            _step_dense(part.select([i for i, fit in enumerate(fits) if fit]), hyper, scale)
    if grad_scale is not None:
        torch._foreach_mul_([g for g in tensors.grads if not g._is_zerotensor()], scale)


class SteadyGroup:
    """A parameter group whose parameters and state lie where they lay at the last step.

    Collecting them anew takes longer than the arithmetic of small tensors; checking that nothing
    has moved takes a tenth of that.
    """

    def __init__(self, params: list[Tensor], state: State, names: Sequence[str]) -> None:
        self._own = [state[p] for p in params]
        self._states = list(state.values())
        lists: list[list[Tensor]] = [[of[name] for of in self._own] for name in names]
        self._table = native.TensorTable(params, *lists, *[[]] * (len(_IN_STATE) - len(names)))
        self._dtype, self._layouts = params[0].dtype, Layouts(params)
        of_v = torch.float64 if self._dtype == torch.float64 else torch.float32
        self._params = Located(params, self._dtype, self._layouts)
        self._moments = {
            name: Located(own, *((self._dtype, self._layouts) if name == "exp_avg" else (of_v,)))
            for name, own in zip(names, lists, strict=True)
        }

    @property
    def _located(self) -> list[Located]:
        return [self._params, *self._moments.values()]

    @property
    def squared_norms(self) -> Tensor:
        """Those of the last step's gradients, after their factors."""
        return self._table.seen

    @classmethod
    def of(cls, params: Sequence[Tensor], state: State, amsgrad: bool) -> SteadyGroup | None:
        """None where anything about the group is out of the ordinary: `step` serves it then."""
        if not params or not params[0].is_cpu or not native.supports(params[0].dtype):
            return None
        if not set(map(type, params)) <= PLAIN_TYPES or not all(p in state for p in params):
            return None
        names = _IN_STATE if amsgrad else _IN_STATE[:2]
        if not all(type(state[p].get(name)) in PLAIN_TYPES for p in params for name in names):
            return None
        if not all(p.layout == torch.strided and is_dense(p) for p in params):
            return None
        group = cls(list(params), state, names)
        return None if any(known.addresses is None for known in group._located) else group

    def step(
        self,
        params: Sequence[Tensor],
        state: State,
        norms_and_factors: tuple[Tensor | None, Tensor | None],
        hyper: Hyper,
        amsgrad: bool,
    ) -> bool:
        """Steps the group and returns True; returns False if anything about it has changed."""
        if not self.is_current(params, state, amsgrad):
            return False
        grads = [p.grad for p in params]
        if not set(map(type, grads)) <= PLAIN_TYPES:  # None, DTensor
            return False
        found = locate(grads, self._dtype, self._layouts)  # type: ignore[arg-type]
        if found is None or any(map(Tensor.is_neg, grads)):  # type: ignore[arg-type]
            return False
        if not self._table.step(found, *norms_and_factors, _native_options(hyper, 1.0)):
            return False
        torch.autograd.graph.increment_version(self._params.tensors)
        return True

    def is_current(self, params: Sequence[Tensor], state: State, amsgrad: bool) -> bool:
        """Whether parameters, state and its tensors are the same objects, and in place."""
        if len(params) != len(self._own) or len(state) != len(self._states):
            return False
        if amsgrad != ("max_exp_avg_sq" in self._moments):
            return False
        same = is_
        if len(self._own) * 8 > len(self._states):  # cheaper, if it does not go for many groups
            states_are_same = all(map(same, state.values(), self._states))
        else:
            pairs = zip(self._params.tensors, self._own, strict=True)
            states_are_same = all(state.get(p) is s for p, s in pairs)
        if not (all(map(same, params, self._params.tensors)) and states_are_same):
            return False
        try:
            return all(known.is_current() for known in self._located) and all(
                all(map(same, map(itemgetter(name), self._own), known.tensors))
                for name, known in self._moments.items()
            )
        except KeyError:
            return False


def _fits(param: Tensor, grad: Tensor, exp_avg: Tensor) -> bool:
    """Whether a kernel can read all three, and finds element i at the same place in each."""
    if not param.dtype == grad.dtype == exp_avg.dtype or grad.is_neg():
        return False
    if not is_readable(param, grad, exp_avg):
        return False
    if param.is_contiguous():
        return grad.is_contiguous() and exp_avg.is_contiguous()
    return param.stride() == grad.stride() == exp_avg.stride() and is_dense(param)


def _step_dense(part: Tensors, hyper: Hyper, scale: float) -> None:
    dtype = part.params[0].dtype
    if native.supports(dtype):
        lists = (part.params, part.exp_avgs, part.exp_avg_sqs, part.max_exp_avg_sqs)
        options = _native_options(hyper, scale)
        vectors = (part.squared_norms, part.gradient_factors)
        if native.TensorTable(*lists).step(addresses(part.grads), *vectors, options):
            torch.autograd.graph.increment_version(part.params)
            return
    if dtype == torch.float32 and hyper.beta1 != 0:  # without momentum SGD keeps no moment
        _step_without_kernels(part, hyper, scale)
    else:  # SGD's kernel loses digits: of a in float64, of its factors in half precision
        _single_tensor(part, hyper, scale)


def _native_options(hyper: Hyper, scale: float) -> native.StepOptions:
    return native.StepOptions(
        lr=float(hyper.lr),
        beta1=hyper.beta1,
        beta2=hyper.beta2,
        eps=hyper.eps,
        weight_decay=hyper.weight_decay,
        gradient_factor=-scale if hyper.maximize else scale,
        grad_averaging=hyper.grad_averaging,
        decay_in_update=hyper.decay == "update",
    )


def _with_norms(part: Tensors, scale: float) -> Tensors:
    norms = squared_norms(part.grads) if part.squared_norms is None else part.squared_norms
    if scale == 1.0:
        return part._replace(squared_norms=norms)
    factors = torch.ones_like(norms) if part.gradient_factors is None else part.gradient_factors
    return part._replace(squared_norms=norms, gradient_factors=factors * scale)


def _single_tensor(part: Tensors, hyper: Hyper, scale: float) -> None:
    single_tensor(_with_norms(part, scale), hyper)


def _step_without_kernels(part: Tensors, hyper: Hyper, scale: float) -> None:
    """Lists for small tensors, where a call for each is too slow; SGD's kernel for the others."""
    part = _with_norms(part, scale)
    small = [i for i, p in enumerate(part.params) if p.numel() <= _SMALL]
    large = [i for i, p in enumerate(part.params) if p.numel() > _SMALL]
    if small:
        multi_tensor(part.select(small) if large else part, hyper)
    if large:
        _step_through_sgd(part.select(large) if small else part, hyper)


def _step_through_sgd(part: Tensors, hyper: Hyper) -> None:
    moment, factors = second_moments(part, hyper)
    gradient = (moment.inverse * factors * moment.share).tolist()
    share = moment.share.tolist() if isinstance(moment.share, Tensor) else [1.0] * len(gradient)
    too_small = [i for i, a in enumerate(gradient) if abs(a) < _LEAST_FACTOR]
    if too_small:
        single_tensor(part.select(too_small), hyper)
    in_moment = hyper.weight_decay if hyper.decay == "moment" else 0.0
    for i in sorted(set(range(len(gradient))) - set(too_small)):
        part.exp_avg_sqs[i].copy_(moment.exp_avg_sq[i])
        if moment.max_exp_avg_sq is not None:
            part.max_exp_avg_sqs[i].copy_(moment.max_exp_avg_sq[i])
        if hyper.decay == "update" and hyper.weight_decay != 0:
            part.params[i].mul_(1 - hyper.lr * hyper.weight_decay)
        torch._fused_sgd_(
            [part.params[i]],
            [part.grads[i]],
            [part.exp_avgs[i]],
            weight_decay=share[i] * in_moment / abs(gradient[i]),
            momentum=hyper.beta1,
            lr=hyper.lr,
            dampening=1.0 - abs(gradient[i]),
            nesterov=False,
            maximize=gradient[i] < 0,
            is_first_step=False,
        )
