"""Jasper DR 10x5 (Li et al., 2019, arXiv 1904.03288), after NVIDIA's first release in PyTorch.

A sub-block is a convolution in time, normalisation, ReLU and dropout. In the last sub-block of a
dense block, before the ReLU, the inputs of this block and of all dense blocks before it are added,
each through a 1×1 convolution and a normalisation of its own. What lies beyond the end of an
utterance is set to zero before every convolution, so that in evaluation the other utterances of a
batch do not matter; the statistics of training count these positions too, as the release does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tasks.dropout import drop
from tasks.librispeech.fast_conv import convolve

INITS = ("uniform", "normal")
BN_EPS = 1e-3
BN_MOMENTUM = 0.1  # the weight of new statistics
BEFORE, AFTER = 1, 2  # blocks before and after the dense ones: Conv1; Conv2 and Conv3


def _dense(per_pair: Sequence[Any]) -> list[Any]:
    """B1 and B2 are alike, so are B3 and B4, …"""
    return [value for value in per_pair for _ in range(2)]


@dataclass
class JasperOptions:
    """The default is the paper's model of 333 million parameters.

    The lists have an entry for each block: Conv1, the dense blocks B1, B2, …, Conv2, Conv3.
    """

    repeats: list[int] = field(default_factory=lambda: [1, *_dense([5] * 5), 1, 1])  # sub-blocks
    kernels: list[int] = field(default_factory=lambda: [11, *_dense([11, 13, 17, 21, 25]), 29, 1])
    widths: list[int] = field(
        default_factory=lambda: [256, *_dense([256, 384, 512, 640, 768]), 896, 1024]
    )
    dropouts: list[float] = field(
        default_factory=lambda: [0.2, *_dense([0.2, 0.2, 0.2, 0.3, 0.3]), 0.4, 0.4]
    )
    stride: int = 2  # of Conv1
    dilation: int = 2  # of Conv2
    features: int = 64
    classes: int = 29  # characters, and the blank as the last
    encoder_init: str = "uniform"  # Xavier's distribution; the decoder's is always uniform


class Jasper(nn.Module):
    """Features (B, features, T) and lengths (B,) to log p (B, T', classes) and lengths' (B,).

    log p is in float32 or float64, whatever the model computes in. T' = ⌈T / stride⌉.
    """

    def __init__(self, options: JasperOptions, *, checkpoint_activations: bool = False) -> None:
        """With `checkpoint_activations` only the inputs of blocks are kept for the backward pass.

        What lies between them is calculated again there, with the same dropout. Numbers are the
        same, and the statistics of normalisations count a batch once.
        """
        super().__init__()
        _check(options)
        self.stride = options.stride
        self.checkpoint_activations = checkpoint_activations
        dense = range(BEFORE, len(options.widths) - AFTER)
        channels, inputs = options.features, []
        self.blocks = nn.ModuleList()
        for i, width in enumerate(options.widths):
            if i in dense:
                inputs.append(channels)
            self.blocks.append(
                Block(
                    channels,
                    width,
                    options.kernels[i],
                    options.repeats[i],
                    options.dropouts[i],
                    inputs if i in dense else [],
                    stride=options.stride if i == 0 else 1,
                    dilation=options.dilation if i == dense.stop else 1,
                )
            )
            channels = width
        self.decoder = nn.Conv1d(channels, options.classes, 1)
        self._initialise(options.encoder_init)

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        first, *others = cast("Iterable[Block]", self.blocks)
        x = features.masked_fill(beyond(lengths, features.shape[-1]), 0)
        lengths = output_lengths(lengths, self.stride)
        padding = beyond(lengths, (x.shape[-1] - 1) // self.stride + 1)
        run = self._run_again if self.checkpoint_activations and self.training else _run
        x = run(first, x, [], padding)
        inputs: list[Tensor] = []  # of the dense blocks so far
        for block in others:
            if block.branches:
                inputs.append(x)
            x = run(block, x, inputs, padding)
        logits = self.decoder(x).transpose(1, 2)
        dtype = torch.promote_types(logits.dtype, torch.float32)
        return F.log_softmax(logits, dim=-1, dtype=dtype), lengths

    @staticmethod
    def _run_again(block: Block, x: Tensor, inputs: Sequence[Tensor], padding: Tensor) -> Tensor:
        """Twice in all: once now, and once on the way back."""
        out: Tensor = checkpoint(
            block,
            x,
            list(inputs),  # as they are now: the caller's grows
            padding,
            use_reentrant=False,
            context_fn=lambda: (nullcontext(), _without_statistics(block)),
        )
        return out

    def _initialise(self, encoder: str) -> None:
        """Xavier's weights; torch's γ = 1 and β = 0; no bias of the decoder."""
        draw = nn.init.xavier_uniform_ if encoder == "uniform" else nn.init.xavier_normal_
        for module in self.blocks.modules():
            if isinstance(module, nn.Conv1d):
                draw(module.weight)
        nn.init.xavier_uniform_(self.decoder.weight)
        assert self.decoder.bias is not None
        nn.init.zeros_(self.decoder.bias)


class Block(nn.Module):
    """`repeat` sub-blocks; the last adds a branch from each of `inputs`, given by channels.

    Takes and returns tensors (B, channels, T) that are zero where `padding` (B, 1, T) is set.
    """

    def __init__(
        self,
        channels: int,
        width: int,
        kernel: int,
        repeat: int,
        dropout: float,
        inputs: Sequence[int],
        *,
        stride: int = 1,
        dilation: int = 1,
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.layers = nn.ModuleList(
            ConvNorm(channels, width, kernel, stride, dilation)
            if i == 0
            else ConvNorm(width, width, kernel, 1, dilation)
            for i in range(repeat)
        )
        self.branches = nn.ModuleList(ConvNorm(entry, width, 1) for entry in inputs)

    def forward(self, x: Tensor, inputs: Sequence[Tensor], padding: Tensor) -> Tensor:
        """`inputs` of all dense blocks up to this one, its own x included."""
        *early, last = self.layers
        for layer in early:
            x = self._activate(layer(x), padding)
        x = last(x)
        if self.branches:
            for branch, entry in zip(self.branches, inputs, strict=True):
                x += branch(entry)
        return self._activate(x, padding)

    def _activate(self, x: Tensor, padding: Tensor) -> Tensor:
        apply: Any = _Activate.apply
        out: Tensor = apply(x, padding, self.dropout if self.training else 0.0)
        return out


class ConvNorm(nn.Module):
    """Convolution in time with as many outputs as inputs (SAME; stride 1), and normalisation."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, dilation: int = 1
    ) -> None:
        super().__init__()
        same = kernel // 2 * dilation
        self.conv = TimeConv(inputs, outputs, kernel, stride, same, dilation, bias=False)
        self.norm = nn.BatchNorm1d(outputs, eps=BN_EPS, momentum=BN_MOMENTUM)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(self.conv(x))
        return out


class TimeConv(nn.Conv1d):
    """A convolution with as many outputs as inputs; the same function, faster on the CPU."""

    def forward(self, x: Tensor) -> Tensor:
        if self.stride == self.dilation == (1,):
            return convolve(x, self.weight)
        return super().forward(x)


def _run(block: Block, x: Tensor, inputs: Sequence[Tensor], padding: Tensor) -> Tensor:
    out: Tensor = block(x, inputs, padding)
    return out


@contextmanager
def _without_statistics(block: Block) -> Iterator[None]:
    """Batches are normalised as in training, but only copies of the statistics are moved."""
    norms = [module for module in block.modules() if isinstance(module, nn.BatchNorm1d)]
    own = [norm._buffers for norm in norms]
    for norm, buffers in zip(norms, own, strict=True):
        norm._buffers = {k: None if b is None else b.clone() for k, b in buffers.items()}
    try:
        yield
    finally:
        for norm, buffers in zip(norms, own, strict=True):
            norm._buffers = buffers


class _Activate(torch.autograd.Function):
    """ReLU, dropout with probability p, and zeros where `padding` is set.

    The output tells all that the gradient needs: it is positive where x was and was kept. As the
    next convolution keeps it anyway, no tensor is kept for this function alone; torch's ReLU and
    dropout would keep two.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, padding: Tensor, p: float) -> Tensor:
        # Nothing in place: torch.compile would keep what y was before it.
        y = torch.where(padding, 0, x).relu()
        if p > 0:
            y = drop(y, p)
        ctx.save_for_backward(y)
        ctx.scale = 1 / (1 - p)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (y,) = ctx.saved_tensors
        inner = torch.ops.aten.threshold_backward(gradient, y, 0)
        return (inner if ctx.scale == 1 else inner * ctx.scale), None, None


def output_lengths(lengths: Tensor, stride: int) -> Tensor:
    """Of L inputs a convolution makes ⌊(L + 2p - d(k - 1) - 1) / s⌋ + 1 outputs.

    As kernels are odd and p = d(k - 1) / 2, only the stride of the first block changes lengths.
    """
    return (lengths - 1) // stride + 1


def beyond(lengths: Tensor, total: int) -> Tensor:
    """Which of `total` positions lie at or after the end of each utterance: (B, 1, total)."""
    return (torch.arange(total, device=lengths.device) >= lengths[:, None])[:, None]


def _check(options: JasperOptions) -> None:
    blocks = len(options.widths)
    lists = {name: getattr(options, name) for name in ("repeats", "kernels", "widths", "dropouts")}
    for name, values in lists.items():
        if len(values) != blocks or blocks < BEFORE + AFTER:
            raise ValueError(
                f"Jasper: {name} must have an entry for each of at least {BEFORE + AFTER} blocks,"
                f" as many as widths has ({blocks}), not {values!r}"
            )
    for name in ("repeats", "widths"):
        if min(lists[name]) < 1:
            raise ValueError(f"Jasper: {name} must be at least 1, not {lists[name]!r}")
    if any(kernel < 1 or kernel % 2 == 0 for kernel in options.kernels):
        raise ValueError(f"Jasper: kernels must be odd, not {options.kernels!r}")
    if not all(0 <= p < 1 for p in options.dropouts):
        raise ValueError(f"Jasper: dropouts must be in [0, 1), not {options.dropouts!r}")
    for name in ("stride", "dilation", "features", "classes"):
        value = getattr(options, name)
        if value < 1:
            raise ValueError(f"Jasper: {name} must be at least 1, not {value!r}")
    if options.encoder_init not in INITS:
        raise ValueError(
            f"Jasper: encoder_init must be one of {INITS}, not {options.encoder_init!r}"
        )
