"""`python -m scripts.bench_wikitext`: words per second of Transformer-XL, ours and written plainly.

The plain one follows the code of Dai et al.: queries of the memory calculated too, positions
shifted by padding and copying, einsum, and one softmax over all words for every token. Both use
the same parameters and words, so that their losses must agree where our softmax has no clusters.
They take turns in one process, forward and backward; every round gives one ratio, between passes
of the same moment, and the median over the rounds is printed.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.contest import take_turns
from engine.memory import keep_freed_memory
from tasks.wikitext103.model import Layer, TransformerXL, TransformerXLOptions

BATCH, LENGTH, MEMORY, WARM = 4, 64, 64, 2
SIZES = TransformerXLOptions(
    vocabulary=50_000, layers=4, d_model=256, heads=4, d_inner=1024, cutoffs=[5_000, 20_000]
)


@dataclass(frozen=True)
class Words:
    """A batch and the memory before it."""

    tokens: Tensor
    targets: Tensor
    memory: Tensor


def make_words(options: TransformerXLOptions) -> Words:
    """Words as frequent as 1 / rank, about as in a language."""
    generator = torch.Generator().manual_seed(0)
    frequency = 1 / torch.arange(1, options.vocabulary + 1)
    drawn = torch.multinomial(frequency, BATCH * (LENGTH + 1), True, generator=generator)
    text = drawn.view(BATCH, LENGTH + 1)
    shape = options.layers, BATCH, MEMORY, options.d_model
    return Words(text[:, :-1], text[:, 1:], torch.randn(shape, generator=generator))


def plain_nll(model: TransformerXL, words: Words) -> Tensor:
    """The original's way, time first, on our model's parameters and without clusters."""
    tokens, targets = words.tokens.t(), words.targets.t()
    length, keys = len(tokens), len(tokens) + words.memory.shape[2]
    x = model.dropout(F.embedding(tokens, model.embedding) * math.sqrt(model.options.d_model))
    mask = torch.ones(length, keys).triu(keys - length + 1).bool()[:, :, None, None]
    frequency = 1 / 10000 ** (torch.arange(0.0, x.shape[-1], 2) / x.shape[-1])
    angle = torch.outer(torch.arange(keys - 1.0, -1.0, -1.0), frequency)
    r = model.dropout(torch.cat([angle.sin(), angle.cos()], -1)[:, None])
    remembered = []
    for layer, old in zip(model.layers, words.memory, strict=True):
        assert isinstance(layer, Layer)
        context = torch.cat([old.transpose(0, 1), x])
        remembered.append(context[-MEMORY:].detach())
        x = plain_layer(layer, x, context, r, mask, model.content_bias, model.position_bias)
    torch.stack(remembered)
    logits = F.linear(model.dropout(x), model.embedding, model.softmax.bias)
    nll = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return nll.view(length, -1).t()


def plain_layer(
    layer: Layer, x: Tensor, context: Tensor, r: Tensor, mask: Tensor, u: Tensor, v: Tensor
) -> Tensor:
    """x: L × B × d_model, context: K × B × d_model, r: K × 1 × d_model, mask: L × K × 1 × 1."""
    heads, d_head = u.shape
    w_q, w_k, w_v = layer.qkv.weight.chunk(3)
    shape = *context.shape[:2], heads, d_head
    q, k, values = (F.linear(context, w).view(shape) for w in (w_q, w_k, w_v))
    q = q[-len(x) :]
    positions = layer.position(r).view(len(r), heads, d_head)
    content = torch.einsum("ibnd,jbnd->ijbn", q + u, k)
    position = plain_shift(torch.einsum("ibnd,jnd->ijbn", q + v, positions))
    scores = (content + position) * (1 / math.sqrt(d_head))
    weights = scores.masked_fill(mask, -torch.inf).softmax(1)
    attended = torch.einsum("ijbn,jbnd->ibnd", weights, values).flatten(2)
    x = layer.attention_norm(x + layer.dropout(layer.out(attended)))
    out: Tensor = layer.feed_forward_norm(x + layer.feed_forward(x))
    return out


def plain_shift(x: Tensor) -> Tensor:
    """A column of zeros, another shape, and the first row dropped."""
    rows, columns = x.shape[:2]
    padded = torch.cat([x.new_zeros(rows, 1, *x.shape[2:]), x], dim=1)
    return padded.view(columns + 1, rows, *x.shape[2:])[1:].view_as(x)


def check_same(model: TransformerXL, words: Words) -> None:
    """Raises if both do not calculate the same loss."""
    model.eval()
    with torch.no_grad():
        ours, _ = model(words.tokens, words.targets, words.memory, memory_length=MEMORY)
        torch.testing.assert_close(ours, plain_nll(model, words))
    model.train()


def seconds(model: TransformerXL, nll: Callable[[], Tensor]) -> float:
    """Of one forward and backward pass."""
    model.zero_grad()
    before = time.perf_counter()
    nll().sum().backward()  # type: ignore[no-untyped-call]
    return time.perf_counter() - before


def main() -> int:
    """Prints a line per contestant; exit status 0 whatever the ratios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args()
    keep_freed_memory()  # as the workers of a run do
    words = make_words(SIZES)
    model, whole = TransformerXL(SIZES), TransformerXL(replace(SIZES, cutoffs=[]))
    check_same(whole, words)

    def ours(some: TransformerXL) -> Tensor:
        nll: Tensor = some(words.tokens, words.targets, words.memory, memory_length=MEMORY)[0]
        return nll

    contestants = {
        "ours": lambda: seconds(model, lambda: ours(model)),
        "ours without clusters": lambda: seconds(whole, lambda: ours(whole)),
        "plain": lambda: seconds(whole, lambda: plain_nll(whole, words)),
        "plain again": lambda: seconds(whole, lambda: plain_nll(whole, words)),
    }
    rounds = take_turns(contestants, options.rounds, WARM)
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}; {SIZES}")
    print(f"{BATCH} columns of {LENGTH} words, a memory of {MEMORY}; {len(rounds)} rounds")
    for name in contestants:
        speed = BATCH * LENGTH / median(times[name] for times in rounds)
        ratio = median(times["plain"] / times[name] for times in rounds)
        print(f"{name:22} {speed:8,.0f} words/s   {ratio:.2f} × plain")
    return 0


if __name__ == "__main__":
    sys.exit(main())
