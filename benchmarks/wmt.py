"""`python -m scripts.bench_wmt`: words per second of Transformer-big's layers, ours and fairseq's.

One encoder and one decoder layer of the paper's sizes, with the same parameters, sentences and
rate of dropout, both in training mode; the label-smoothed loss of each is its own, and both must
agree. They take turns in one process, forward and backward; every round gives one ratio, between
passes of the same moment, and the median over the rounds is printed, with the quartiles. fairseq
has two turns in a round, and ours is compared with their mean; each of the two against that mean
shows the noise.

A micro-batch of the paper's run has some 256 pairs of 24 words; the default of 32 is an eighth of
it, so that multiplications, and not the 33 MB of the words' gradient, take the time, as they do
there. Padding is calculated by both. The optimizer's step is left out: it is the same for both, and
comes once in several micro-batches.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, quantiles

import torch
from torch import Tensor, nn

from benchmarks.contest import take_turns
from engine.memory import keep_freed_memory
from tasks.wmt14.fairseq_backend import FairseqTransformer, smoothed_loss, to_fairseq
from tasks.wmt14.loss import smoothed_cross_entropy
from tasks.wmt14.model import Transformer, TransformerOptions

PAIRS, LENGTH, SHORTER, WARM = 32, 24, 4, 2
SMOOTHING = 0.1
AIM = 1.1  # times as fast as fairseq
SIZES = TransformerOptions(encoder_layers=1, decoder_layers=1, variant="fairseq")


@dataclass(frozen=True)
class Sentences:
    """Pairs of sentences of about equal length, as a batch of training has them."""

    source: Tensor
    lengths: Tensor
    target: Tensor
    expected: Tensor


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

    To the digits of float32, and with parameters where no unit of a ReLU is so near to 0 that
    rounding decides: hence the seed. The tests compare in float64.
    """
    losses = [train(ours.eval(), our_loss, sentences), train(theirs.eval(), their_loss, sentences)]
    torch.testing.assert_close(*losses)
    one, other = next(ours.parameters()).grad, next(theirs.parameters()).grad
    assert one is not None
    assert other is not None
    assert (one - other).norm() < 1e-4 * other.norm()
    ours.train()
    theirs.train()


def seconds(model: nn.Module, loss: Loss, sentences: Sentences) -> float:
    """Of one forward and backward pass."""
    model.zero_grad()
    before = time.perf_counter()
    train(model, loss, sentences)
    return time.perf_counter() - before


def main() -> int:
    """Prints a line per contestant; exit status 0 whatever the ratios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--length", type=int, default=LENGTH, help="words of a sentence")
    options = parser.parse_args()
    keep_freed_memory()  # as the workers of a run do
    torch.manual_seed(0)
    sentences = make_sentences(SIZES, options.pairs, options.length)
    ours, theirs = Transformer(SIZES), FairseqTransformer(SIZES)
    theirs.model.load_state_dict(to_fairseq(ours.state_dict()))
    check_same(ours, theirs, sentences)
    contestants = {
        "ours": lambda: seconds(ours, our_loss, sentences),
        "fairseq": lambda: seconds(theirs, their_loss, sentences),
        "fairseq again": lambda: seconds(theirs, their_loss, sentences),
    }
    rounds = take_turns(contestants, options.rounds, WARM)
    words = sentences.source.numel() + sentences.target.numel()
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}; {SIZES}")
    length = options.length
    print(f"{options.pairs} pairs of {length} and {length} words; {len(rounds)} rounds")
    reached = 0.0
    for name in contestants:
        _, middle, _ = quantiles((times[name] for times in rounds), n=4)
        ratios = [fmean((t["fairseq"], t["fairseq again"])) / t[name] for t in rounds]
        low, ratio, high = quantiles(ratios, n=4)
        speed = f"{words / middle:8,.0f} words/s"
        print(f"{name:14} {speed}   {ratio:.2f} × fairseq ({low:.2f} to {high:.2f})")
        reached = ratio if name == "ours" else reached
    print(f"ours {'reaches' if reached >= AIM else 'does not reach'} {AIM} ×")
    return 0


if __name__ == "__main__":
    sys.exit(main())
