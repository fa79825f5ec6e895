"""Jasper as NVIDIA's DeepLearningExamples runs it, on our model's parameters: what we compete with.

Written from its description. Every convolution, those of the dense residual connections too, makes
a mask from the lengths and sets its input to zero beyond them; then normalisation, ReLU and dropout
as torch has them, each with an output of its own. The front end pads the whole batch by reflection
at the batch's end, and normalises one utterance after another.
"""

from __future__ import annotations

from functools import cache
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from tasks.librispeech import features as front_end
from tasks.librispeech.alphabet import BLANK
from tasks.librispeech.model import Block, ConvNorm, Jasper


def plain_forward(model: Jasper, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """log p (B, T', classes) and lengths (B,); beyond these log p is unlike ours, and unused."""
    outputs = [features]
    for module in model.blocks:
        block = cast(Block, module)
        out, new_lengths = _sub_blocks(block, outputs[-1], lengths)
        for branch, entry in zip(block.branches, outputs, strict=False):
            out += _conv_norm(cast(ConvNorm, branch), entry, lengths)[0]
        out = F.dropout(F.relu(out), block.dropout, block.training)
        dense = len(block.branches) > 0
        outputs, lengths = ([*outputs, out] if dense else [out]), new_lengths
    return F.log_softmax(model.decoder(outputs[-1]).transpose(1, 2), dim=2), lengths


def _sub_blocks(block: Block, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    for number, layer in enumerate(block.layers):
        if number:
            x = F.dropout(F.relu(x), block.dropout, block.training)
        x, lengths = _conv_norm(cast(ConvNorm, layer), x, lengths)
    return x, lengths


def _conv_norm(layer: ConvNorm, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The masked convolution and its normalisation."""
    conv = layer.conv
    positions = torch.arange(x.shape[2], dtype=lengths.dtype, device=lengths.device)
    mask = positions.expand(len(lengths), x.shape[2]) >= lengths[:, None]
    x = x.masked_fill(mask[:, None].to(x.device), 0)
    (kernel,), (stride,), (dilation,) = conv.kernel_size, conv.stride, conv.dilation
    padding = cast("tuple[int]", conv.padding)[0]
    reach = lengths + 2 * padding - dilation * (kernel - 1) - 1
    out = F.conv1d(x, conv.weight, None, stride, padding, dilation)
    return layer.norm(out), torch.floor(reach / stride).long() + 1


def plain_loss(log_p: Tensor, lengths: Tensor, targets: Tensor, target_lengths: Tensor) -> Tensor:
    """CTC, summed over utterances."""
    losses = F.ctc_loss(
        log_p.transpose(1, 0),
        targets.long(),
        lengths.long(),
        target_lengths.long(),
        BLANK,
        reduction="none",
    )
    return losses.sum()


@torch.no_grad()
def plain_features(
    audio: Tensor, lengths: Tensor, dither: float = front_end.DITHER
) -> tuple[Tensor, Tensor]:
    """Sound (B, N) to log-mel features (B, 64, T), T a multiple of 16, and their lengths."""
    window, filters = _buffers(audio.dtype, audio.device)
    counts = torch.ceil(lengths.double() / front_end.HOP).to(torch.int)
    x = audio
    if dither > 0:
        x = x + dither * torch.randn_like(x)
    x = torch.cat((x[:, :1], x[:, 1:] - front_end.PRE_EMPHASIS * x[:, :-1]), dim=1)
    spectrum = torch.stft(
        x,
        n_fft=front_end.N_FFT,
        hop_length=front_end.HOP,
        win_length=front_end.WINDOW,
        window=window,
        return_complex=True,
    )
    power = torch.view_as_real(spectrum).pow(2).sum(-1)
    x = torch.log(torch.matmul(filters, power) + front_end.LOG_FLOOR)
    x = _normalise_one_by_one(x, counts)
    mask = torch.arange(x.shape[-1], device=x.device).expand(len(x), x.shape[-1])
    x = x.masked_fill((mask >= counts[:, None].to(x.device))[:, None], 0)
    return F.pad(x, (0, -x.shape[-1] % front_end.ALIGNED)), counts


@cache
def _buffers(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    window = torch.hann_window(front_end.WINDOW, periodic=False, dtype=torch.float64)
    return window.to(device, dtype), torch.from_numpy(front_end.mel_filters()).to(device, dtype)


def _normalise_one_by_one(x: Tensor, counts: Tensor) -> Tensor:
    mean, std = x.new_zeros(x.shape[:2]), x.new_zeros(x.shape[:2])
    for i in range(len(x)):
        mean[i] = x[i, :, : counts[i]].mean(dim=1)
        std[i] = x[i, :, : counts[i]].std(dim=1)
    std += front_end.STD_FLOOR
    return (x - mean[:, :, None]) / std[:, :, None]
