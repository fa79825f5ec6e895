"""`make bench-wmt`: words per second of Transformer-big's layers, ours and fairseq's.

One encoder and one decoder layer of the paper's sizes, with the same parameters, sentences and
rate of dropout, both in training mode; the label-smoothed loss of each is its own, and both must
agree. They take turns in one process.

A micro-batch of the paper's run has some 256 pairs of 24 words; the default of 32 is an eighth of
it, so that multiplications, and not the 33 MB of the words' gradient, take the time, as they do
there. Padding is calculated by both. The optimizer's step is left out: it is the same for both, and
comes once in several micro-batches. Beam search is compared on two layers of half the size.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from analysis.performance import Measurement
from benchmarks.contest import BenchOptions, Findings, compete, of_matrix_products
from tasks.wmt14.beam import BeamOptions, Hypothesis, Marks, translate
from tasks.wmt14.fairseq_backend import FairseqTransformer, smoothed_loss, to_fairseq
from tasks.wmt14.loss import smoothed_cross_entropy
from tasks.wmt14.model import Transformer, TransformerOptions

PAIRS, LENGTH, SHORTER, ROUNDS = 32, 24, 4, 12
SMOOTHING = 0.1
SENTENCES, WORDS, EXTRA, SEARCHES = 16, 20, 4, 7  # of beam search
SHARPNESS = 3.0  # times the words' matrix: decided choices, so that rounding does not change them
SAME = 0.9  # of the translations, at least
MARKS = Marks(begin=2, end=3, pad=0)
SIZES = TransformerOptions(encoder_layers=1, decoder_layers=1, variant="fairseq")
SEARCHED = TransformerOptions(
    encoder_layers=2, decoder_layers=2, d_model=512, d_ff=2048, heads=8, variant="fairseq"
)


@dataclass(frozen=True)
class Sentences:
    """Pairs of sentences of about equal length, as a batch of training has them."""

    source: Tensor
    lengths: Tensor
    target: Tensor
    expected: Tensor

    def to(self, device: torch.device) -> Sentences:
        """On that device."""
        tensors = (self.source, self.lengths, self.target, self.expected)
        return Sentences(*(tensor.to(device) for tensor in tensors))


def make_sentences(options: TransformerOptions, pairs: int, length: int) -> Sentences:
    """Of words that are all as frequent."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(length - SHORTER, length + 1, (pairs,), generator=generator)
    lengths[0] = length
    shape = pairs, 2 * length + 1
    words = torch.randint(options.pad + 1, options.vocabulary, shape, generator=generator)
    return Sentences(words[:, :length], lengths, words[:, length:-1], words[:, length + 1 :])


def our_loss(logits: Tensor, expected: Tensor) -> Tensor:
    """By our function."""
    return smoothed_cross_entropy(logits, expected, SMOOTHING)


def their_loss(logits: Tensor, expected: Tensor) -> Tensor:
    """By fairseq's criterion."""
    return smoothed_loss(logits, expected, SMOOTHING)


Loss = Callable[[Tensor, Tensor], Tensor]


def train(model: nn.Module, loss: Loss, sentences: Sentences) -> Tensor:
    """One forward and backward pass."""
    logits = model(sentences.source, sentences.lengths, sentences.target)
    total = loss(logits, sentences.expected)
    total.backward()  # type: ignore[no-untyped-call]
    return total.detach()


def check_same(ours: nn.Module, theirs: nn.Module, sentences: Sentences) -> None:
    """Raises if both do not calculate the same loss and gradient of the words.

    In float64: in float32 a unit of a ReLU may be so near to 0 that rounding decides.
    """
    ours, theirs = (copy.deepcopy(model).double().eval() for model in (ours, theirs))
    losses = [train(ours, our_loss, sentences), train(theirs, their_loss, sentences)]
    torch.testing.assert_close(*losses)
    one, other = next(ours.parameters()).grad, next(theirs.parameters()).grad
    assert one is not None
    assert other is not None
    if not (one - other).norm() < 1e-6 * other.norm():
        raise RuntimeError("ours and fairseq's gradients differ")


def measure(options: BenchOptions) -> Findings:
    """A training step and beam search."""
    torch.manual_seed(0)
    step = measure_step(options)
    found, same = measure_generation(options)
    return Findings([*step, *found], {"same_translations": same})


def measure_step(options: BenchOptions) -> list[Measurement]:
    """Forward and backward of one encoder and one decoder layer with their losses."""
    sentences = make_sentences(SIZES, PAIRS, LENGTH).to(options.device)
    ours, theirs = Transformer(SIZES), FairseqTransformer(SIZES)
    theirs.model.load_state_dict(to_fairseq(ours.state_dict()))
    ours, theirs = ours.to(options.device), theirs.to(options.device)
    check_same(ours, theirs, sentences)

    def step(model: nn.Module, loss: Loss) -> None:
        model.zero_grad()
        train(model, loss, sentences)

    their_step = lambda: step(theirs, their_loss)  # noqa: E731
    amount = sentences.source.numel() + sentences.target.numel()
    (found,) = compete(
        {"step": lambda: step(ours, our_loss)},
        their_step,
        amount,
        options.rounds(ROUNDS),
        device=options.device,
    )
    # Of fairseq's products, which are the same as ours: some of our calls are not counted.
    return [of_matrix_products(found, their_step, amount, options.device)]


def measure_generation(options: BenchOptions) -> tuple[list[Measurement], float]:
    """Beam search of both, and the share of translations that are the same, word by word.

    All sources are equally long, as fairseq's greatest length is that of the longest of a batch.
    """
    torch.manual_seed(0)
    ours, theirs = Transformer(SEARCHED), FairseqTransformer(SEARCHED)
    with torch.no_grad():
        ours.embedding.mul_(SHARPNESS)
    theirs.model.load_state_dict(to_fairseq(ours.state_dict()))
    ours, theirs = ours.to(options.device).eval(), theirs.to(options.device).eval()
    source = make_sentences(SEARCHED, SENTENCES, WORDS).to(options.device).source
    lengths = torch.full_like(source[:, 0], WORDS)
    beam = BeamOptions(extra=EXTRA)

    def our_search() -> list[Hypothesis]:
        return translate(ours, source, lengths, MARKS, beam)

    def their_search() -> list[Hypothesis]:
        return theirs.translate(source, lengths, MARKS, beam)

    pairs = zip(our_search(), their_search(), strict=True)
    same = sum(one.words == other.words for one, other in pairs) / SENTENCES
    if same < SAME:
        raise RuntimeError(f"only {100 * same:.0f} % of the translations are fairseq's")
    rounds, actions = options.rounds(SEARCHES), {"generation": our_search}
    (found,) = compete(actions, their_search, SENTENCES, rounds, 1, options.device)
    return [of_matrix_products(found, their_search, SENTENCES, options.device)], same
