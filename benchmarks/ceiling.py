"""What a machine can do at best: the matrix products of a large multiplication, and bandwidth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from analysis.performance import Measurement
from benchmarks.contest import seconds

SIZE = 1536  # rows and columns of the multiplication
TRIES = 7


def count_flops(action: Callable[[], object]) -> int:
    """Of the matrix products and convolutions of an action."""
    with FlopCounterMode(display=False) as counter:
        action()
    return int(counter.get_total_flops())


def flops_per_second(device: torch.device) -> float:
    """Of a product of two large float32 matrices, the quickest of some."""
    a, b = torch.randn(SIZE, SIZE, device=device), torch.randn(SIZE, SIZE, device=device)
    out = torch.empty_like(a)
    product = lambda: torch.mm(a, b, out=out)  # noqa: E731
    return 2 * SIZE**3 / min(seconds(product, device) for _ in range(TRIES))


def of_matrix_products(
    found: Measurement, action: Callable[[], object], amount: float, device: torch.device
) -> Measurement:
    """With the share of the machine's best matrix product that the action's products reach."""
    share = count_flops(action) * found.ours / amount / flops_per_second(device)
    return replace(found, limit="a large matrix product's flop/s", of_limit=share)


def in_place_gb_per_s(a: Tensor, b: Tensor) -> float:
    """The memory's bandwidth for updates in place, with arrays that no cache holds."""
    taken = seconds(lambda: a.add_(b, alpha=1e-9), a.device)
    return 12e-9 * a.numel() / taken
