"""Long convolutions in time on the CPU, with a fifth to a tenth of the multiplications.

Time is cut into blocks of N inputs, which give N - K + 1 outputs each, and a block is multiplied
with the kernel in the frequency domain. A product of two complex numbers takes three real ones,
so that everything is real and linear: with constant matrices A, B and C an output block is
C ((A x) ⊙ (B w)), where ⊙ is a product over channels for each of R = 3N/2 - 1 rows. The transposed
matrices give the gradients. Equal to torch's convolution up to rounding.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

BLOCK = 64  # N
SHORTEST, LONGEST = 9, 33  # kernels for which it is worth while
NARROWEST = 128  # channels; below, the transforms cost more than they save
# B · T · K; below, transforming the weights costs more than is saved. Measured on AVX2, one thread.
SMALLEST = 16_000


def convolve(x: Tensor, weight: Tensor) -> Tensor:
    """`conv1d` with padding for as many outputs as inputs; x (B, C, T), weight (O, C, K), K odd."""
    if not _is_worth_while(x, weight):
        return F.conv1d(x, weight, padding=weight.shape[-1] // 2)
    apply: Any = _Convolution.apply
    out: Tensor = apply(x, weight)
    return out


def _is_worth_while(x: Tensor, weight: Tensor) -> bool:
    outputs, inputs, kernel = weight.shape
    return (
        x.device.type == "cpu"
        and x.dtype == weight.dtype
        and x.dtype in (torch.float32, torch.float64)
        and SHORTEST <= kernel <= LONGEST
        and min(inputs, outputs) >= NARROWEST
        and x.shape[0] * x.shape[-1] * kernel >= SMALLEST
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        kernel = weight.shape[-1]
        *_, back = _transforms(kernel, x.dtype)
        products = torch.bmm(_transform_input(x, kernel), _transform_weight(weight))
        return _join(back @ products.flatten(1), x.shape, weight.shape[0])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        outputs, inputs, kernel = weight.shape
        forth, of_weight, back = _transforms(kernel, x.dtype)
        blocks = _cut_outputs(gradient, kernel)
        hat = (back.t() @ blocks).view(len(forth), -1, outputs)
        of_x = of_w = None
        if ctx.needs_input_grad[0]:
            products = torch.bmm(hat, _transform_weight(weight).transpose(1, 2))
            of_x = _overlap_add(forth.t() @ products.flatten(1), x.shape, kernel)
        if ctx.needs_input_grad[1]:
            products = torch.bmm(_transform_input(x, kernel).transpose(1, 2), hat)
            taps = of_weight.t() @ products.flatten(1)  # (K, C · O)
            of_w = taps.view(kernel, inputs, outputs).permute(2, 1, 0).contiguous()
        return of_x, of_w


def _transform_input(x: Tensor, kernel: int) -> Tensor:
    """(B, C, T) to (R, blocks · B, C)."""
    batch, channels, frames = x.shape
    forth, _, _ = _transforms(kernel, x.dtype)
    step = BLOCK - kernel + 1
    count = -(-frames // step)
    padded = x.new_zeros(count * step + kernel - 1, batch, channels)
    padded[kernel // 2 : kernel // 2 + frames] = x.permute(2, 0, 1)
    row = batch * channels
    blocks = padded.as_strided((BLOCK, count, row), (row, step * row, 1)).flatten(1)
    return (forth @ blocks).view(len(forth), -1, channels)


def _transform_weight(weight: Tensor) -> Tensor:
    """(O, C, K) to (R, C, O)."""
    outputs, inputs, kernel = weight.shape
    _, of_weight, _ = _transforms(kernel, weight.dtype)
    taps = weight.permute(2, 1, 0).reshape(kernel, -1)
    return (of_weight @ taps).view(-1, inputs, outputs)


def _join(blocks: Tensor, shape: torch.Size, outputs: int) -> Tensor:
    """(step, blocks · B · O) to (B, O, T)."""
    batch, _, frames = shape
    step = len(blocks)
    in_time = blocks.view(step, -1, batch, outputs).permute(2, 3, 1, 0)
    return in_time.reshape(batch, outputs, -1)[:, :, :frames].contiguous()


def _cut_outputs(gradient: Tensor, kernel: int) -> Tensor:
    """The inverse of `_join`, with zeros behind the end: (B, O, T) to (step, blocks · B · O)."""
    batch, outputs, frames = gradient.shape
    step = BLOCK - kernel + 1
    count = -(-frames // step)
    padded = F.pad(gradient, (0, count * step - frames)).view(batch, outputs, count, step)
    return padded.permute(3, 2, 0, 1).reshape(step, -1)


def _overlap_add(blocks: Tensor, shape: torch.Size, kernel: int) -> Tensor:
    """(N, blocks · B · C), each block starting a step after the last, to (B, C, T)."""
    batch, channels, frames = shape
    step = BLOCK - kernel + 1
    row = batch * channels
    blocks = blocks.view(BLOCK, -1, row)
    count = blocks.shape[1]
    total = blocks.new_zeros((count + BLOCK // step + 1) * step, row)
    for first in range(0, BLOCK, step):
        part = blocks[first : first + step].transpose(0, 1)  # (blocks, ≤ step, row)
        place = total[first : first + count * step].view(count, step, row)
        place[:, : part.shape[1]] += part
    kept = total[kernel // 2 : kernel // 2 + frames].view(frames, batch, channels)
    return kept.permute(1, 2, 0).contiguous()


@lru_cache(maxsize=32)
def _transforms(kernel: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """A (R, N), B (R, K) and C (N - K + 1, R), computed in float64.

    For each frequency with x̂ = a + ib and the kernel's conjugate c + id, whose product is
    (k₁ - k₃) + i(k₁ + k₂): k₁ = c(a + b), k₂ = a(d - c), k₃ = b(c + d). Those of frequencies 0 and
    N/2 are real.
    """
    half = BLOCK // 2
    inner, ends = np.arange(1, half), np.array([0, half])
    cos, sin, cos_ends = _waves(inner, BLOCK), _waves(inner, BLOCK, np.sin), _waves(ends, BLOCK)
    real, imaginary = cos, -sin  # of the transform of real numbers
    forth = np.concatenate([real + imaginary, real, imaginary, cos_ends])
    c, d = cos[:, :kernel], sin[:, :kernel]  # of the conjugate
    of_weight = np.concatenate([c, d - c, c + d, cos_ends[:, :kernel]])
    to_real, to_imaginary = 2 * cos.T / BLOCK, -2 * sin.T / BLOCK
    back = np.concatenate(
        [to_real + to_imaginary, to_imaginary, -to_real, cos_ends.T / BLOCK], axis=1
    )[: BLOCK - kernel + 1]
    first, second, third = (torch.from_numpy(m.copy()).to(dtype) for m in (forth, of_weight, back))
    return first, second, third


def _waves(frequencies: np.ndarray, count: int, wave: Any = np.cos) -> np.ndarray:
    """The waves of some frequencies at 0, 1, … count - 1."""
    turns = np.outer(frequencies, np.arange(count)) % count
    found: np.ndarray = wave(2 * np.pi * turns / count)
    return found
