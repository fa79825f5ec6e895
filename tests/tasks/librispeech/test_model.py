"""Jasper DR 10x5 as the paper has it."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tasks.dropout import drop
from tasks.librispeech.model import Block, ConvNorm, Jasper, JasperOptions


def small(**others: Any) -> JasperOptions:
    """Two dense blocks; dropout is on."""
    options: dict[str, Any] = {
        "repeats": [1, 2, 3, 1, 1],
        "kernels": [11, 3, 5, 7, 1],
        "widths": [6, 8, 10, 7, 9],
        "dropouts": [0.1, 0.2, 0.3, 0.4, 0.5],
        "features": 4,
        "classes": 5,
    }
    return JasperOptions(**(options | others))


def model(options: JasperOptions) -> Jasper:
    """In float64, with gains, biases and statistics that are not those of the start."""
    out = Jasper(options).double()
    for module in out.modules():
        if isinstance(module, nn.BatchNorm1d):
            assert module.running_mean is not None
            assert module.running_var is not None
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias)
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    nn.init.normal_(out.decoder.bias)  # type: ignore[arg-type]
    return out


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(4, 4, 40, dtype=torch.float64), torch.tensor([40, 33, 8, 1])


def transcription(jasper: Jasper, options: JasperOptions, x: Tensor, n: Tensor) -> Tensor:
    """Plain torch, with a mask before every convolution and a list that the blocks append to."""

    def masked(x: Tensor, n: Tensor) -> Tensor:
        return x * (torch.arange(x.shape[-1]) < n[:, None])[:, None]

    def apply(module: nn.Module, x: Tensor, n: Tensor, stride: int, dilation: int) -> Tensor:
        assert isinstance(module, ConvNorm)
        (kernel,), norm = module.conv.kernel_size, module.norm
        same = kernel // 2 * dilation
        y = F.conv1d(masked(x, n), module.conv.weight, None, stride, same, dilation)
        mean, var = norm.running_mean, norm.running_var
        assert mean is not None
        assert var is not None
        if norm.training:  # the statistics of all positions, those beyond the end too
            mean, var = y.mean((0, 2)), y.var((0, 2), unbiased=False)
        y = (y - mean[:, None]) / (var[:, None] + 1e-3).sqrt()
        return y * norm.weight[:, None] + norm.bias[:, None]

    inputs = []
    for i, block in enumerate(jasper.blocks):
        dense = 0 < i < len(jasper.blocks) - 2
        if dense:
            inputs.append(x)
        assert isinstance(block, Block)
        layers, branches = list(block.layers), list(block.branches)
        assert len(layers) == options.repeats[i]
        assert len(branches) == (i if dense else 0)
        for j, layer in enumerate(layers):
            x = apply(layer, x, n, 2 if i == 0 else 1, 2 if i == len(jasper.blocks) - 2 else 1)
            if i == 0:
                n = (n + 1) // 2
            if j == len(layers) - 1:
                for branch, entry in zip(branches, inputs, strict=False):
                    x = x + apply(branch, entry, n, 1, 1)
            x = drop(F.relu(x), options.dropouts[i]) if jasper.training else F.relu(x)
    logits = F.conv1d(masked(x, n), jasper.decoder.weight, jasper.decoder.bias)
    return logits.transpose(1, 2).log_softmax(-1)


def test_jasper_has_the_papers_size():
    with torch.device("meta"):
        jasper = Jasper(JasperOptions())
        log_p, lengths = jasper(torch.empty(2, 64, 160), torch.empty(2, dtype=torch.long))
    assert log_p.shape == (2, 80, 29)
    assert lengths.shape == (2,)
    parameters = list(jasper.parameters())
    assert sum(p.numel() for p in parameters) == 332_632_349
    assert len(parameters) == 326
    convs = [m for m in jasper.modules() if isinstance(m, nn.Conv1d)]
    kernels = {(11,): 11, (13,): 10, (17,): 10, (21,): 10, (25,): 10, (29,): 1, (1,): 57}
    assert Counter(m.kernel_size for m in convs) == kernels
    assert [m.kernel_size for m in convs if m.stride != (1,)] == [(11,)]
    assert [m.kernel_size for m in convs if m.dilation != (1,)] == [(29,)]
    branches = [len(m.branches) for m in jasper.modules() if isinstance(m, Block)]
    assert branches == [0, *range(1, 11), 0, 0]
    norms = [m for m in jasper.modules() if isinstance(m, nn.BatchNorm1d)]
    assert {(m.momentum, m.eps) for m in norms} == {(0.1, 1e-3)}


@pytest.mark.parametrize("training", [False, True])
def test_outputs_and_gradients_are_the_transcriptions(training: bool):
    """With dropout: both draw the same numbers in the same order."""
    jasper = model(small()).train(training)
    features, lengths = batch()
    with torch.random.fork_rng():
        log_p, _ = jasper(features, lengths)
    with torch.random.fork_rng():
        expected = transcription(jasper, small(), features, lengths)
    torch.testing.assert_close(log_p, expected, rtol=0, atol=1e-12)
    weights = torch.randn_like(log_p)
    parameters = list(jasper.parameters())
    ours = torch.autograd.grad((log_p * weights).sum(), parameters)
    theirs = torch.autograd.grad((expected * weights).sum(), parameters)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_padding_does_not_matter_in_evaluation():
    jasper = model(small()).eval()
    features, lengths = batch()
    features[1, :, 33:] = math.nan
    features[2, :, 8:] = 1e6
    with torch.no_grad():
        log_p, outputs = jasper(features, lengths)
        assert outputs.tolist() == [20, 17, 4, 1]
        for i, n in enumerate(lengths.tolist()):
            alone, count = jasper(features[i : i + 1, :, :n], lengths[i : i + 1])
            assert alone.shape == (1, outputs[i], 5)
            assert count.item() == outputs[i]
            torch.testing.assert_close(alone[0], log_p[i, :count], rtol=0, atol=1e-12)


@pytest.mark.slow
def test_a_compiled_model_is_the_same(monkeypatch: pytest.MonkeyPatch):
    """With dropout, which is torch's own in compiled code; gradients too, which come from a
    function with a backward of its own."""
    jasper = model(small())
    features, lengths = batch()
    compiled: Any = torch.compile(jasper, backend="aot_eager", fullgraph=True)
    parameters = list(jasper.parameters())
    outcomes = []
    for call in (jasper, compiled):
        with torch.random.fork_rng(), monkeypatch.context() as patch:
            if call is jasper:
                patch.setattr("tasks.librispeech.model.drop", F.dropout)
            log_p, _ = call(features, lengths)
        gradients = torch.autograd.grad(log_p.square().sum(), parameters)
        outcomes.append([log_p.detach(), *gradients])
    for a, b in zip(*outcomes, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_training_keeps_two_tensors_for_a_sub_block():
    """What the convolution makes, and what comes out after the dropout; and one for a branch."""
    jasper = model(small())
    features, lengths = batch()
    kept: dict[int, Tensor] = {}  # tensors stay alive, so that no address is used twice

    def keep(tensor: Tensor) -> Tensor:
        if tensor.dim() == 3 and len(tensor) == len(features) and tensor.is_floating_point():
            if tensor.shape[-1] > 5:  # not log p
                kept.setdefault(tensor.data_ptr(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        jasper(features, lengths)
    assert len(kept) == 1 + 2 * (1 + 2 + 3 + 1 + 1) + (1 + 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_log_probabilities_are_never_short(dtype: torch.dtype):
    jasper = Jasper(small())
    features, lengths = batch()
    with torch.autocast("cpu", dtype):
        log_p, _ = jasper(features.float(), lengths)
    assert log_p.dtype == torch.float32
    assert Jasper(small()).to(torch.bfloat16)(features.bfloat16(), lengths)[0].dtype == (
        torch.float32
    )
    torch.testing.assert_close(log_p.exp().sum(-1), torch.ones(4, 20))


@pytest.mark.parametrize("init", ["uniform", "normal"])
def test_weights_start_from_xaviers(init: str):
    jasper = Jasper(small(widths=[24, 32, 40, 28, 36], encoder_init=init))
    for name, module in jasper.named_modules():
        if isinstance(module, nn.Conv1d):
            values = module.weight.detach().flatten()
            fans = (module.in_channels + module.out_channels) * module.kernel_size[0]
            std = math.sqrt(2 / fans)
            # Standard errors of a mean and (at most, that of the normal) of a deviation; four.
            assert abs(values.mean()) < 4 * std / math.sqrt(len(values))
            assert abs(values.std() / std - 1) < 4 / math.sqrt(2 * len(values))
            bounded = bool(values.abs().max() <= math.sqrt(3) * std * (1 + 1e-6))
            assert bounded == (init == "uniform" or name == "decoder")
        elif isinstance(module, nn.BatchNorm1d):
            assert (module.weight == 1).all()
            assert (module.bias == 0).all()
    assert jasper.decoder.bias is not None
    assert (jasper.decoder.bias == 0).all()


def test_wrong_options_are_named():
    with pytest.raises(ValueError, match=r"kernels must have an entry .*\(5\), not \[3\]"):
        Jasper(small(kernels=[3]))
    with pytest.raises(ValueError, match=r"at least 3 blocks"):
        Jasper(JasperOptions([1], [1], [1], [0.0]))
    with pytest.raises(ValueError, match=r"kernels must be odd, not \[11, 4, 5, 7, 1\]"):
        Jasper(small(kernels=[11, 4, 5, 7, 1]))
    with pytest.raises(ValueError, match="repeats must be at least 1"):
        Jasper(small(repeats=[1, 0, 1, 1, 1]))
    with pytest.raises(ValueError, match=r"dropouts must be in \[0, 1\)"):
        Jasper(small(dropouts=[0, 0, 0, 0, 1.0]))
    with pytest.raises(ValueError, match="stride must be at least 1, not 0"):
        Jasper(small(stride=0))
    with pytest.raises(ValueError, match=r"encoder_init must be one of .* not 'zeros'"):
        Jasper(small(encoder_init="zeros"))
