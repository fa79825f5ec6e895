"""Layer-wise adaptive rate clipping, as the reference code of the paper's Table 4 applies it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .norms import squared_norms
from .transforms import Gradients

MODES = ("clip", "scale")


@dataclass(frozen=True)
class Larc:
    """Limits each tensor's step relative to its weights: |lr g| <= trust |w| in clip mode.

    clip:   g <- g min(max(trust |w| / (lr (|g| + eps)), min_update), 1)
    scale:  g <- g     max(trust |w| /     (|g| + eps),  min_update)

    A tensor of zeros (a fresh bias) gets min_update. Under NovoGrad with beta2 = 0 the factor
    cancels, because g is divided by its norm afterwards; with beta2 > 0 its changes remain.
    """

    trust: float = 0.001
    mode: str = "clip"
    eps: float = 1e-7
    min_update: float = 1e-7

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"LARC: mode must be one of {MODES}, not {self.mode!r}")
        for name in ("trust", "eps", "min_update"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ValueError(f"LARC: {name} must be finite and not negative, not {value!r}")

    def factors(self, gradients: Gradients) -> Tensor:
        norms = gradients.norms
        weights = squared_norms(gradients.params).sqrt().to(norms)
        if self.mode == "scale":
            return (self.trust * weights / (norms + self.eps)).clamp(min=self.min_update)
        if any(isinstance(lr, Tensor) for lr in gradients.lrs):
            lrs = torch.stack([torch.as_tensor(lr).to(norms).reshape(()) for lr in gradients.lrs])
        else:
            # From pinned memory, so that nobody waits for the device.
            lrs = torch.tensor(gradients.lrs, dtype=norms.dtype, pin_memory=norms.is_cuda)
            lrs = lrs.to(norms.device, non_blocking=True)
        # lr = 0 (the first warm-up step): 0/0 must not become NaN, and no clipping is needed.
        ratio = self.trust * weights / (lrs * (norms + self.eps))
        ratio = torch.where(lrs == 0, torch.ones_like(ratio), ratio)
        return ratio.clamp(min=self.min_update, max=1.0)
