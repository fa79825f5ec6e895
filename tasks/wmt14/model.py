"""Transformer-big (Vaswani et al., 2017) as NeMo, the code of the paper's translations, had it.

Normalisation comes after each residual sum. One matrix embeds both languages and gives the logits.
The variant "fairseq" is the Transformer of fairseq instead: words are scaled by √d_model and not
normalised, logits have no bias, and positions count from `pad` + 1.

Parameters with 8192 words:
    184,745,984  the matrix of words, attention, feed-forward, normalisation: all of fairseq's
        + 4,096  normalisation of the embedded words of either side
        + 8,192  bias of the logits
        + 4,096  two types of tokens of either side
    184,762,368  NeMo's
NeMo's translations never name a type of token. The two tables are here to be counted, as in the
reference; they are zeros that nothing reads and that no optimizer gets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tasks.dropout import Dropout
from tasks.products import Linear, linear
from tasks.wmt14.tied import TiedWords

POSITIONS = 1024  # the longest sentence, with its end
TOKEN_TYPES = 2
BASE = 10000.0  # of the sinusoids' wavelengths
CHUNK = 16  # positions by which the cache of a decoder grows


@dataclass
class TransformerOptions:
    """The default is the paper's model."""

    vocabulary: int = 8192
    encoder_layers: int = 6
    decoder_layers: int = 6
    d_model: int = 1024
    d_ff: int = 4096
    heads: int = 16
    dropout: float = 0.2  # of embeddings, attention's weights, and either sublayer's output
    variant: str = "nemo"  # or "fairseq"
    pad: int = 0  # the word that fills up sentences; only positions of "fairseq" depend on it


class Transformer(nn.Module):
    """Sentences, and the words of their translations so far, to logits of the next words."""

    positions: Tensor

    def __init__(self, options: TransformerOptions) -> None:
        super().__init__()
        _check(options)
        self.options = options
        self.embedding = nn.Parameter(torch.empty(options.vocabulary, options.d_model))
        self.source, self.target = Side(options), Side(options)
        self.encoder = nn.ModuleList(EncoderLayer(options) for _ in range(options.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(options) for _ in range(options.decoder_layers))
        bias = options.variant == "nemo"
        self.output_bias = nn.Parameter(torch.empty(options.vocabulary)) if bias else None
        table = (
            fairseq_sinusoids(options.d_model, options.pad)
            if options.variant == "fairseq"
            else sinusoids(options.d_model)
        )
        self.register_buffer("positions", table, persistent=False)
        self._initialise()

    def forward(self, source: Tensor, source_lengths: Tensor | None, target: Tensor) -> Tensor:
        """Logits (B, T, V) of the word after each of `target`, int64 (B, T), shifted by the caller.

        source: int64 (B, S), of which the first `source_lengths` words of a row, one at least, are
        the sentence and the others are never seen; None if all are. What follows the end of a
        target changes nothing before it.
        """
        # Looked up at once: on the way back one gradient of the matrix is made and not two.
        tokens = torch.cat([source.flatten(), target.flatten()])
        words, matrix = TiedWords.apply(tokens, self.embedding)  # type: ignore[no-untyped-call]
        inputs, x = torch.split(words, [source.numel(), target.numel()])
        mask = _mask(source, source_lengths)
        memory = self._encode(inputs.view(*source.shape, -1), mask)
        x = self.target(x.view(*target.shape, -1), self._positions(0, target.shape[1]))
        for layer in self.decoder:
            x = layer(x, memory, mask)
        return linear(x, matrix, self.output_bias)

    def encode(self, source: Tensor, source_lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The last layer's output (B, S, d_model), and which keys count, bool (B, 1, 1, S)."""
        mask = _mask(source, source_lengths)
        return self._encode(F.embedding(source, self.embedding), mask), mask

    @torch.no_grad()
    def start(self, memory: Tensor, mask: Tensor | None) -> DecoderState:
        """For `decode_step`, from what `encode` returned."""
        layers = [layer for layer in self.decoder if isinstance(layer, DecoderLayer)]
        pairs = [layer.cross.keys_values(memory) for layer in layers]
        # As the products of every step would copy them: keys column by column.
        keys = [k.transpose(2, 3).contiguous().transpose(2, 3) for k, _ in pairs]
        values = [v.contiguous() for _, v in pairs]
        return DecoderState(list(zip(keys, values, strict=True)), mask)

    @torch.no_grad()
    def decode_step(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """Logits (R, V) of the words after `tokens`, int64 (R,); the state moves on by one.

        R is a multiple of the sentences: as many rows for the first, then for the second, …
        """
        state.add_word(len(tokens))
        words = F.embedding(tokens.view(state.sees.shape[:2]), self.embedding)
        x = self.target(words, self._positions(state.length - 1, state.length))
        for number, layer in enumerate(self.decoder):
            assert isinstance(layer, DecoderLayer)
            x = layer.step(x, state, number)
        return linear(x.flatten(0, 1), self.embedding, self.output_bias)

    def _encode(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = self.source(x, self._positions(0, x.shape[1]))
        for layer in self.encoder:
            x = layer(x, mask)
        return x

    def _positions(self, start: int, end: int) -> Tensor:
        if end > POSITIONS:
            raise ValueError(f"Transformer: a sentence has at most {POSITIONS} words, not {end}")
        return self.positions[start:end]

    def _initialise(self) -> None:
        """Xavier's uniform; words N(0, 1 / d_model); biases 0, gains of normalisations 1."""
        nn.init.normal_(self.embedding, 0.0, self.options.d_model**-0.5)
        if self.output_bias is not None:
            nn.init.zeros_(self.output_bias)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)


class DecoderState:
    """Keys and values of the words so far, and of the sentences that are being translated.

    memory: of every layer's attention to the source, two of (B, heads, S, d_head).
    cache: of every layer's attention to the words so far, (layers, 2, B, heads, room, d_head), of
    which the first `used` places are in use. The rows of a sentence share them, and a word's keys
    and values stay where they are: when hypotheses change places, only `sees` changes.
    sees: which of these places a row sees, bool (B, R / B, used).
    """

    def __init__(self, memory: list[tuple[Tensor, Tensor]], mask: Tensor | None) -> None:
        self.memory, self.mask = memory, mask
        sentences, heads, _, d_head = memory[0][0].shape
        self.cache = memory[0][0].new_empty(len(memory), 2, sentences, heads, 0, d_head)
        self.sees = torch.ones(sentences, 0, 0, dtype=torch.bool, device=self.cache.device)
        self.length = 0

    @property
    def used(self) -> int:
        return self.sees.shape[2]

    def add_word(self, rows: int) -> None:
        """Makes room for the keys and values of one more word of every row, seen by itself."""
        sentences, width, used = self.sees.shape
        if self.length == 0:
            width = rows // sentences
            self.sees = self.sees.new_ones(sentences, width, 0)
        if rows != sentences * width:
            raise ValueError(f"decode_step: {sentences * width} tokens expected, not {rows}")
        itself = torch.eye(width, dtype=torch.bool, device=self.sees.device)
        self.sees = torch.cat([self.sees, itself.expand(sentences, -1, -1)], 2)
        if used + width > self.cache.shape[4]:
            room = self.cache.shape[4] + CHUNK * width
            larger = self.cache.new_empty(*self.cache.shape[:4], room, self.cache.shape[5])
            larger[:, :, :, :, :used] = self.cache[:, :, :, :, :used]
            self.cache = larger
        self.length += 1

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        """Goes on with these rows, of these sentences; None if they are the same as before."""
        if sentences is not None:
            self.memory = [(_kept(k, 0, sentences), _kept(v, 0, sentences)) for k, v in self.memory]
            self.mask = None if self.mask is None else self.mask.index_select(0, sentences)
            self.cache = _kept(self.cache, 2, sentences)
        count = self.cache.shape[2]
        self.sees = self.sees.flatten(0, 1)[rows].view(count, len(rows) // count, self.used)


def _kept(tensor: Tensor, dim: int, chosen: Tensor) -> Tensor:
    """`tensor.index_select(dim, chosen)` in the memory of `tensor`, of which it copies the rest."""
    moved = (chosen != torch.arange(len(chosen), device=chosen.device)).nonzero()[:, 0]
    tensor.index_copy_(dim, moved, tensor.index_select(dim, chosen[moved]))
    return tensor.narrow(dim, 0, len(chosen))


class Side(nn.Module):
    """What the source has of its own in embedding words, and the target too."""

    def __init__(self, options: TransformerOptions) -> None:
        super().__init__()
        self.scale = math.sqrt(options.d_model) if options.variant == "fairseq" else 1.0
        self.dropout = Dropout(options.dropout)
        self.norm: nn.Module = nn.Identity()
        if options.variant == "nemo":
            self.norm = nn.LayerNorm(options.d_model)
            types = torch.zeros(TOKEN_TYPES, options.d_model)
            self.token_types = nn.Parameter(types, requires_grad=False)  # see the top of this file

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        out: Tensor = self.dropout(self.norm(torch.add(positions, x, alpha=self.scale)))
        return out


class Attention(nn.Module):
    """Scaled dot products of several heads.

    The maps to queries, keys and values are parameters of their own, as NovoGrad normalises a
    gradient by tensors.
    """

    def __init__(self, options: TransformerOptions) -> None:
        super().__init__()
        self.heads, self.dropout = options.heads, Dropout(options.dropout)
        self.q, self.k, self.v, self.out = (
            Linear(options.d_model, options.d_model) for _ in range(4)
        )

    def to_itself(self, x: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        q, k, v = map(self.split, together(x, self.q, self.k, self.v))
        return self.attend(q, k, v, mask, causal=causal)

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        k, v = map(self.split, together(x, self.k, self.v))
        return k, v

    def split(self, x: Tensor) -> Tensor:
        """(B, L, d_model) to (B, heads, L, d_head)."""
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None = None,
        *,
        causal: bool = False,
        few: bool = False,
    ) -> Tensor:
        """`few` queries, as of beam search, are attended faster without torch's kernel on a CPU."""
        dropout = self.dropout.p if self.training else 0.0
        if not ((dropout or few) and q.device.type == "cpu"):
            x = F.scaled_dot_product_attention(q, k, v, mask, dropout, causal)
        else:  # where torch has no kernel with dropout, and takes more steps than these
            scores = (q * q.shape[-1] ** -0.5) @ k.transpose(2, 3)
            if causal:
                mask = torch.ones(scores.shape[2:], dtype=torch.bool).tril()
            if mask is not None:
                scores.masked_fill_(~mask, -math.inf)
            x = self.dropout(scores.softmax(-1)) @ v
        out: Tensor = self.out(x.transpose(1, 2).flatten(2))
        return out


def together(x: Tensor, *maps: nn.Linear, at_once: bool | None = None) -> Sequence[Tensor]:
    """Several maps of the same, by default at once but on a CPU, where that only copies them."""
    if not (x.device.type != "cpu" if at_once is None else at_once):
        return [each(x) for each in maps]
    weight, bias = torch.cat([m.weight for m in maps]), torch.cat([m.bias for m in maps])
    return F.linear(x, weight, bias).chunk(len(maps), -1)


class FeedForward(nn.Module):
    """Two linear maps with a ReLU between them."""

    def __init__(self, options: TransformerOptions) -> None:
        super().__init__()
        self.inner = Linear(options.d_model, options.d_ff)
        self.outer = Linear(options.d_ff, options.d_model)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.inner(x.flatten(0, -2))  # a matrix, as in place a view costs three copies
        out: Tensor = self.outer(F.relu_(hidden)).view_as(x)
        return out


class EncoderLayer(nn.Module):
    """Attention to the sentence, then feed-forward."""

    def __init__(self, options: TransformerOptions) -> None:
        super().__init__()
        self.attention = Attention(options)
        self.attention_norm = nn.LayerNorm(options.d_model)
        self.feed_forward = FeedForward(options)
        self.feed_forward_norm = nn.LayerNorm(options.d_model)
        self.dropout = Dropout(options.dropout)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = self.attention_norm(self.dropout(self.attention.to_itself(x, mask), onto=x))
        out: Tensor = self.feed_forward_norm(self.dropout(self.feed_forward(x), onto=x))
        return out


class DecoderLayer(nn.Module):
    """Attention to the words so far, then to the source, then feed-forward."""

    def __init__(self, options: TransformerOptions) -> None:
        super().__init__()
        self.attention = Attention(options)
        self.attention_norm = nn.LayerNorm(options.d_model)
        self.cross = Attention(options)
        self.cross_norm = nn.LayerNorm(options.d_model)
        self.feed_forward = FeedForward(options)
        self.feed_forward_norm = nn.LayerNorm(options.d_model)
        self.dropout = Dropout(options.dropout)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        x = self.attention_norm(self.dropout(self.attention.to_itself(x, causal=True), onto=x))
        return self._rest(x, self.cross.keys_values(memory), mask)

    def step(self, x: Tensor, state: DecoderState, number: int) -> Tensor:
        """One word of every row, (B, R / B, d_model); its keys and values go to the state."""
        attention, (keys, values) = self.attention, state.cache[number][:, :, :, : state.used]
        q, k, v = map(attention.split, together(x, attention.q, attention.k, attention.v))
        keys[:, :, -x.shape[1] :], values[:, :, -x.shape[1] :] = k, v
        attended = attention.attend(q, keys, values, state.sees[:, None], few=True)
        x = self.attention_norm(self.dropout(attended, onto=x))
        return self._rest(x, state.memory[number], state.mask, few=True)

    def _rest(
        self, x: Tensor, memory: tuple[Tensor, Tensor], mask: Tensor | None, *, few: bool = False
    ) -> Tensor:
        q = self.cross.split(self.cross.q(x))
        x = self.cross_norm(self.dropout(self.cross.attend(q, *memory, mask, few=few), onto=x))
        out: Tensor = self.feed_forward_norm(self.dropout(self.feed_forward(x), onto=x))
        return out


def _mask(source: Tensor, lengths: Tensor | None) -> Tensor | None:
    if lengths is None:
        return None
    place = torch.arange(source.shape[1], device=source.device)
    return (place < lengths[:, None])[:, None, None]


def sinusoids(d_model: int) -> Tensor:
    """NeMo's: (POSITIONS, d_model), sines and cosines in turn, divided by √d_model."""
    place = torch.arange(POSITIONS, dtype=torch.float64)
    exponent = torch.arange(0, d_model, 2, dtype=torch.float64) / d_model
    angle = place[:, None] * BASE**-exponent
    table = torch.stack([angle.sin(), angle.cos()], -1).flatten(1)
    return (table / math.sqrt(d_model)).float()


def fairseq_sinusoids(d_model: int, pad: int) -> Tensor:
    """fairseq's: sines before cosines, the first word at place `pad` + 1, calculated in float32.

    The last exponent is 1, as in tensor2tensor, and not 1 - 2 / d_model.
    """
    half = d_model // 2
    frequency = torch.exp(torch.arange(half, dtype=torch.float) * -(math.log(BASE) / (half - 1)))
    angle = torch.arange(POSITIONS + pad + 1, dtype=torch.float)[:, None] * frequency
    return torch.cat([angle.sin(), angle.cos()], 1)[pad + 1 :]


def _check(options: TransformerOptions) -> None:
    for name in ("vocabulary", "encoder_layers", "decoder_layers", "d_model", "d_ff", "heads"):
        value = getattr(options, name)
        if value < 1:
            raise ValueError(f"Transformer: {name} must be at least 1, not {value!r}")
    if options.d_model % options.heads:
        raise ValueError(
            f"Transformer: d_model must be a multiple of heads={options.heads}, "
            f"not {options.d_model!r}"
        )
    if options.d_model % 2 or options.d_model < 4:
        raise ValueError(
            f"Transformer: d_model must be even, for sines and cosines, and at least 4, "
            f"not {options.d_model!r}"
        )
    if not 0 <= options.dropout < 1:
        raise ValueError(f"Transformer: dropout must be in [0, 1), not {options.dropout!r}")
    if options.variant not in ("nemo", "fairseq"):
        raise ValueError(
            f'Transformer: variant must be "nemo" or "fairseq", not {options.variant!r}'
        )
    if not 0 <= options.pad < options.vocabulary:
        raise ValueError(
            f"Transformer: pad must be a word below vocabulary={options.vocabulary}, "
            f"not {options.pad!r}"
        )
