"""The Transformer against its equations, in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from tasks.dropout import Dropout
from tasks.wmt14.model import (
    POSITIONS,
    Transformer,
    TransformerOptions,
    fairseq_sinusoids,
    sinusoids,
    together,
)
from tests.tasks.wmt14.small import EXACT, WORDS, options, sentences, tiny

VARIANTS = ["nemo", "fairseq"]


def norm(p: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return scaled * p[f"{name}.weight"] + p[f"{name}.bias"]


def linear(p: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def attention(
    p: dict[str, Tensor], name: str, x: Tensor, y: Tensor, heads: int, causal: bool
) -> Tensor:
    inputs = {"q": x, "k": y, "v": y}
    q, k, v = (linear(p, f"{name}.{n}", z).chunk(heads, -1) for n, z in inputs.items())
    parts = []
    for query, key, value in zip(q, k, v, strict=True):
        scores = query @ key.T / math.sqrt(query.shape[-1])
        if causal:
            later = torch.ones_like(scores).triu(1).bool()
            scores = scores.masked_fill(later, -math.inf)
        weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
        parts.append(weights @ value)
    return linear(p, f"{name}.out", torch.cat(parts, -1))


def feed_forward(p: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return linear(p, f"{name}.outer", linear(p, f"{name}.inner", x).clamp(min=0))


def naive(model: Transformer, source: Tensor, target: Tensor) -> Tensor:
    """Logits of one sentence without padding, (S,) and (T,): NeMo's way."""
    p: dict[str, Tensor] = {**dict(model.named_parameters())}
    sizes = model.options

    def embed(side: str, words: Tensor) -> Tensor:
        x = torch.stack([p["embedding"][word] for word in words])
        return norm(p, f"{side}.norm", x + model.positions[: len(words)])

    x = embed("source", source)
    for i in range(sizes.encoder_layers):
        at = f"encoder.{i}"
        attended = attention(p, f"{at}.attention", x, x, sizes.heads, causal=False)
        x = norm(p, f"{at}.attention_norm", x + attended)
        x = norm(p, f"{at}.feed_forward_norm", x + feed_forward(p, f"{at}.feed_forward", x))
    memory, x = x, embed("target", target)
    for i in range(sizes.decoder_layers):
        at = f"decoder.{i}"
        attended = attention(p, f"{at}.attention", x, x, sizes.heads, causal=True)
        x = norm(p, f"{at}.attention_norm", x + attended)
        attended = attention(p, f"{at}.cross", x, memory, sizes.heads, causal=False)
        x = norm(p, f"{at}.cross_norm", x + attended)
        x = norm(p, f"{at}.feed_forward_norm", x + feed_forward(p, f"{at}.feed_forward", x))
    return x @ p["embedding"].T + p["output_bias"]


def test_is_the_equations_and_so_are_its_gradients():
    model = tiny("nemo")
    source, lengths = sentences(5, 2, 7)
    target = torch.randint(WORDS, (3, 4))
    logits = model(source, lengths, target)
    each = zip(source, lengths, target, strict=True)
    expected = torch.stack([naive(model, s[:n], t) for s, n, t in each])
    torch.testing.assert_close(logits, expected, **EXACT)
    parameters = [p for p in model.parameters() if p.requires_grad]
    weights = torch.randn_like(logits)
    ours = torch.autograd.grad((logits * weights).sum(), parameters)
    theirs = torch.autograd.grad((expected * weights).sum(), parameters)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("variant", VARIANTS)
def test_padding_changes_nothing(variant: str):
    model = tiny(variant)
    (source, lengths), (target, ends) = sentences(6, 1, 3), sentences(2, 5, 4)
    together = model(source, lengths, target)
    for row, (n, m) in enumerate(zip(lengths.tolist(), ends.tolist(), strict=True)):
        alone = model(source[row : row + 1, :n], None, target[row : row + 1, :m])
        torch.testing.assert_close(together[row, :m], alone[0], **EXACT)
    other = source.masked_fill(torch.arange(6) >= lengths[:, None], 0)
    assert torch.equal(model(other, lengths, target), together)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("width", [1, 3])
def test_decoding_word_by_word_equals_one_pass(variant: str, width: int):
    """Past the first growth of the cache, with several rows per sentence."""
    model = tiny(variant)
    source, lengths = sentences(4, 6)
    target = torch.randint(WORDS, (2 * width, 40))
    repeated = source.repeat_interleave(width, 0), lengths.repeat_interleave(width, 0)
    expected = model(*repeated, target)
    state = model.start(*model.encode(source, lengths))
    for step, word in enumerate(target.T):
        logits = model.decode_step(word, state)
        torch.testing.assert_close(logits, expected[:, step], **EXACT)


def test_a_state_continues_with_the_rows_and_sentences_selected():
    model = tiny("nemo")
    source, lengths = sentences(4, 6, 2)
    target = torch.randint(WORDS, (6, 5))  # two rows per sentence
    rows, kept = torch.tensor([5, 5, 1, 0]), torch.tensor([2, 0])
    state = model.start(*model.encode(source, lengths))
    for word in target[:, :3].T:
        model.decode_step(word, state)
    state.select(rows, kept)
    chosen = target[rows]
    expected = model(
        source[kept].repeat_interleave(2, 0), lengths[kept].repeat_interleave(2), chosen
    )
    for step in (3, 4):
        logits = model.decode_step(chosen[:, step], state)
        torch.testing.assert_close(logits, expected[:, step], **EXACT)
    with pytest.raises(ValueError, match="4 tokens expected, not 6"):
        model.decode_step(target[:, 0], state)


@pytest.mark.parametrize(("variant", "count"), [("nemo", 184_762_368), ("fairseq", 184_745_984)])
def test_has_the_published_size(variant: str, count: int):
    """Layers of 16 and 26 tensors; then words, or words, two norms, two types and a bias."""
    with torch.device("meta"):
        model = Transformer(TransformerOptions(variant=variant))
        tokens = torch.empty(2, 8, dtype=torch.int64)
        lengths = torch.empty(2, dtype=torch.int64)
    parameters = dict(model.named_parameters())
    assert sum(p.numel() for p in parameters.values()) == count
    assert len(parameters) == 6 * 16 + 6 * 26 + (1 if variant == "fairseq" else 8)
    logits = model(tokens, lengths, tokens)
    assert logits.shape == (2, 8, 8192)
    logits.sum().backward()
    idle = {name for name, p in parameters.items() if p.grad is None}
    assert idle == ({"source.token_types", "target.token_types"} if variant == "nemo" else set())
    assert not any(parameters[name].requires_grad for name in idle)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_parameter_that_is_trained_has_a_gradient(variant: str):
    """But for biases of keys: they add the same to all scores of a query."""
    model = tiny(variant, dropout=0.1).train()
    source, lengths = sentences(5, 7)
    logits = model(source, lengths, sentences(6, 6)[0])
    F.cross_entropy(logits.flatten(0, 1), sentences(6, 6)[0].flatten()).backward()
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            assert name in ("source.token_types", "target.token_types")
            continue
        assert parameter.grad is not None
        assert parameter.grad.layout == torch.strided
        assert parameter.grad.isfinite().all()
        if not name.endswith(".k.bias"):
            assert parameter.grad.abs().max() > 1e-9, name


def test_initial_values():
    sizes: dict[str, Any] = {"vocabulary": 500, "d_model": 64, "d_ff": 96, "heads": 4}
    model = Transformer(options("nemo", **sizes))
    for name, parameter in model.named_parameters():
        values = parameter.detach()
        if name.endswith(("bias", "token_types")):
            assert (values == 0).all(), name
        elif name.endswith("norm.weight"):
            assert (values == 1).all(), name
        else:
            deviation = 64**-0.5 if name == "embedding" else math.sqrt(2 / sum(values.shape))
            # Standard errors of a mean and of a deviation; five of them.
            assert abs(values.mean()) < 5 * deviation / math.sqrt(values.numel()), name
            assert abs(values.std() / deviation - 1) < 5 / math.sqrt(2 * values.numel()), name
            if name != "embedding":  # uniform
                assert values.abs().max() <= math.sqrt(6 / sum(values.shape)), name


def test_positions():
    table = sinusoids(8)
    assert table.shape == (POSITIONS, 8)
    for place, pair in [(0, 0), (1, 0), (7, 2), (1000, 3)]:
        angle = place / 10000 ** (2 * pair / 8)
        expected = torch.tensor([math.sin(angle), math.cos(angle)]) / math.sqrt(8)
        torch.testing.assert_close(table[place, 2 * pair : 2 * pair + 2], expected)
    table = fairseq_sinusoids(8, 2)
    assert table.shape == (POSITIONS, 8)
    torch.testing.assert_close(table[4, 1], torch.tensor(math.sin(7 / 10000 ** (1 / 3))))
    torch.testing.assert_close(table[4, 7], torch.tensor(math.cos(7 / 10000)))


def dropouts(model: Transformer) -> list[tuple[int, ...]]:
    """The shapes of what is dropped from, for 2 sentences of 5 words and 4 words of each."""
    calls: list[tuple[int, ...]] = []

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if "aten.ge" in str(func):
                calls.append(tuple(out.shape))
            return out

    with Count():
        model(sentences(5, 5)[0], None, sentences(4, 4)[0])
    return calls


def test_every_kind_of_dropout_is_there():
    """Of the words, the weights of attention, and either sublayer's output; not of the ReLU's."""
    calls = dropouts(tiny("nemo", dropout=0.25).train())
    assert calls.count((2, 5, 12)) == 1 + 2 * 2
    assert calls.count((2, 4, 12)) == 1 + 2 * 3
    weights = [(2, 3, 5, 5), (2, 3, 4, 4), (2, 3, 4, 5)]
    assert [calls.count(shape) for shape in weights] == [2, 2, 2]
    assert len(calls) == 5 + 7 + 6
    assert not dropouts(tiny("nemo", dropout=0.25).eval())


@pytest.mark.parametrize("variant", VARIANTS)
def test_training_is_evaluation_but_for_dropout(variant: str, monkeypatch: pytest.MonkeyPatch):
    """Attention has a way of its own on the CPU when something is dropped."""
    model = tiny(variant, dropout=0.25)
    (source, lengths), target = sentences(6, 1, 3), sentences(4, 4, 4)[0]
    expected = model.eval()(source, lengths, target)
    assert not torch.allclose(model.train()(source, lengths, target), expected)
    monkeypatch.setattr(Dropout, "forward", lambda _, x, onto=0.0: x + onto)
    torch.testing.assert_close(model(source, lengths, target), expected, **EXACT)


def test_autocast_is_close():
    """A few roundings of relative size eps / 2 per layer, on a loss and a gradient of order 1.

    The gradient is taken as one vector: those of queries and keys are small differences in it.
    """
    model = Transformer(options("nemo", d_model=36, d_ff=64))
    source, lengths = sentences(6, 8, 3)
    target, expected = sentences(7, 7, 7)[0], sentences(7, 7, 7)[0]
    parameters = [p for p in model.parameters() if p.requires_grad]

    def loss_and_gradient() -> tuple[Tensor, Tensor]:
        logits = model(source, lengths, target)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), expected.flatten())
        gradients = torch.autograd.grad(loss, parameters)
        assert all(g.dtype == torch.float32 for g in gradients)
        return loss, torch.cat([g.flatten() for g in gradients])

    loss, gradient = loss_and_gradient()
    with torch.autocast("cpu", torch.bfloat16):
        rough, other = loss_and_gradient()
        state = model.start(*model.encode(source, lengths))
        step = model.decode_step(target[:, 0], state)
        logits = model(source, lengths, target)[:, 0]
    eps = torch.finfo(torch.bfloat16).eps
    assert abs(rough - loss) < 16 * eps
    assert (other - gradient).norm() <= 16 * eps * gradient.norm()
    assert step.dtype == torch.bfloat16
    assert (step - logits).abs().max() < 16 * eps * logits.abs().max()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"heads": 0}, "heads must be at least 1, not 0"),
        ({"heads": 5}, "d_model must be a multiple of heads=5, not 12"),
        ({"d_model": 9}, "d_model must be even.* not 9"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), not 1.0"),
        ({"variant": "marian"}, 'variant must be "nemo" or "fairseq", not \'marian\''),
        ({"pad": 31}, "pad must be a word below vocabulary=31, not 31"),
    ],
)
def test_wrong_options_are_named(wrong: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        Transformer(options(**{"variant": "nemo"} | wrong))


def test_a_sentence_that_is_too_long_is_named():
    with pytest.raises(ValueError, match="at most 1024 words, not 1025"):
        tiny("nemo")(*sentences(1025), sentences(3)[0])


def test_maps_at_once_are_the_maps_one_by_one():
    """Gradients too; they are put together on a GPU only."""
    maps = [nn.Linear(5, 7).double() for _ in range(3)]
    x = torch.randn(2, 4, 5, dtype=torch.float64, requires_grad=True)
    found = []
    for at_once in (False, True):
        outs = together(x, *maps, at_once=at_once)
        total = sum(((i + 1) * out.square().sum() for i, out in enumerate(outs)), x.new_zeros(()))
        parameters = [p for m in maps for p in m.parameters()]
        found.append([*outs, *torch.autograd.grad(total, [x, *parameters])])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, **EXACT)
