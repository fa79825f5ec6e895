"""`make bench-wikitext`: words per second of Transformer-XL, ours and written plainly.

The plain one follows the code of Dai et al.: queries of the memory calculated too, positions
shifted by padding and copying, einsum, and one softmax over all words for every token. Both use
the same parameters and words, so that their losses must agree where our softmax has no clusters.
They take turns in one process.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from analysis.performance import Measurement
from benchmarks.contest import BenchOptions, Findings, compete, of_matrix_products
from tasks.wikitext103.model import Layer, TransformerXL, TransformerXLOptions

BATCH, LENGTH, MEMORY, EVAL_MEMORY, ROUNDS = 4, 64, 64, 640, 15
SIZES = TransformerXLOptions(
    vocabulary=50_000, layers=4, d_model=256, heads=4, d_inner=1024, cutoffs=[5_000, 20_000]
)


@dataclass(frozen=True)
class Words:
    """A batch and the memory before it."""

    tokens: Tensor
    targets: Tensor
    memory: Tensor

    @property
    def remembered(self) -> int:
        """Positions of the memory."""
        return self.memory.shape[2]

    def to(self, device: torch.device) -> Words:
        """On that device."""
        return Words(self.tokens.to(device), self.targets.to(device), self.memory.to(device))


def make_words(options: TransformerXLOptions, length: int, memory: int) -> Words:
    """Words as frequent as 1 / rank, about as in a language."""
    generator = torch.Generator().manual_seed(0)
    frequency = 1 / torch.arange(1, options.vocabulary + 1)
    drawn = torch.multinomial(frequency, BATCH * (length + 1), True, generator=generator)
    text = drawn.view(BATCH, length + 1)
    shape = options.layers, BATCH, memory, options.d_model
    return Words(text[:, :-1], text[:, 1:], torch.randn(shape, generator=generator))


def plain_nll(model: TransformerXL, words: Words) -> Tensor:
    """The original's way, time first, on our model's parameters and without clusters."""
    tokens, targets = words.tokens.t(), words.targets.t()
    length, keys = len(tokens), len(tokens) + words.memory.shape[2]
    x = model.dropout(F.embedding(tokens, model.embedding) * math.sqrt(model.options.d_model))
    mask = x.new_ones(length, keys).triu(keys - length + 1).bool()[:, :, None, None]
    frequency = 1 / 10000 ** (torch.arange(0.0, x.shape[-1], 2, device=x.device) / x.shape[-1])
    angle = torch.outer(torch.arange(keys - 1.0, -1.0, -1.0, device=x.device), frequency)
    r = model.dropout(torch.cat([angle.sin(), angle.cos()], -1)[:, None])
    remembered = []
    for layer, old in zip(model.layers, words.memory, strict=True):
        assert isinstance(layer, Layer)
        context = torch.cat([old.transpose(0, 1), x])
        remembered.append(context[-old.shape[1] :].detach())
        x = plain_layer(layer, x, context, r, mask, model.content_bias, model.position_bias)
    torch.stack(remembered)
    logits = F.linear(model.dropout(x), model.embedding, model.softmax.bias)
    nll = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return nll.view(length, -1).t()


def plain_layer(
    layer: Layer, x: Tensor, context: Tensor, r: Tensor, mask: Tensor, u: Tensor, v: Tensor
) -> Tensor:
    """x: L × B × d_model, context: K × B × d_model, r: K × 1 × d_model, mask: L × K × 1 × 1.

    Products are torch's, as in the original code, and not those of our layer's modules.
    """
    heads, d_head = u.shape
    w_q, w_k, w_v = layer.qkv.weight.chunk(3)
    shape = *context.shape[:2], heads, d_head
    q, k, values = (F.linear(context, w).view(shape) for w in (w_q, w_k, w_v))
    q = q[-len(x) :]
    positions = F.linear(r, layer.position.weight).view(len(r), heads, d_head)
    content = torch.einsum("ibnd,jbnd->ijbn", q + u, k)
    position = plain_shift(torch.einsum("ibnd,jnd->ijbn", q + v, positions))
    scores = (content + position) * (1 / math.sqrt(d_head))
    weights = scores.masked_fill(mask, -torch.inf).softmax(1)
    attended = torch.einsum("ijbn,jbnd->ibnd", weights, values).flatten(2)
    x = layer.attention_norm(x + layer.dropout(F.linear(attended, layer.out.weight)))
    inner = x
    for part in layer.feed_forward:
        if isinstance(part, nn.Linear):
            inner = F.linear(inner, part.weight, part.bias)
        else:
            inner = part(inner)
    out: Tensor = layer.feed_forward_norm(x + inner)
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
        ours, _ = model(words.tokens, words.targets, words.memory, memory_length=words.remembered)
        torch.testing.assert_close(ours, plain_nll(model, words))
    model.train()


def measure(options: BenchOptions) -> Findings:
    """A training step and an evaluation."""
    torch.manual_seed(0)
    return Findings([*measure_step(options), *measure_evaluation(options)])


def measure_step(options: BenchOptions) -> list[Measurement]:
    """Forward and backward, with and without clusters in our softmax."""
    words = make_words(SIZES, LENGTH, MEMORY).to(options.device)
    model = TransformerXL(SIZES).to(options.device)
    whole = TransformerXL(replace(SIZES, cutoffs=[])).to(options.device)
    check_same(whole, words)

    def ours(some: TransformerXL) -> None:
        some.zero_grad()
        nll, _ = some(words.tokens, words.targets, words.memory, memory_length=MEMORY)
        nll.sum().backward()

    def theirs() -> None:
        whole.zero_grad()
        plain_nll(whole, words).sum().backward()  # type: ignore[no-untyped-call]

    actions = {"step": lambda: ours(model), "step_without_clusters": lambda: ours(whole)}
    amount, rounds = BATCH * LENGTH, options.rounds(ROUNDS)
    step, plain = compete(actions, theirs, amount, rounds, device=options.device)
    return [of_matrix_products(step, lambda: ours(model), amount, options.device), plain]


@torch.no_grad()
def measure_evaluation(options: BenchOptions) -> list[Measurement]:
    """A segment after a memory of 640, as the paper's perplexities are measured; all words scored.

    Both without clusters: the loss of each is the exact one over the whole vocabulary.
    """
    words = make_words(SIZES, LENGTH, EVAL_MEMORY).to(options.device)
    model = TransformerXL(replace(SIZES, cutoffs=[])).to(options.device)
    check_same(model, words)
    model.eval()
    return compete(
        {
            "evaluation": lambda: model(
                words.tokens, words.targets, words.memory, memory_length=EVAL_MEMORY
            )
        },
        lambda: plain_nll(model, words),
        BATCH * LENGTH,
        options.rounds(ROUNDS),
        device=options.device,
    )
