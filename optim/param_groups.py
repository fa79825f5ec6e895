"""Parameter groups: which parameters decay, and rules for those that differ."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor

DECAYS = ("all", "matrices")
LR_PER_TENSOR = ("uniform", "sqrt_size")


@dataclass(frozen=True)
class Rule:
    """Options for the parameters whose name matches a pattern (`*.bias`, `decoder.*`).

    Beside an optimizer's own options there is `lr_per_tensor`, as in `build_param_groups`; its
    former spelling `per_weight: true` means "sqrt_size".
    """

    pattern: str
    options: dict[str, Any] = field(default_factory=dict)


def build_param_groups(
    named_parameters: Iterable[tuple[str, Tensor]],
    weight_decay: float,
    decay: str = "all",
    rules: Sequence[Rule] = (),
    lr: float | None = None,
    lr_per_tensor: str = "uniform",
) -> list[dict[str, Any]]:
    """Groups of (name, parameter) pairs for an optimizer's constructor.

    `decay` says what decays: "all" parameters, as in every NovoGrad recipe, or "matrices", those
    of two and more dimensions (kernels, but no biases, no gains of normalisations). The first
    rule that matches a parameter adds its options. Parameters that need no gradient are left out.

    `lr_per_tensor`: "uniform", or "sqrt_size": a tensor of n weights has √n times the learning
    rate `lr` and 1/√n of the decay, so that their product is the same. NovoGrad's normalised
    gradient has the length 1, however large the tensor; so it has the root mean square 1, and all
    weights move alike, as with Adam.
    """
    if decay not in DECAYS:
        raise ValueError(f"decay must be one of {DECAYS}, not {decay!r}")
    trained = [(name, p) for name, p in named_parameters if p.requires_grad]
    if not trained:
        raise ValueError("no parameters to train: none requires a gradient")
    groups: dict[tuple[tuple[str, Any], ...], list[tuple[str, Tensor]]] = {}
    for name, parameter in trained:
        decays = decay == "all" or parameter.dim() >= 2
        options: dict[str, Any] = {"weight_decay": weight_decay if decays else 0.0}
        for rule in rules:
            if fnmatchcase(name, rule.pattern):
                lists = {k: tuple(v) for k, v in rule.options.items() if isinstance(v, list)}
                options |= rule.options | lists
                break
        per_weight = options.pop("per_weight", None)
        former = {None: lr_per_tensor, True: "sqrt_size", False: "uniform"}[per_weight]
        options |= _rate(options, lr, options.pop("lr_per_tensor", former), parameter)
        groups.setdefault(tuple(sorted(options.items())), []).append((name, parameter))
    _check_rules(rules, [name for name, _ in trained])
    return [{"params": members, **dict(options)} for options, members in groups.items()]


def _rate(
    options: Mapping[str, Any], lr: float | None, lr_per_tensor: str, parameter: Tensor
) -> dict[str, float]:
    """The learning rate and decay of one tensor, where they differ from its group's."""
    if lr_per_tensor not in LR_PER_TENSOR:
        raise ValueError(f"lr_per_tensor must be one of {LR_PER_TENSOR}, not {lr_per_tensor!r}")
    if lr_per_tensor == "uniform":
        return {}
    own = options.get("lr", lr)
    if own is None:
        raise ValueError(f"lr_per_tensor={lr_per_tensor!r} needs a learning rate to start from: lr")
    root = math.sqrt(parameter.numel())
    return {"lr": own * root, "weight_decay": options["weight_decay"] / root}


def _check_rules(rules: Sequence[Rule], names: list[str]) -> None:
    """A rule that decides nothing is a mistake: a typo, or shadowed by an earlier rule."""
    used: set[int] = set()
    for name in names:
        first = next((i for i, r in enumerate(rules) if fnmatchcase(name, r.pattern)), None)
        if first is not None:
            used.add(first)
    for index, rule in enumerate(rules):
        if index in used:
            continue
        matched = any(fnmatchcase(name, rule.pattern) for name in names)
        why = "only names that an earlier rule matches" if matched else "no parameter"
        some = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
        raise ValueError(f"parameter rule {rule.pattern!r} matches {why}; names are like {some}")
