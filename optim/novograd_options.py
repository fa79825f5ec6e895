"""NovoGrad's options: their defaults and what values they may have."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

FUSED_DTYPES = {torch.float32, torch.float64, torch.bfloat16, torch.float16}
DECAYS = ("moment", "update")
DEFAULTS: dict[str, Any] = {  # of the constructor; older pickles and state dicts may lack some
    "lr": 0.01,
    "betas": (0.95, 0.25),
    "eps": 1e-8,
    "weight_decay": 0.0,
    "grad_averaging": False,
    "amsgrad": False,
    "decay": "moment",
    "maximize": False,
    "foreach": None,
    "fused": None,
    "capturable": False,
}


def check_group(group: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Checks a parameter group's own options; a key that resembles none is the user's business."""
    check_options({**defaults, **group})
    for key in set(map(str, group)) - set(defaults):
        meant = difflib.get_close_matches(key, defaults, n=1, cutoff=0.8)
        if meant:
            raise ValueError(
                f"NovoGrad: unknown option {key!r} in a parameter group; did you mean {meant[0]!r}?"
            )


def check_fusable(params: Sequence[Tensor], group: dict[str, Any]) -> None:
    """Raises where `fused=True` was asked for and there is no kernel, before any state is made."""
    devices = {p.device.type for p in params}
    if {p.dtype for p in params} - FUSED_DTYPES or devices not in ({"cpu"}, {"cuda"}, set()):
        found = sorted({f"{p.dtype} on {p.device.type}" for p in params})
        raise RuntimeError(
            "NovoGrad: `fused=True` requires all the params to be floating point Tensors of "
            f"supported devices, all on cpu or all on cuda, not {', '.join(found)}"
        )
    if group["capturable"] and "cpu" in devices:
        raise RuntimeError(
            "NovoGrad: `fused=True` with capturable=True requires params on cuda, not on cpu: the "
            "fused step on a CPU is not captured; use foreach=True"
        )


def check_options(options: dict[str, Any]) -> None:
    """Raises one ValueError that names the first option that makes no sense."""
    lr, betas = options["lr"], options["betas"]
    if isinstance(lr, Tensor):
        if lr.numel() != 1:
            raise ValueError(
                f"NovoGrad: Tensor lr must be 1-element, not of shape {tuple(lr.shape)}"
            )
    else:
        _check_number("lr", lr)
    if not isinstance(betas, tuple | list) or len(betas) != 2:
        raise ValueError(f"NovoGrad: betas must be a pair of numbers, not {betas!r}")
    for index, beta in enumerate(betas):
        _check_number(f"betas[{index}]", beta, below=1.0)
    _check_number("eps", options["eps"])
    _check_number("weight_decay", options["weight_decay"])
    if options["decay"] not in DECAYS:
        raise ValueError(f"NovoGrad: decay must be one of {DECAYS}, not {options['decay']!r}")
    for name in ("grad_averaging", "amsgrad", "maximize", "capturable"):
        if not isinstance(options[name], bool):
            raise ValueError(f"NovoGrad: {name} must be True or False, not {options[name]!r}")
    for name in ("foreach", "fused"):
        if options[name] is not None and not isinstance(options[name], bool):
            raise ValueError(f"NovoGrad: {name} must be True, False or None, not {options[name]!r}")
    if options["foreach"] and options["fused"]:
        raise ValueError("NovoGrad: foreach and fused can't both be True")


def _check_number(name: str, value: Any, below: float = math.inf) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0.0 <= value < below:
        interval = "finite and not negative" if below == math.inf else f"in [0, {below:g})"
        raise ValueError(f"NovoGrad: {name} must be a number, {interval}, not {value!r}")
