"""Optimizers by name, with strict keywords and the fastest implementation that the device has."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from optim.novograd import DEFAULTS, NovoGrad


@dataclass(frozen=True)
class _Kind:
    """A torch class, and which of its keywords an experiment may set, with their defaults."""

    make: Callable[..., Optimizer]
    options: dict[str, Any]
    choose: Callable[[list[Tensor]], dict[str, Any]]


def _fused_if_possible(params: list[Tensor]) -> dict[str, Any]:
    """torch's fused kernel for plain floating-point tensors on a CPU or CUDA device."""
    plain = all(type(p) in (Tensor, torch.nn.Parameter) for p in params)
    devices = {p.device.type for p in params}
    fits = plain and devices in ({"cpu"}, {"cuda"}) and all(p.is_floating_point() for p in params)
    return {"fused": True} if fits else {}


def _own_choice(params: list[Tensor]) -> dict[str, Any]:
    """NovoGrad chooses at every step."""
    return {}


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
    ),
    "adam": _Kind(torch.optim.Adam, {**_ADAM, "amsgrad": False}, _fused_if_possible),
    "adamw": _Kind(torch.optim.AdamW, {**_ADAM, "amsgrad": False}, _fused_if_possible),
}


def build_optimizer(
    name: str,
    params: Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]],
    **options: Any,
) -> Optimizer:
    """`build_optimizer("sgd", groups, lr=0.4, weight_decay=1e-4)`.

    `params` as torch's optimizers take them. Weight decay is each method's own: L2 in the
    gradient for sgd and adam, decoupled for adamw, in the moment for novograd.
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
    groups = list(params)
    for group in groups:
        for key in set(group) - {"params", *kind.options} if isinstance(group, dict) else ():
            raise ValueError(
                f"{name}: a parameter group has no option {key!r}{_hint(key, kind.options)}: "
                f"{', '.join(kind.options)}"
            )
    try:
        return kind.make(groups, **chosen, **kind.choose(_tensors(groups)))
    except (TypeError, ValueError) as problem:
        raise ValueError(f"{name}: {problem}") from problem


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
