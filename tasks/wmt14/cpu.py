"""Parts of the Transformer that torch does slowly on a CPU. Elsewhere they are torch's own.

Matrix products of float32 are MKL's in torch. Where the rows of the result are wide, those of
oneDNN, which comes with torch too, are 1.1 to 1.3 times as fast on AMD's processors: the steps from
row to row of 16 KB and more meet the same few places of the caches, unless they are copied first.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

WIDE = 2048  # columns of a product from which on oneDNN's is the faster one


def product(a: Tensor, b: Tensor, plus: Tensor | None = None) -> Tensor:
    """(m, k) times (k, n), and (n) added to each row; float32 on a CPU."""
    if b.shape[1] < WIDE or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return a @ b if plus is None else torch.addmm(plus, a, b)
    out: Tensor = torch.ops.mkldnn._linear_pointwise(a, b.t(), plus, "none", [], "")
    return out


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """As `torch.nn.functional.linear`."""
    plain = x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32
    if not plain or torch.is_autocast_enabled("cpu") or max(weight.shape) < WIDE:
        return F.linear(x, weight, bias)
    rows = x.flatten(0, -2)
    out: Tensor = (
        _Linear.apply(rows, weight, bias)  # type: ignore[no-untyped-call]
        if torch.is_grad_enabled()
        else product(rows, weight.t(), bias)
    )
    return out if x.ndim == 2 else out.view(*x.shape[:-1], -1)  # no view where there need not be


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return product(x, weight.t(), bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        needs = ctx.needs_input_grad
        return (
            product(gradient, weight) if needs[0] else None,
            product(gradient.t(), x) if needs[1] else None,
            gradient.sum(0) if ctx.has_bias and needs[2] else None,
        )


class Linear(nn.Linear):
    """A linear map by the products above."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class Dropout(nn.Dropout):
    """On a CPU, where torch takes most of the time to draw, faster.

    A number is dropped there where 32 bits of torch's generator are below p · 2³².
    """

    def forward(self, x: Tensor, onto: Tensor | None = None) -> Tensor:
        """Of x some become 0, the others are divided by 1 - p; they are added to `onto`."""
        if not (self.training and self.p and x.device.type == "cpu"):
            x = super().forward(x)
            return x if onto is None else onto + x
        bits = torch.empty((x.numel() + 1) // 2, dtype=torch.int64).random_(-(2**63), None)
        numbers = bits.view(torch.int32)[: x.numel()].view(x.shape)  # from -2³¹
        kept = torch.empty(x.shape, dtype=x.dtype)
        torch.ge(numbers, round((self.p - 0.5) * 2**32), out=kept)
        onto = x.new_zeros(()) if onto is None else onto
        return torch.addcmul(onto, x, kept, value=1 / (1 - self.p))


class TiedWords(torch.autograd.Function):
    """Rows of the matrix of words, and the matrix itself, for the logits.

    The gradient of the matrix for the logits is there first. On the CPU that of the rows is added
    into it, where autograd would make and add a second one of 33 MB, nearly all zeros.
    """

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(tokens)
        return F.embedding(tokens, matrix), matrix.view_as(matrix)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, rows: Tensor, logits: Tensor) -> tuple[None, Tensor]:
        (tokens,) = ctx.saved_tensors
        if rows.device.type == "cpu":
            return None, logits.index_add_(0, tokens, rows)
        dense = torch.ops.aten.embedding_dense_backward(rows, tokens, len(logits), -1, False)
        return None, dense.add_(logits)
