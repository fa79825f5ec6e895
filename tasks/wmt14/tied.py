"""Words that enter a Transformer and its logits, with one gradient for both."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


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
