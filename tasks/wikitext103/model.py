"""Transformer-XL (Dai et al., 2019, arXiv 1901.02860) as the paper's experiment used it.

The score of query i and key j is ((q_i + u)·k_j + (q_i + v)·W_{k,R} r_{i-j}) / √d_head (their
equation in Section 3.3): r are sinusoids of the distance, u and v two vectors per head that all
layers share. Keys and values also come from the memory: what this layer's input was at the
positions before the segment, as numbers without a gradient. Normalisation comes after each
residual sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tasks.products import Linear, linear
from tasks.wikitext103.softmax import ALIGNED, AdaptiveSoftmax, product_dtype

STD = 0.02  # of all weights at the start
BASE = 10000.0  # of the sinusoids' wavelengths


@dataclass
class TransformerXLOptions:
    """The default is the paper's model of 192 million parameters."""

    vocabulary: int = 267735
    layers: int = 16
    d_model: int = 512
    heads: int = 8
    d_head: int = 64
    d_inner: int = 2048
    dropout: float = 0.15
    attention_dropout: float = 0.0
    cutoffs: list[int] = field(default_factory=lambda: [20000, 40000, 200000])  # []: one softmax


class TransformerXL(nn.Module):
    """Words and the memory of those before them to -log p of the next words."""

    def __init__(self, options: TransformerXLOptions) -> None:
        super().__init__()
        _check(options)
        self.options = options
        self.embedding = nn.Parameter(torch.empty(options.vocabulary, options.d_model))
        self.content_bias = nn.Parameter(torch.empty(options.heads, options.d_head))  # u
        self.position_bias = nn.Parameter(torch.empty(options.heads, options.d_head))  # v
        self.dropout = nn.Dropout(options.dropout)
        self.softmax = AdaptiveSoftmax(options.vocabulary, options.d_model, options.cutoffs)
        self.layers = nn.ModuleList(Layer(options) for _ in range(options.layers))
        self._initialise()

    def forward(
        self,
        tokens: Tensor,
        targets: Tensor,
        memory: Tensor | None = None,
        *,
        memory_length: int,
        clamp: int | None = None,
        same_length: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """-log p(target | tokens up to it, memory) (B, L), and the memory for the next segment.

        tokens, targets: int64 (B, L). memory: (layers, B, M, d_model) or None (M = 0). The memory
        returned holds the last `memory_length` positions of memory and segment, or all if they are
        fewer, detached. Distances above `clamp` are taken for `clamp`. With `same_length` a query
        attends to `memory_length` keys, as soon as there are so many.
        """
        routes = self.softmax.route(targets.flatten())
        hidden, memory = self.encode(
            tokens, memory, memory_length=memory_length, clamp=clamp, same_length=same_length
        )
        nll = self.softmax(hidden.flatten(0, 1), self.embedding, routes)
        return nll.view(targets.shape), memory

    def log_probabilities(
        self,
        tokens: Tensor,
        memory: Tensor | None = None,
        *,
        memory_length: int,
        clamp: int | None = None,
        same_length: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Of all words after the last token, (B, vocabulary), and the next memory."""
        hidden, memory = self.encode(
            tokens, memory, memory_length=memory_length, clamp=clamp, same_length=same_length
        )
        return self.softmax.log_probabilities(hidden[:, -1], self.embedding), memory

    def encode(
        self,
        tokens: Tensor,
        memory: Tensor | None,
        *,
        memory_length: int,
        clamp: int | None,
        same_length: bool,
    ) -> tuple[Tensor, Tensor]:
        """The last layer's output (B, L, d_model), and the memory for the next segment."""
        # On the CPU the gradient of these few rows is added to the softmax's, dense and there
        # before it, without a second tensor of zeros. Other devices keep torch's dense gradient.
        few = tokens.device.type == "cpu"
        x = F.embedding(tokens, self.embedding, sparse=few)
        x = self.dropout(x * math.sqrt(self.options.d_model))
        if memory is None:
            memory = x.new_empty(len(self.layers), len(x), 0, self.options.d_model)
        self._check_call(x, memory, memory_length, clamp, same_length)
        length, before = x.shape[1], memory.shape[2]
        positions = self.dropout(sinusoids(length + before, clamp, x))
        mask = attention_mask(length, before, memory_length if same_length else None, x.device)
        biases = self.content_bias, self.position_bias
        inputs = []
        for layer, old in zip(self.layers, memory, strict=True):
            inputs.append(x.detach())
            x = layer(x, old, positions, mask, *biases)
        return self.dropout(x), _remember(memory, inputs, memory_length)

    def _check_call(
        self, x: Tensor, memory: Tensor, memory_length: int, clamp: int | None, same_length: bool
    ) -> None:
        shape = (len(self.layers), len(x), memory.shape[-2], self.options.d_model)
        if memory.shape != shape:
            raise ValueError(
                f"TransformerXL: memory must have shape {shape}, not {tuple(memory.shape)}"
            )
        if memory_length < same_length:
            raise ValueError(
                f"TransformerXL: memory_length must be at least {int(same_length)} with "
                f"same_length={same_length}, not {memory_length!r}"
            )
        if clamp is not None and clamp < 1:
            raise ValueError(f"TransformerXL: clamp must be None or at least 1, not {clamp!r}")

    def _initialise(self) -> None:
        """N(0, 0.02²); gains of normalisations N(1, 0.02²); biases 0, but u and v as weights."""
        for name, parameter in self.named_parameters():
            if name.endswith("norm.weight"):
                nn.init.normal_(parameter, 1.0, STD)
            elif parameter.dim() == 1:
                nn.init.zeros_(parameter)
            else:
                nn.init.normal_(parameter, 0.0, STD)


class Layer(nn.Module):
    """Attention to memory and segment, then two linear maps with a ReLU between them."""

    def __init__(self, options: TransformerXLOptions) -> None:
        super().__init__()
        inner = options.heads * options.d_head
        self.heads, self.attention_dropout = options.heads, options.attention_dropout
        self.qkv = Linear(options.d_model, 3 * inner, bias=False)
        self.position = Linear(options.d_model, inner, bias=False)  # W_{k,R}
        self.out = Linear(inner, options.d_model, bias=False)
        self.attention_norm = nn.LayerNorm(options.d_model)
        self.feed_forward = nn.Sequential(
            Linear(options.d_model, options.d_inner),
            nn.ReLU(inplace=True),
            nn.Dropout(options.dropout),
            Linear(options.d_inner, options.d_model),
            nn.Dropout(options.dropout),
        )
        self.feed_forward_norm = nn.LayerNorm(options.d_model)
        self.dropout = nn.Dropout(options.dropout)

    def forward(
        self, x: Tensor, memory: Tensor, positions: Tensor, mask: Tensor, u: Tensor, v: Tensor
    ) -> Tensor:
        attended = self.out(self._attend(x, memory, positions, mask, u, v))
        x = self.attention_norm(x + self.dropout(attended))
        out: Tensor = self.feed_forward_norm(x + self.feed_forward(x))
        return out

    def _attend(
        self, x: Tensor, memory: Tensor, positions: Tensor, mask: Tensor, u: Tensor, v: Tensor
    ) -> Tensor:
        batch, length, _ = x.shape
        heads, d_head = u.shape
        qkv = self.qkv(x)
        q, kv = qkv.split([heads * d_head, 2 * heads * d_head], dim=-1)
        q = q.view(batch, length, heads, d_head)
        if memory.shape[1]:  # its queries are not needed, and neither is its gradient
            old = linear(memory, self.qkv.weight[heads * d_head :])
            kv = torch.cat([old, kv], dim=1)
        k, values = kv.unflatten(-1, (2, heads, d_head)).permute(2, 0, 3, 1, 4)
        # (q_i + v)·r of all distances, (heads, B · L, P): the positions are the batch's, not the
        # example's. The scale is that of the other term inside scaled_dot_product_attention.
        r = self.position(positions).view(-1, heads, d_head)
        q_v = ((q + v) / math.sqrt(d_head)).to(r.dtype).flatten(0, 1)
        by_distance = torch.bmm(q_v.transpose(0, 1), r.permute(1, 2, 0))
        by_key = shift(by_distance.view(heads, batch, length, -1), k.shape[2]).transpose(0, 1)
        attended = F.scaled_dot_product_attention(
            (q + u).to(k.dtype).transpose(1, 2),
            k,
            values,
            attn_mask=by_key + mask.to(by_key.dtype),
            dropout_p=self.attention_dropout if self.training else 0.0,
        )
        return attended.transpose(1, 2).flatten(2)


def shift(x: Tensor, keys: int) -> Tensor:
    """From distances to keys: (…, L, P) to (…, L, keys), a view.

    Row i has distance keys - 1 - p at place p, and key j has distance i + keys - L - j. So key j
    reads place j + L - 1 - i: a row of the result begins one place earlier, in its row of x, than
    the row before it. As P > keys, no place is read twice (its gradient would be slow). What lies
    beyond distance 0 belongs to keys that are masked. x lies at the beginning of its memory, as
    what a matrix product has made; torch.compile can't ask where it lies.
    """
    length, places = x.shape[-2:]
    assert places > keys
    assert x.is_contiguous()
    assert torch.compiler.is_compiling() or x.storage_offset() == 0
    strides = (*x.stride()[:-2], places - 1, 1)
    return x.as_strided((*x.shape[:-1], keys), strides, length - 1)


def sinusoids(keys: int, clamp: int | None, like: Tensor) -> Tensor:
    """Of the distances keys - 1, …, 1, 0, 0, …: (P, d_model), the sines before the cosines.

    P is the next multiple of `ALIGNED` above `keys`, as `shift` wants it.
    """
    places = (keys // ALIGNED + 1) * ALIGNED
    dtype = torch.promote_types(like.dtype, torch.float32)
    distance = torch.arange(keys - 1, keys - 1 - places, -1, dtype=dtype, device=like.device)
    distance = distance.clamp(0, clamp)
    d_model = like.shape[-1]
    exponent = torch.arange(0, d_model, 2, dtype=dtype, device=like.device) / d_model
    angle = distance[:, None] * BASE**-exponent
    return torch.cat([angle.sin(), angle.cos()], dim=-1).to(like.dtype)


def attention_mask(
    length: int, before: int, same_length: int | None, device: torch.device
) -> Tensor:
    """0 where query i may attend to key j, and -inf elsewhere: (L, M + L).

    Query i stands at key M + i and attends to no later one. With `same_length` it attends to the
    last that many keys: in the words of Dai et al.'s code, to those above the diagonal
    -mask_shift_len = M - same_length.
    """
    mask = torch.full((length, before + length), -math.inf, device=device).triu(before + 1)
    if same_length is not None and before + length > same_length:
        early = torch.full_like(mask, -math.inf).tril(before - same_length)
        mask += early
    return mask


def _remember(memory: Tensor, inputs: list[Tensor], length: int) -> Tensor:
    """The last positions of the memory and of every layer's input.

    In the dtype of matrix products, as the only use of a memory is to be a factor in one: under
    autocast the numbers are the same as from a memory in float32, in half of the space.
    """
    layers, batch, before, d_model = memory.shape
    segment = inputs[0].shape[1]
    kept = min(before + segment, length)
    new = min(segment, kept)
    out = memory.new_empty(layers, batch, kept, d_model, dtype=product_dtype(inputs[0]))
    out[:, :, : kept - new] = memory[:, :, before - (kept - new) :].detach()
    for layer, x in zip(out, inputs, strict=True):
        layer[:, kept - new :] = x[:, segment - new :]
    return out


def _check(options: TransformerXLOptions) -> None:
    for name in ("vocabulary", "layers", "d_model", "heads", "d_head", "d_inner"):
        value = getattr(options, name)
        if value < 1:
            raise ValueError(f"TransformerXL: {name} must be at least 1, not {value!r}")
    if options.d_model % 2:
        raise ValueError(
            f"TransformerXL: d_model must be even, for sines and cosines, not {options.d_model!r}"
        )
    for name in ("dropout", "attention_dropout"):
        value = getattr(options, name)
        if not 0 <= value < 1:
            raise ValueError(f"TransformerXL: {name} must be in [0, 1), not {value!r}")
