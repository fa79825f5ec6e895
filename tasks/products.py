"""Matrix products of float32 on a CPU, by the faster one of the two libraries that torch has.

torch leaves them to MKL, which uses AVX-512 on Intel's processors only. oneDNN, which comes with
torch too, also uses it on others, and is about twice as fast there. Small products stay with MKL,
and so does every product on Intel's processors and on those without AVX-512.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

LARGE = 2**16  # entries from which on a factor counts as large


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """As `torch.nn.functional.linear`; by oneDNN if the weight is large."""
    is_matrix = x.ndim > 1 and x.numel() > 0
    factors = (x, weight) if bias is None else (x, weight, bias)
    if not (is_matrix and weight.numel() >= LARGE and _is_plain(*factors) and onednn_is_faster()):
        return F.linear(x, weight, bias)
    rows = x.flatten(0, -2)
    out: Tensor = (
        _Linear.apply(rows, weight, bias)  # type: ignore[no-untyped-call]
        if torch.is_grad_enabled()
        else _by_onednn(rows, weight.t(), bias)
    )
    return out if x.ndim == 2 else out.view(*x.shape[:-1], -1)  # no view where there need not be


def product(a: Tensor, b: Tensor, plus: Tensor | None = None) -> Tensor:
    """(m, k) times (k, n), and (n) added to each row; by oneDNN if both are large. No gradient."""
    if is_onednns(a, b):
        return _by_onednn(a, b, plus)
    return a @ b if plus is None else torch.addmm(plus, a, b)


def is_onednns(a: Tensor, b: Tensor) -> bool:
    """Whether `product` leaves these factors to oneDNN."""
    large = min(a.numel(), b.numel()) >= LARGE
    return large and _is_plain(a, b) and onednn_is_faster()


class Linear(nn.Linear):
    """A linear map by the products above."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return _by_onednn(x, weight.t(), bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        needs = ctx.needs_input_grad
        return (
            _by_onednn(gradient, weight) if needs[0] else None,
            _by_onednn(gradient.t(), x) if needs[1] else None,
            gradient.sum(0) if ctx.has_bias and needs[2] else None,
        )


def _is_plain(*tensors: Tensor) -> bool:
    """Whether oneDNN may multiply them: float32 on a CPU, without autocast.

    Not in code for torch.compile, whose graph would break at the question which library is faster.
    """
    return (
        all(t.device.type == "cpu" and t.dtype == torch.float32 for t in tensors)
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


@cache
def onednn_is_faster() -> bool:
    """Whether this processor has AVX-512 and is not Intel's, and torch can leave products to it."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):  # not a public function
        return False
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    try:
        return "GenuineIntel" not in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


def _by_onednn(a: Tensor, b: Tensor, plus: Tensor | None = None) -> Tensor:
    if plus is not None:
        plus = plus.contiguous()  # its strides are ignored
    out: Tensor = torch.ops.mkldnn._linear_pointwise(a, b.t(), plus, "none", [], "")
    return out
