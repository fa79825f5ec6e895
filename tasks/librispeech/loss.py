"""Connectionist temporal classification (Graves et al., 2006), as a sum over utterances."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from tasks.librispeech.alphabet import BLANK


class CtcOut(NamedTuple):
    """-log p summed over utterances, the number of all, and of those left out of the sum."""

    total: Tensor
    weight: float
    impossible: Tensor


def ctc(
    log_probabilities: Tensor,
    lengths: Tensor,
    targets: Tensor,
    target_lengths: Tensor,
    blank: int = BLANK,
) -> CtcOut:
    """Of log p (B, T, classes) and targets (B, S), both padded to the longest.

    Where log p is on a GPU, lengths and targets are best left on the host: torch needs the lengths
    there. It waits for the device seven times (small copies, four on the way forward and three on
    the way back), all of them between the last kernel of the model's forward pass and the first of
    its backward pass.

    An utterance with fewer frames than `frames_needed` has no alignment and p = 0. It adds nothing
    to the sum and to the gradient, and is counted. Any other infinity is an error and stays one.
    """
    needed = frames_needed(targets, target_lengths)
    possible = lengths >= needed
    if log_probabilities.is_meta:  # torch has no CTC there; operations can still be counted
        losses = log_probabilities.sum((1, 2))
    else:
        losses = F.ctc_loss(
            log_probabilities.transpose(0, 1),
            targets.to(log_probabilities.device, non_blocking=True),
            tuple(lengths.tolist()),  # type: ignore[arg-type]
            # The empty text fits into any utterance.
            tuple(torch.where(possible, target_lengths, 0).tolist()),  # type: ignore[arg-type]
            blank=blank,
            reduction="none",
        )
    total = torch.where(possible.to(losses.device, non_blocking=True), losses, 0).sum()
    return CtcOut(total, float(len(lengths)), (~possible).sum())


def frames_needed(targets: Tensor, target_lengths: Tensor) -> Tensor:
    """One for each character, and one for the blank between two that are equal."""
    equal = targets[:, 1:] == targets[:, :-1]
    inside = torch.arange(1, targets.shape[1], device=targets.device) < target_lengths[:, None]
    return target_lengths + (equal & inside).sum(1)
