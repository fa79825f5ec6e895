"""The adaptive softmax (Grave et al., 2017, arXiv 1609.04309) on the embedding's own weights.

Words are sorted by frequency and cut into clusters. The head holds the first cluster's words and a
row for each other cluster: log p(w) is w's log-probability in the head, or that of its cluster in
the head plus its own within the cluster. Cluster i > 0 is at position cutoffs[0] + i - 1 of the
head. The code of Dai et al. counts these rows from the end: the same model, its rows permuted.

Logits of all words never exist for all tokens: a cluster's are made for the tokens that belong
there, and all of them in chunks of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tasks.products import is_onednns, product

CHUNK = 2**24  # logits made at a time
KEPT = 2**28  # logits kept for the backward pass; it makes the others again
ALIGNED = 8  # GPUs multiply matrices faster if their rows are a multiple of it


class AdaptiveSoftmax(nn.Module):
    """-log p of targets, from vectors (N, d_model) and the embedding (vocabulary, d_model).

    Without cutoffs it is one softmax over all words.
    """

    def __init__(self, vocabulary: int, d_model: int, cutoffs: Sequence[int]) -> None:
        super().__init__()
        self.bounds = [0, *cutoffs, vocabulary]
        if any(low >= high for low, high in pairwise(self.bounds)):
            raise ValueError(
                "TransformerXL: cutoffs must be increasing, above 0 and below "
                f"vocabulary={vocabulary!r}, not {[*cutoffs]!r}"
            )
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        self.cluster_weight = self.cluster_bias = None
        if cutoffs:
            self.cluster_weight = nn.Parameter(torch.zeros(len(cutoffs), d_model))
            self.cluster_bias = nn.Parameter(torch.zeros(len(cutoffs)))

    def route(self, targets: Tensor) -> Routes:
        """Sorts targets (N,) by cluster; the earlier it is called, the less anybody waits."""
        _, *cutoffs, _ = self.bounds
        if not cutoffs:
            return Routes(targets, targets, targets, None, None)
        beyond = torch.stack([targets >= cutoff for cutoff in cutoffs])
        cluster = beyond.sum(0)
        in_head = torch.where(cluster == 0, targets, cutoffs[0] - 1 + cluster)
        order = cluster.argsort(stable=True)
        # Shapes depend on the counts, so the host must know them. On a GPU they are copied here and
        # waited for in `forward`: by then the layers' work is queued, and the GPU goes on with it.
        counts = beyond.sum(1)
        if not counts.is_cuda:
            return Routes(targets, in_head, order, counts, None)
        copy = counts.to("cpu", non_blocking=True)
        event = torch.cuda.current_stream(counts.device).record_event()
        return Routes(targets, in_head, order, copy, event)

    def forward(self, hidden: Tensor, weight: Tensor, routes: Routes) -> Tensor:
        """-log p (N,): in float64 for a model in float64, else in float32."""
        blocks = list(routes.blocks(self.bounds))
        keep = KEPT if torch.is_grad_enabled() else 0
        parameters = weight, self.bias, self.cluster_weight, self.cluster_bias
        nll: Tensor = _AdaptiveNll.apply(  # type: ignore[no-untyped-call]
            hidden.to(product_dtype(hidden)), *parameters, blocks, keep
        )
        return nll

    def log_probabilities(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """Of all words, (N, vocabulary), for a few vectors."""
        parts = []
        for low, high in pairwise(self.bounds):
            rows, bias = weight[low:high], self.bias[low:high]
            if low == 0 and self.cluster_weight is not None and self.cluster_bias is not None:
                rows = torch.cat([rows, self.cluster_weight])
                bias = torch.cat([bias, self.cluster_bias])
            logits = F.linear(hidden, rows, bias)
            parts.append(logits.to(_wide(logits.dtype)).log_softmax(-1))
        head, *tails = parts
        words, clusters = head[:, : self.bounds[1]], head[:, self.bounds[1] :]
        own = [clusters[:, i, None] + tail for i, tail in enumerate(tails)]
        return torch.cat([words, *own], dim=-1)


@dataclass(frozen=True)
class Block:
    """One softmax: words low … high (the head's have the clusters' rows after them)."""

    low: int
    high: int
    tokens: Tensor | None  # which have their target here; None: all of them
    targets: Tensor  # as positions in this softmax


@dataclass(frozen=True)
class Routes:
    """Which softmaxes a batch of targets needs."""

    targets: Tensor
    in_head: Tensor
    order: Tensor  # tokens by cluster
    beyond: Tensor | None  # how many targets are at or above each cutoff
    copied: torch.cuda.Event | None  # after which `beyond` is on the host

    def blocks(self, bounds: Sequence[int]) -> Iterator[Block]:
        """The head, and every other cluster that is the cluster of a target."""
        yield Block(0, bounds[1], None, self.in_head)
        if self.beyond is None or self.beyond.is_meta:  # no values: as if all words were frequent
            return
        if self.copied is not None:
            self.copied.synchronize()
        starts = [len(self.order) - count for count in (*self.beyond.tolist(), 0)]
        for (low, high), (first, last) in zip(pairwise(bounds[1:]), pairwise(starts), strict=True):
            if first < last:
                tokens = self.order[first:last]
                yield Block(low, high, tokens, self.targets.index_select(0, tokens) - low)


class _AdaptiveNll(torch.autograd.Function):
    """The sum over blocks of -log softmax(h Wᵀ + b)[target], and its exact gradients.

    One function for all blocks: the gradient of the tied weight is then one tensor that every
    block adds to, and is there, as zeros, for words that no token asks for.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor,
        cluster_weight: Tensor | None,
        cluster_bias: Tensor | None,
        blocks: list[Block],
        keep: int,
    ) -> Tensor:
        parameters = weight, bias, cluster_weight, cluster_bias
        nll = hidden.new_zeros(len(hidden), dtype=_wide(hidden.dtype))
        kept: list[Tensor] = []
        for block in blocks:
            rows, offsets = _matrix(block, *parameters, hidden.dtype)
            own = _select(hidden, block)
            losses = []
            for part in _chunks(len(own), len(rows)):
                logits = product(own[part], rows.t(), offsets)
                wide = logits.to(nll.dtype)
                losses.append(F.cross_entropy(wide, block.targets[part], reduction="none"))
                keep -= logits.numel()
                if keep >= 0:
                    kept.append(logits)
            _add(nll, torch.cat(losses), block)
        ctx.save_for_backward(hidden, *parameters, *kept)
        ctx.blocks = blocks
        return nll

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        hidden, weight, bias, cluster_weight, cluster_bias, *kept = ctx.saved_tensors
        parameters = weight, bias, cluster_weight, cluster_bias
        grads = [None if p is None else torch.zeros_like(p) for p in parameters]
        grad_hidden = torch.zeros_like(hidden, dtype=grad.dtype)
        for block in ctx.blocks:
            rows, offsets = _matrix(block, *parameters, hidden.dtype)
            own, own_grad = _select(hidden, block), _select(grad, block)
            pieces = []
            for part in _chunks(len(own), len(rows)):
                logits = kept.pop(0) if kept else product(own[part], rows.t(), offsets)
                # ∂/∂logits = (softmax - one-hot) · the gradient of the token's loss
                wide = logits.softmax(-1, dtype=grad.dtype)
                targets = block.targets[part, None]
                wide.scatter_(1, targets, wide.gather(1, targets) - 1)
                wide.mul_(own_grad[part, None])
                narrow = wide.to(hidden.dtype)
                pieces.append(product(narrow, rows))
                _add_gradients(block, grads, wide, narrow, own[part])
            _add(grad_hidden, torch.cat(pieces).to(grad.dtype), block)
        return grad_hidden, *grads, None, None


def _add_gradients(
    block: Block, grads: list[Tensor | None], wide: Tensor, narrow: Tensor, hidden: Tensor
) -> None:
    """Adds a chunk's part to the gradients of weight, bias, cluster weight and cluster bias."""
    weight, bias, cluster_weight, cluster_bias = grads
    assert weight is not None
    assert bias is not None
    sums, words = wide.sum(0), block.high - block.low
    bias[block.low : block.high] += sums[:words]
    _add_product(weight[block.low : block.high], narrow[:, :words].t(), hidden)
    if block.tokens is None and cluster_weight is not None and cluster_bias is not None:
        end = words + len(cluster_bias)
        cluster_bias += sums[words:end]
        _add_product(cluster_weight, narrow[:, words:end].t(), hidden)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    if total.dtype == a.dtype and not is_onednns(a, b):
        torch.addmm(total, a, b, out=total)
    else:
        total.add_(product(a, b))


def _matrix(
    block: Block,
    weight: Tensor,
    bias: Tensor,
    cluster_weight: Tensor | None,
    cluster_bias: Tensor | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """A block's rows and offsets in the dtype of the products.

    Where that takes a copy, rows of zeros with the offset -inf, that is of probability 0, fill it
    up to a multiple of `ALIGNED`.
    """
    rows, offsets = [weight[block.low : block.high]], [bias[block.low : block.high]]
    if block.tokens is None and cluster_weight is not None and cluster_bias is not None:
        rows, offsets = [*rows, cluster_weight], [*offsets, cluster_bias]
    elif dtype == weight.dtype:
        return rows[0], offsets[0]
    missing = -sum(map(len, rows)) % ALIGNED
    rows.append(weight.new_zeros(missing, weight.shape[1]))
    offsets.append(bias.new_full((missing,), -torch.inf))
    return torch.cat([r.to(dtype) for r in rows]), torch.cat([o.to(dtype) for o in offsets])


def _select(values: Tensor, block: Block) -> Tensor:
    return values if block.tokens is None else values.index_select(0, block.tokens)


def _add(total: Tensor, values: Tensor, block: Block) -> None:
    """To a block's tokens, each of which it has once."""
    if block.tokens is None:
        total += values
    else:
        total.index_add_(0, block.tokens, values)


def _chunks(tokens: int, words: int) -> Iterator[slice]:
    """Runs of tokens, as many as have `CHUNK` logits."""
    step = max(1, CHUNK // words)
    return (slice(first, first + step) for first in range(0, tokens, step))


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def product_dtype(x: Tensor) -> torch.dtype:
    """Of matrix products: autocast's for float32, where it is on; `meta` has none."""
    kind = x.device.type
    if x.dtype == torch.float32 and kind != "meta" and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return x.dtype
