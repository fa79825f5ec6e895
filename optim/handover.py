"""What gradient transforms hand over to NovoGrad instead of scaling the gradients themselves."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


class HandedOver(NamedTuple):
    """Norms and factors per parameter group, and the gradients that they belong to."""

    squared_norms: list[Tensor]
    factors: list[Tensor]
    gradients: list[weakref.ref[Tensor]]
    versions: list[int]

    @classmethod
    def about(
        cls, gradients: list[Tensor], squared_norms: Sequence[Tensor], factors: Sequence[Tensor]
    ) -> HandedOver:
        """Norms and factors for these gradients as they are now."""
        return cls(
            [v.to(torch.float64).contiguous() for v in squared_norms],
            [v.to(torch.float64).contiguous() for v in factors],
            [weakref.ref(g) for g in gradients],
            [g._version for g in gradients],
        )

    def is_about(self, param_groups: list[dict[str, Any]]) -> bool:
        """Whether these are the gradients that were handed over, unchanged.

        False if all are others: those of a step that was skipped, say. An error if some are the
        same but not as they were. (A change through `.data` can't be noticed.)
        """
        now, then = gradients_of(param_groups), [ref() for ref in self.gradients]
        same = [new is old for new, old in zip(now, then, strict=False)]
        if len(now) == len(then) and all(same):
            if all(g._version == v for g, v in zip(now, self.versions, strict=True)):
                return True
        elif not any(same):
            return False
        raise RuntimeError(
            "NovoGrad: the gradients changed after their norms were handed over; apply the "
            "gradient transforms after the last change to the gradients, just before step()"
        )


def gradients_of(param_groups: list[dict[str, Any]]) -> list[Tensor]:
    """The gradients that there are, in the order of the parameters."""
    every = [p.grad for group in param_groups for p in group["params"]]
    return [g for g in every if g is not None]
