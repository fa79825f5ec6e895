"""Transformer-XL's equations one number after another: the oracle for the model's arithmetic."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor

Vectors = list[Tensor]


def transformer_xl(
    parameters: Mapping[str, Tensor],
    layers: int,
    cutoffs: Sequence[int],
    tokens: Tensor,
    targets: Tensor,
    memory: Tensor | None,
    memory_length: int,
    clamp: int | None = None,
    same_length: bool = False,
) -> tuple[Tensor, Tensor]:
    """-log p of the targets (B, L), and the memory (layers, B, …, d_model)."""
    losses, memories = [], []
    for b, (words, wanted) in enumerate(zip(tokens.tolist(), targets.tolist(), strict=True)):
        embedding = parameters["embedding"]
        x = [embedding[word] * math.sqrt(embedding.shape[1]) for word in words]
        kept = []
        for n in range(layers):
            own = {k.split(".", 2)[2]: v for k, v in parameters.items() if f"layers.{n}." in k}
            own |= {"u": parameters["content_bias"], "v": parameters["position_bias"]}
            old = [] if memory is None else list(memory[n, b])
            everything = old + [h.detach() for h in x]
            kept.append(everything[max(len(everything) - memory_length, 0) :])
            x = layer(own, x, old, memory_length, clamp, same_length)
        memories.append(kept)
        logs = [log_probabilities(parameters, cutoffs, h) for h in x]
        losses.append(torch.stack([-log[word] for log, word in zip(logs, wanted, strict=True)]))
    new = [[example[n] for example in memories] for n in range(layers)]
    stacked = torch.stack([torch.stack([torch.stack(m) for m in some]) for some in new])
    return torch.stack(losses), stacked


def layer(
    p: Mapping[str, Tensor],
    x: Vectors,
    memory: Vectors,
    memory_length: int,
    clamp: int | None,
    same_length: bool,
) -> Vectors:
    attended = attention(p, x, memory, memory_length, clamp, same_length)
    out = []
    for own, other in zip(x, attended, strict=True):
        y = normalise(own + p["out.weight"] @ other, p, "attention_norm")
        inner = p["feed_forward.0.weight"] @ y + p["feed_forward.0.bias"]
        inner = torch.where(inner > 0, inner, 0)
        outer = p["feed_forward.3.weight"] @ inner + p["feed_forward.3.bias"]
        out.append(normalise(y + outer, p, "feed_forward_norm"))
    return out


def attention(
    p: Mapping[str, Tensor],
    x: Vectors,
    memory: Vectors,
    memory_length: int,
    clamp: int | None,
    same_length: bool,
) -> Vectors:
    """((q_i + u)·k_j + (q_i + v)·W_{k,R} r_{i-j}) / √d_head."""
    heads, d_head = p["u"].shape
    w_q, w_k, w_v = p["qkv.weight"].chunk(3)
    context = memory + x
    out = []
    for i, query in enumerate(x):
        parts = []
        for head in range(heads):
            rows = slice(head * d_head, (head + 1) * d_head)
            q = w_q[rows] @ query
            scores, values = [], []
            for j, key in enumerate(context):
                if hidden(i, j, len(x), len(memory), memory_length, same_length):
                    continue
                distance = i + len(memory) - j
                assert distance >= 0
                if clamp is not None and distance > clamp:
                    distance = clamp
                k = w_k[rows] @ key
                r = p["position.weight"][rows] @ sinusoid(distance, len(query))
                score = (q + p["u"][head]) @ k + (q + p["v"][head]) @ r
                scores.append(score / math.sqrt(d_head))
                values.append(w_v[rows] @ key)
            weights = softmax(scores)
            parts.append(sum((a * v for a, v in zip(weights, values, strict=True)), torch.zeros(1)))
        out.append(torch.cat(parts))
    return out


def hidden(i: int, j: int, qlen: int, mlen: int, mem_len: int, same_length: bool) -> bool:
    """The mask of the original code, in its words: triu(diagonal=a) is j - i >= a."""
    klen = mlen + qlen
    later = j - i >= 1 + mlen
    if not same_length:
        return later
    mask_len = klen - mem_len
    mask_shift_len = qlen - mask_len if mask_len > 0 else qlen
    return later or j - i <= -mask_shift_len


def sinusoid(distance: int, size: int) -> Tensor:
    angles = [distance / 10000 ** (2 * n / size) for n in range(size // 2)]
    values = [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
    return torch.tensor(values, dtype=torch.float64)


def normalise(x: Tensor, p: Mapping[str, Tensor], name: str) -> Tensor:
    mean = x.sum() / len(x)
    variance = ((x - mean) ** 2).sum() / len(x)
    return (x - mean) / torch.sqrt(variance + 1e-5) * p[f"{name}.weight"] + p[f"{name}.bias"]


def softmax(scores: Vectors) -> Vectors:
    exponentials = [torch.exp(score) for score in scores]
    total = torch.stack(exponentials).sum()
    return [e / total for e in exponentials]


def log_probabilities(
    parameters: Mapping[str, Tensor], cutoffs: Sequence[int], h: Tensor
) -> Vectors:
    """Of every word: its own in the head, or its cluster's plus its own in the cluster."""
    weight, bias = parameters["embedding"], parameters["softmax.bias"]
    logits = [row @ h + b for row, b in zip(weight, bias, strict=True)]
    if not cutoffs:
        return [torch.log(p) for p in softmax(logits)]
    rows, offsets = parameters["softmax.cluster_weight"], parameters["softmax.cluster_bias"]
    clusters = [row @ h + b for row, b in zip(rows, offsets, strict=True)]
    head = [torch.log(p) for p in softmax(logits[: cutoffs[0]] + clusters)]
    logs = head[: cutoffs[0]]
    for number, (low, high) in enumerate(pairwise([*cutoffs, len(weight)])):
        within = [torch.log(p) for p in softmax(logits[low:high])]
        logs += [head[cutoffs[0] + number] + log for log in within]
    return logs
