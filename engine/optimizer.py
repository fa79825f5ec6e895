"""The optimizer and the gradient transforms that a configuration names."""

from __future__ import annotations

from typing import Any

from torch import nn

from engine.config import GradientConfig, RunConfig
from optim.factory import build_optimizer
from optim.larc import Larc
from optim.param_groups import Rule, build_param_groups
from optim.transforms import AddL2, ClipGlobalNorm, Transform


def build_optimizer_of(config: RunConfig, module: nn.Module) -> Any:
    """The optimizer that a configuration names, for a model's parameters."""
    options = dict(config.optimizer)
    name, weight_decay = options.pop("name"), float(options.pop("weight_decay", 0.0))
    rules = [Rule(pattern, dict(given)) for pattern, given in config.decay.rules.items()]
    groups = build_param_groups(
        module.named_parameters(),
        weight_decay,
        config.decay.apply_to,
        rules,
        options.get("lr"),
        config.lr_per_tensor,
    )
    if isinstance(options.get("betas"), list):
        options["betas"] = tuple(options["betas"])
    fused = take_fused(options, name)
    moved = config.gradient.decay_before_larc  # into the transforms
    optimizer: Any = build_optimizer(name, groups, l2_as_transform=moved, **options)
    if fused is not None:
        for group in optimizer.param_groups:
            group["fused"] = fused
    return optimizer


def take_fused(options: dict[str, Any], name: str) -> bool | None:
    """Removes `fused`, which is no part of the recipe; None where the optimizer chooses."""
    fused = options.pop("fused", None)
    if fused not in (None, "auto", True, False):
        raise ValueError(f"fused must be true, false or auto, not {fused!r}")
    if fused in (None, "auto"):
        return None
    if name != "novograd":
        raise ValueError(f"fused is NovoGrad's; {name} takes torch's fused update where it can")
    return bool(fused)


def make_transforms(gradient: GradientConfig) -> list[Transform]:
    """L2 where it comes before them, then clipping, then LARC."""
    chain: list[Transform] = [AddL2()] if gradient.decay_before_larc else []
    if gradient.clip_norm is not None:
        chain.append(ClipGlobalNorm(gradient.clip_norm))
    if gradient.larc is not None:
        chain.append(Larc(**gradient.larc))
    return chain
