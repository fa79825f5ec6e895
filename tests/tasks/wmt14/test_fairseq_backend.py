"""Our Transformer's variant "fairseq" is fairseq's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tasks.wmt14.fairseq_backend import (
    FairseqTransformer,
    from_fairseq,
    smoothed_loss,
    to_fairseq,
)
from tasks.wmt14.model import Transformer, TransformerOptions
from tests.tasks.wmt14.small import PAD, WORDS, options, sentences, tiny

ROOT = Path(__file__).parents[3]


def both(**some: Any) -> tuple[Transformer, FairseqTransformer]:
    """With the same parameters, in float64, for evaluation."""
    ours = tiny("fairseq", **some)
    theirs = FairseqTransformer(ours.options).double().eval()
    theirs.model.load_state_dict(to_fairseq(ours.state_dict()))
    return ours, theirs


def padded(target: Tensor, ends: Tensor) -> Tensor:
    return target.masked_fill(torch.arange(target.shape[1]) >= ends[:, None], PAD)


@pytest.mark.usefixtures("exact_fairseq")
@pytest.mark.parametrize("pad", [0, 1])
@pytest.mark.parametrize(("encoder_layers", "decoder_layers"), [(2, 2), (3, 1)])
def test_gives_the_same_logits(pad: int, encoder_layers: int, decoder_layers: int):
    sizes = {"encoder_layers": encoder_layers, "decoder_layers": decoder_layers}
    ours, theirs = both(pad=pad, **sizes)
    source, target = sentences(6, 6)[0], sentences(5, 5)[0]
    torch.testing.assert_close(
        ours(source, None, target), theirs(source, None, target), rtol=1e-10, atol=1e-10
    )


@pytest.mark.usefixtures("exact_fairseq")
def test_gives_the_same_logits_and_gradients_with_padding():
    ours, theirs = both()
    (source, lengths), (target, ends) = sentences(6, 1, 3), sentences(2, 5, 4)
    target = padded(target, ends)
    weights = torch.randn(3, 5, WORDS, dtype=torch.float64) * (target != PAD)[..., None]
    results = []
    for model in (ours, theirs):
        logits = model(source, lengths, target)
        (logits * weights).sum().backward()
        results.append(logits[target != PAD])
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)
    gradients = {n: p.grad for n, p in theirs.model.named_parameters(remove_duplicate=False)}
    gradients = from_fairseq({n: g for n, g in gradients.items() if g is not None})
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-10, atol=1e-10)


def test_parameters_go_there_and_back_bit_by_bit():
    ours = tiny("fairseq").float().state_dict()
    back = from_fairseq(to_fairseq(ours))
    assert back.keys() == ours.keys()
    assert all(torch.equal(back[name], ours[name]) for name in ours)
    theirs = FairseqTransformer(options("fairseq")).model.state_dict()
    again = to_fairseq(from_fairseq(theirs))
    assert again.keys() == theirs.keys()
    assert all(torch.equal(again[name], theirs[name]) for name in theirs)


def test_what_has_no_counterpart_is_named():
    with pytest.raises(ValueError, match=r"to_fairseq: source\.norm.weight has no counterpart"):
        to_fairseq({"source.norm.weight": torch.ones(2)})
    theirs = to_fairseq(tiny("fairseq").state_dict())
    with pytest.raises(ValueError, match=r"encoder\.layers\.0\.moe\.weight has no counterpart"):
        from_fairseq(theirs | {"encoder.layers.0.moe.weight": torch.ones(2)})
    with pytest.raises(ValueError, match="must be the same matrix"):
        from_fairseq(theirs | {"decoder.embed_tokens.weight": torch.ones(WORDS, 12)})
    with pytest.raises(ValueError, match="variant must be \"fairseq\", not 'nemo'"):
        FairseqTransformer(options("nemo"))


def test_has_the_size_of_the_big_one():
    with torch.device("meta"):
        model = FairseqTransformer(TransformerOptions(variant="fairseq"))
    assert sum(p.numel() for p in model.parameters()) == 184_745_984


def test_drops_at_the_same_places():
    """The sites have the same number and rate; which elements go is each one's own draw."""
    ours, theirs = both(dropout=0.2)
    rates: list[Any] = [m.p for m in theirs.modules() if type(m).__name__ == "FairseqDropout"]
    layers = 2 * 3 + 2 * 4  # output of sublayers, ReLU, and one or two attentions
    assert len(rates) == 2 + layers
    assert rates.count(0.0) == 4  # the ReLU's
    assert set(rates) == {0.0, ours.options.dropout}


def test_smoothed_loss_is_torchs():
    """Which spreads the smoothing over all V words, the right one among them."""
    logits = torch.randn(2, 3, WORDS, dtype=torch.float64)
    targets = torch.randint(WORDS, (2, 3))
    expected = F.cross_entropy(
        logits.flatten(0, 1),
        targets.flatten(),
        reduction="sum",
        label_smoothing=0.1 * WORDS / (WORDS - 1),
    )
    torch.testing.assert_close(smoothed_loss(logits, targets, 0.1), expected)


def test_leaves_the_process_as_it_was():
    """Not imported before it is needed; no handler of logs, and nothing in Hydra's store."""
    code = """
import logging, sys
import tasks.wmt14.fairseq_backend as backend
assert "fairseq" not in sys.modules and "omegaconf" not in sys.modules
before = logging.root.handlers[:], logging.root.level
backend.load_fairseq()
assert "fairseq" in sys.modules
assert before == (logging.root.handlers, logging.root.level)
assert logging.root.manager.disable == 0
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
assert set(ConfigStore.instance().repo) == {"hydra", "_dummy_empty_config_.yaml"}
assert not GlobalHydra.instance().is_initialized()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not done.stdout
    assert not done.stderr
