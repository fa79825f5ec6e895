"""Optimizers by name, with strict keywords and the fastest implementation that the device has."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from .memory import PLAIN_TYPES, is_dense
from .novograd import NovoGrad
from .novograd_options import DEFAULTS


@dataclass(frozen=True)
class _Kind:
    """A class, and which of its keywords an experiment may set, with their defaults."""

    make: Callable[..., Optimizer]
    options: dict[str, Any]
    choose: Callable[[list[Tensor]], dict[str, Any]]
    decays_by_l2: bool = False  # weight decay is added to the gradient


def _fused_if_possible(params: list[Tensor]) -> dict[str, Any]:
    """torch's fused kernel for plain floating-point tensors on a CPU or CUDA device.

    Not for parameters with gaps in memory: on a CPU torch's fused kernels move the gaps instead.
    """
    plain = all(type(p) in PLAIN_TYPES and p.is_floating_point() and is_dense(p) for p in params)
    fits = plain and {p.device.type for p in params} in ({"cpu"}, {"cuda"})
    return {"fused": True} if fits else {}


def _own_choice(params: list[Tensor]) -> dict[str, Any]:
    """NovoGrad, Adafactor and Lion choose by themselves; the others have one implementation."""
    return {}


def _from_timm(name: str, **fixed: Any) -> Callable[..., Optimizer]:
    """A class of timm, imported when it is asked for, with some keywords fixed."""

    def make(params: Any, **options: Any) -> Optimizer:
        try:
            library = importlib.import_module("timm.optim")
        except ModuleNotFoundError as problem:
            raise ValueError("it is timm's, which is not installed: pip install timm") from problem
        optimizer: Optimizer = getattr(library, name)(params, **options, **fixed)
        return optimizer

    return make


_NO_DEFAULT: Any = object()
_OF_NOVOGRAD = ("betas", "eps", "weight_decay", "grad_averaging", "amsgrad", "decay")
_ADAM = {"lr": _NO_DEFAULT, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}
KINDS: dict[str, _Kind] = {
    "novograd": _Kind(
        NovoGrad,
        {"lr": _NO_DEFAULT, **{name: DEFAULTS[name] for name in _OF_NOVOGRAD}},
        _own_choice,
    ),
    "sgd": _Kind(
        torch.optim.SGD,
        {"lr": _NO_DEFAULT, "momentum": 0.9, "nesterov": False, "weight_decay": 0.0},
        _fused_if_possible,
        decays_by_l2=True,
    ),
    "adam": _Kind(
        torch.optim.Adam, {**_ADAM, "amsgrad": False}, _fused_if_possible, decays_by_l2=True
    ),
    "adamw": _Kind(torch.optim.AdamW, {**_ADAM, "amsgrad": False}, _fused_if_possible),
    "adafactor": _Kind(
        torch.optim.Adafactor,
        {"lr": _NO_DEFAULT, "beta2_decay": -0.8, "d": 1.0, "weight_decay": 0.0},
        _own_choice,
    ),
    "lamb": _Kind(  # clipping is left to the gradient transforms
        _from_timm("Lamb", max_grad_norm=None),
        {**_ADAM, "eps": 1e-6, "always_adapt": False},
        _own_choice,
    ),
    "lars": _Kind(
        _from_timm("Lars"),
        {
            "lr": _NO_DEFAULT,
            "momentum": 0.9,
            "nesterov": False,
            "weight_decay": 0.0,
            "trust_coeff": 0.001,
            "always_adapt": False,
        },
        _own_choice,
    ),
    "lion": _Kind(
        _from_timm("Lion"),
        {"lr": _NO_DEFAULT, "betas": (0.9, 0.99), "weight_decay": 0.0},
        _own_choice,
    ),
    # torch's own Muon takes matrices alone; timm's flattens convolutions, and steps biases and
    # gains with NAdamW (AdamW without nesterov) at fallback_lr_scale times the learning rate.
    "muon": _Kind(
        _from_timm("Muon", ns_coefficients="original"),  # those of torch's
        {
            "lr": _NO_DEFAULT,
            "momentum": 0.95,
            "nesterov": True,
            "weight_decay": 0.0,
            "adjust_lr_fn": "match_rms_adamw",
            "betas": (0.9, 0.95),
            "fallback_lr_scale": 1.0,
        },
        _own_choice,
    ),
}


def build_optimizer(
    name: str,
    params: Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]],
    *,
    l2_as_transform: bool = False,
    **options: Any,
) -> Optimizer:
    """`build_optimizer("sgd", groups, lr=0.4, weight_decay=1e-4)`.

    `params` as torch's optimizers take them. Weight decay is each method's own: L2 in the
    gradient for sgd and adam; in the moment for novograd; part of the update that the trust ratio
    scales for lamb and lars; decoupled for the others. lamb and lars scale only tensors that
    decay, unless `always_adapt`. Learning rates per group and gradient transforms serve all.

    `l2_as_transform` leaves L2 to the transform `AddL2`, which has to be in the chain of gradient
    transforms then: the optimizer's groups have `l2` in place of weight_decay. Methods whose
    decay is not L2 keep it.
    """
    kind = KINDS.get(name)
    if kind is None:
        raise ValueError(f"unknown optimizer {name!r}{_hint(name, KINDS)}: {', '.join(KINDS)}")
    for key in options:
        if key not in kind.options:
            raise ValueError(
                f"{name} has no option {key!r}{_hint(key, kind.options)}: {', '.join(kind.options)}"
            )
    chosen = {key: options.get(key, default) for key, default in kind.options.items()}
    if chosen["lr"] is _NO_DEFAULT:
        raise ValueError(f"{name} needs a learning rate: lr is not set")
    groups: list[Any] = list(params)
    for group in groups:
        for key in set(group) - {"params", *kind.options} if isinstance(group, dict) else ():
            raise ValueError(
                f"{name}: a parameter group has no option {key!r}{_hint(key, kind.options)}: "
                f"{', '.join(kind.options)}"
            )
    if l2_as_transform and kind.decays_by_l2:
        groups = _with_l2(groups, chosen["weight_decay"])
        chosen["weight_decay"] = 0.0
    try:
        return kind.make(groups, **chosen, **kind.choose(_tensors(groups)))
    except (TypeError, ValueError) as problem:
        raise ValueError(f"{name}: {problem}") from problem


def _with_l2(groups: list[Any], weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups with `l2` in place of their weight decay."""
    if not all(isinstance(group, dict) for group in groups):
        groups = [{"params": groups}]
    return [
        {**group, "l2": group.get("weight_decay", weight_decay), "weight_decay": 0.0}
        for group in groups
    ]


def _hint(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?), known are" if close else ", known are"


def _tensors(groups: list[Any]) -> list[Tensor]:
    """All parameters of what an optimizer's constructor takes."""
    found: list[Tensor] = []
    for item in groups:
        members = item["params"] if isinstance(item, dict) else [item]
        for member in [members] if isinstance(members, Tensor) else members:
            found.append(member[1] if isinstance(member, tuple) else member)
    return found
