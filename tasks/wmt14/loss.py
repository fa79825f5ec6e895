"""Cross entropy with smoothed labels, with its gradient calculated on the way forward.

Of V words the right one has the probability 1 - s, each other one s / (V - 1). With logits z the
loss of a word is log Σ eᶻ - Σ q z and its gradient softmax z - q: one exponential of every logit,
where log-softmax and its gradient take two, and one tensor as large as the logits is kept.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def smoothed_cross_entropy(
    logits: Tensor, targets: Tensor, smoothing: float, pad: int | None = None
) -> Tensor:
    """The sum over all targets but `pad`; in float32 at least.

    logits: (..., V), of any kind of float. targets: int64 (...), words below V.
    """
    words = logits.shape[-1]
    if logits.shape[:-1] != targets.shape:
        raise ValueError(
            f"smoothed_cross_entropy: logits of {tuple(logits.shape[:-1])} words for targets of "
            f"{tuple(targets.shape)}"
        )
    if words < 2 or not 0 <= smoothing < 1:
        raise ValueError(
            f"smoothed_cross_entropy: smoothing must be in [0, 1) over 2 words at least, "
            f"not {smoothing!r} over {words}"
        )
    loss: Tensor = _Smoothed.apply(logits.flatten(0, -2), targets.flatten(), smoothing, pad)  # type: ignore[no-untyped-call]
    return loss


class _Smoothed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, smoothing: float, pad: int | None
    ) -> Tensor:
        kind = torch.promote_types(logits.dtype, torch.float32)
        wrong = smoothing / (logits.shape[1] - 1)
        right = 1 - smoothing - wrong  # more than that
        at = targets[:, None]
        p = logits.softmax(1, dtype=kind)
        # log Σ eᶻ at the greatest logit, as p of the target may be too small for a float
        normaliser = logits.amax(1).to(kind) - p.amax(1).log()
        chosen = logits.gather(1, at)[:, 0].to(kind)
        losses = normaliser - right * chosen - wrong * logits.sum(1, dtype=kind)
        counts = torch.ones_like(losses) if pad is None else (targets != pad).to(kind)
        if ctx.needs_input_grad[0]:
            gradient = p.sub_(wrong).scatter_add_(1, at, p.new_full((), -right).expand(at.shape))
            ctx.save_for_backward(gradient.to(logits.dtype), counts)
        return losses.dot(counts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        of_logits, counts = ctx.saved_tensors
        return of_logits * (counts * gradient).to(of_logits.dtype)[:, None], None, None, None
