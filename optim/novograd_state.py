"""NovoGrad's state of one parameter: the moment `exp_avg` and the scalar `exp_avg_sq`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .memory import is_readable
from .norms import local
from .novograd_eager import NO_GRADIENT_YET


def _moment_dtype(param: Tensor) -> torch.dtype:
    return torch.float64 if param.dtype in (torch.float64, torch.complex128) else torch.float32


def as_second_moment(value: Tensor, param: Tensor) -> Tensor:
    """v as it is kept for this parameter: a copy, tied to no dict that it was loaded from."""
    return value.detach().reshape(()).to(param.device, _moment_dtype(param)).clone()


def fits(state: dict[str, Any], param: Tensor) -> bool:
    """Whether a parameter's state is there, and made for the parameter as it is now."""
    m, v = state.get("exp_avg"), state.get("exp_avg_sq")
    return (
        isinstance(m, Tensor)
        and isinstance(v, Tensor)
        and m.dtype == param.dtype
        and m.shape == param.shape
        and m.device == param.device == v.device
        and v.dim() == 0
        and v.dtype == _moment_dtype(param)
    )


def fit_state(state: dict[str, Any], param: Tensor) -> None:
    """Makes what is missing, and follows a parameter that changed its dtype or device."""
    m = state.get("exp_avg")
    if m is None:
        state["exp_avg"] = torch.zeros_like(param, memory_format=torch.preserve_format)
    elif m.shape != param.shape:
        raise RuntimeError(
            f"NovoGrad: a parameter of shape {tuple(param.shape)} has the state of one of shape "
            f"{tuple(m.shape)}: was the state of another model loaded?"
        )
    else:
        state["exp_avg"] = m.to(param.device, param.dtype)
    for name in ("exp_avg_sq", "max_exp_avg_sq"):
        if name in state:
            state[name] = as_second_moment(torch.as_tensor(state[name]), param)
    if "exp_avg_sq" not in state:
        state["exp_avg_sq"] = _unset_second_moment(param)


def _unset_second_moment(param: Tensor) -> Tensor:
    part, dtype = local(param).detach(), _moment_dtype(param)
    if is_readable(part):
        return torch.full((), NO_GRADIENT_YET, dtype=dtype, device=part.device)
    # v has to be what the gradient's norm will be: fake, functionalised, a wrapper, on meta.
    return torch.full_like(torch.linalg.vector_norm(part), NO_GRADIENT_YET, dtype=dtype)
