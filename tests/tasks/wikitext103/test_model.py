"""Transformer-XL against its equations, in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tasks.wikitext103 import softmax
from tasks.wikitext103.model import TransformerXL, TransformerXLOptions
from tests.tasks.wikitext103 import naive

WORDS = 19
CUTOFFS: list[list[int]] = [[], [5], [3, 4, 11]]
CALLS: list[dict[str, Any]] = [
    {"memory_length": 5},
    {"memory_length": 5, "clamp": 3},
    {"memory_length": 6, "same_length": True},
    {"memory_length": 2, "same_length": True, "clamp": 1},
    {"memory_length": 99, "same_length": True},
]
EXACT: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12}


def tiny(cutoffs: list[int], **options: Any) -> TransformerXL:
    """In float64 and far from the small initial weights, where every term counts."""
    sizes: dict[str, Any] = {"layers": 2, "d_model": 6, "heads": 2, "d_head": 3, "d_inner": 7}
    sizes |= {"vocabulary": WORDS, "dropout": 0.0, "cutoffs": cutoffs}
    model = TransformerXL(TransformerXLOptions(**sizes | options)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.7)
    return model


def words(batch: int, length: int, high: int = WORDS) -> tuple[Tensor, Tensor]:
    return torch.randint(WORDS, (batch, length)), torch.randint(high, (batch, length))


def slowly(model: TransformerXL, *data: Tensor | None, **call: Any) -> tuple[Tensor, Tensor]:
    options = model.options
    parameters = dict(model.named_parameters())
    tokens, targets, memory = data
    assert tokens is not None
    assert targets is not None
    return naive.transformer_xl(
        parameters, options.layers, options.cutoffs, tokens, targets, memory, **call
    )


@pytest.mark.parametrize("before", [0, 3, 5])
@pytest.mark.parametrize("call", CALLS, ids=str)
def test_is_the_equations(call: dict[str, Any], before: int):
    model = tiny([3, 4, 11])
    memory = torch.randn(2, 2, before, 6, dtype=torch.float64) if before else None
    data = (*words(2, 4), memory)
    nll, kept = model(*data, **call)
    expected, remembered = slowly(model, *data, **call)
    torch.testing.assert_close(nll, expected, **EXACT)
    torch.testing.assert_close(kept, remembered, **EXACT)


@pytest.mark.parametrize("cutoffs", CUTOFFS, ids=str)
@pytest.mark.parametrize("high", [WORDS, 3], ids=["all clusters", "head only"])
@pytest.mark.parametrize(("chunk", "kept"), [(2**24, 2**28), (40, 2**28), (40, 60), (1, 0)])
def test_every_gradient_is_that_of_the_equations(
    cutoffs: list[int], high: int, chunk: int, kept: int, monkeypatch: pytest.MonkeyPatch
):
    """Whatever is calculated at once, kept or calculated again."""
    monkeypatch.setattr(softmax, "CHUNK", chunk)
    monkeypatch.setattr(softmax, "KEPT", kept)
    model = tiny(cutoffs, layers=1)
    data = (*words(2, 3, high), torch.randn(1, 2, 2, 6, dtype=torch.float64))
    weights = torch.randn(2, 3, dtype=torch.float64)
    names, parameters = zip(*model.named_parameters(), strict=True)
    nll, _ = model(*data, memory_length=2)
    expected, _ = slowly(model, *data, memory_length=2)
    torch.testing.assert_close(nll, expected, **EXACT)
    ours = torch.autograd.grad((nll * weights).sum(), parameters)
    # A cluster that no target is in gets zeros; the equations do without its words.
    theirs = torch.autograd.grad((expected * weights).sum(), parameters, materialize_grads=True)
    for name, one, other in zip(names, ours, theirs, strict=True):
        torch.testing.assert_close({name: one}, {name: other}, **EXACT)


def test_gradients_by_differences():
    model = tiny([3, 6], vocabulary=9, layers=1, d_model=4, heads=1, d_head=2, d_inner=3)
    tokens, targets = torch.tensor([[1, 7, 3]]), torch.tensor([[2, 8, 4]])
    memory = torch.randn(1, 1, 2, 4, dtype=torch.float64)
    names, parameters = zip(*model.named_parameters(), strict=True)

    def nll(*values: Tensor) -> Tensor:
        given = dict(zip(names, values, strict=True))
        loss: Tensor = functional_call(
            model, given, (tokens, targets, memory), {"memory_length": 2}
        )[0]
        return loss

    assert torch.autograd.gradcheck(nll, parameters)


@pytest.mark.parametrize("call", [{}, {"clamp": 3}, {"same_length": True}], ids=str)
def test_segments_with_memory_are_one_long_segment(call: dict[str, Any]):
    model = tiny([5])
    tokens, targets = words(2, 9)
    whole, everything = model(tokens, targets, memory_length=9, **call)
    parts, memory = [], None
    for some in (slice(0, 4), slice(4, 5), slice(5, 9)):
        nll, memory = model(tokens[:, some], targets[:, some], memory, memory_length=9, **call)
        parts.append(nll)
    torch.testing.assert_close(torch.cat(parts, 1), whole, **EXACT)
    torch.testing.assert_close(memory, everything, **EXACT)


@pytest.mark.parametrize("length", [0, 1, 4, 6, 7, 20])
def test_memory_holds_the_last_positions_without_a_gradient(length: int):
    model = tiny([5])
    tokens, targets = words(3, 4)
    old = torch.randn(2, 3, 3, 6, dtype=torch.float64)
    before = old.clone()
    _, memory = model(tokens, targets, old, memory_length=length)
    assert memory.shape == (2, 3, min(7, length), 6)
    assert not memory.requires_grad
    inputs = model.embedding[tokens] * math.sqrt(6)
    expected = torch.cat([before[0], inputs], 1)[:, max(7 - length, 0) :]
    assert torch.equal(memory[0], expected)
    assert torch.equal(old, before)
    again, _ = model(tokens, targets, memory, memory_length=length)
    if not length:
        alone, _ = model(tokens, targets, memory_length=0)
        assert torch.equal(again, alone)


@pytest.mark.parametrize("cutoffs", CUTOFFS, ids=str)
def test_probabilities_sum_to_one_and_are_those_of_the_loss(cutoffs: list[int]):
    model = tiny(cutoffs)
    tokens, targets = words(4, 3)
    nll, _ = model(tokens, targets, memory_length=0)
    logs, _ = model.log_probabilities(tokens, memory_length=0)
    assert logs.shape == (4, WORDS)
    torch.testing.assert_close(logs.exp().sum(1), torch.ones(4, dtype=torch.float64), **EXACT)
    torch.testing.assert_close(-logs.gather(1, targets[:, -1:])[:, 0], nll[:, -1], **EXACT)


def test_has_the_papers_size():
    with torch.device("meta"):
        model = TransformerXL(TransformerXLOptions())
        tokens = torch.empty(2, 8, dtype=torch.int64)
    parameters = list(model.parameters())
    assert sum(p.numel() for p in parameters) == 191_950_298
    assert len(parameters) == 182
    nll, memory = model(tokens, tokens, memory_length=5)
    nll.sum().backward()
    assert nll.shape == (2, 8)
    assert memory.shape == (16, 2, 5, 512)
    assert all(p.grad is not None for p in parameters)


def test_initial_values():
    options = TransformerXLOptions(5000, 2, d_model=64, d_head=8, d_inner=128, cutoffs=[9, 4000])
    for name, parameter in TransformerXL(options).named_parameters():
        values = parameter.detach().flatten()
        if name.endswith("bias") and "content" not in name and "position" not in name:
            assert (values == 0).all(), name
            continue
        mean = 1.0 if name.endswith("norm.weight") else 0.0
        # Standard errors of a mean and of a deviation; five of them.
        assert abs(values.mean() - mean) < 5 * 0.02 / math.sqrt(len(values)), name
        assert abs(values.std() / 0.02 - 1) < 5 / math.sqrt(2 * len(values)), name


def test_starts_near_the_loss_of_equal_probabilities():
    """Logits of deviation 0.02 · √64 add about half their variance: 0.013."""
    model = TransformerXL(TransformerXLOptions(1000, 2, 64, 4, 16, 128, cutoffs=[]))
    data = torch.randint(1000, (2, 4, 32))
    nll, _ = model(*data, memory_length=0)
    assert abs(nll.mean() - math.log(1000)) < 0.1


def test_dropout_is_for_training_and_follows_the_seed():
    model = tiny([5], dropout=0.3, attention_dropout=0.2)
    data = words(2, 4)

    def run(seed: int) -> Tensor:
        torch.manual_seed(seed)
        nll: Tensor = model(*data, memory_length=0)[0]
        return nll.detach()

    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))
    model.eval()
    assert torch.equal(run(1), run(2))
    expected, _ = slowly(model, *data, None, memory_length=4)
    torch.testing.assert_close(run(1), expected.detach(), **EXACT)


def test_every_kind_of_dropout_is_there():
    """Of embeddings, positions and output; in a layer after attention, ReLU and the second map."""
    model = tiny([5], dropout=0.25, attention_dropout=0.5, layers=3)
    calls: list[tuple[int, ...]] = []

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if "bernoulli" in str(func) or "native_dropout" in str(func):
                calls.append(tuple(tree_leaves(out)[0].shape))
            return out

    with Count():
        model(*words(2, 4), memory_length=0)
    assert len(calls) == 3 + 3 * 4
    assert calls.count((2, 4, 7)) == 3  # the inner size
    assert calls.count((2, 2, 4, 4)) == 3  # attention weights
    assert calls.count((8, 6)) == 1  # positions: 4 distances, filled up


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_is_close(dtype: torch.dtype):
    """A few roundings of relative size eps / 2 per layer, on a loss and gradients of order 1."""
    model = tiny([3, 4, 11], d_model=32, d_head=16, d_inner=64).float()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.2)
    data, memory = words(4, 8), torch.randn(2, 4, 4, 32)
    exact, _ = model(*data, memory, memory_length=4)
    gradients = torch.autograd.grad(exact.mean(), list(model.parameters()))
    with torch.autocast("cpu", dtype):
        nll, _ = model(*data, memory, memory_length=4)
    assert nll.dtype == torch.float32
    eps = torch.finfo(dtype).eps
    assert (nll - exact).abs().max() < 16 * eps
    rough = torch.autograd.grad(nll.mean(), list(model.parameters()))
    for one, other in zip(rough, gradients, strict=True):
        assert one.dtype == torch.float32
        assert (one - other).norm() <= 16 * eps * other.norm()


def test_every_parameter_has_a_gradient_when_clusters_are_empty():
    model = tiny([3, 4, 11])
    nll, _ = model(words(2, 4)[0], torch.zeros(2, 4, dtype=torch.int64), memory_length=0)
    nll.sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    assert all(g is not None and g.isfinite().all() for g in gradients.values())
    assert all(g.layout == torch.strided for g in gradients.values() if g is not None)
    bias = gradients["softmax.bias"]
    assert bias is not None
    assert (bias[3:] == 0).all()
    assert (bias[:3] != 0).all()


class Largest(TorchDispatchMode):
    """The most elements of any tensor that an operation returns."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        sizes = [t.numel() for t in tree_leaves(out) if isinstance(t, Tensor)]
        self.elements = max([self.elements, *sizes])
        return out


@pytest.mark.parametrize("rare", [False, True])
def test_logits_of_all_words_for_all_tokens_never_exist(
    rare: bool, monkeypatch: pytest.MonkeyPatch
):
    """Not even if all targets are in the largest cluster; and few are kept."""
    vocabulary, tokens, d_model = 5000, 256, 8
    monkeypatch.setattr(softmax, "CHUNK", 2**15)
    monkeypatch.setattr(softmax, "KEPT", 2**17)
    options = TransformerXLOptions(vocabulary, 1, d_model, 2, 4, 16, cutoffs=[100, 1000])
    model = TransformerXL(options)
    inputs, targets = torch.randint(1000 if rare else 0, vocabulary, (2, 4, tokens // 4))
    with Largest() as largest:
        nll, _ = model(inputs, targets, memory_length=0)
        assert nll.grad_fn is not None
        function: Any = nll.grad_fn.next_functions[0][0]
        assert 0 < sum(t.numel() for t in function.saved_tensors[5:]) <= 2**17
        nll.sum().backward()
    assert largest.elements <= vocabulary * d_model < tokens * vocabulary // 30


def test_wrong_options_are_named():
    def build(**options: Any) -> TransformerXL:
        small: dict[str, Any] = {"vocabulary": 30, "cutoffs": []}
        return TransformerXL(TransformerXLOptions(**small | options))

    with pytest.raises(ValueError, match="heads must be at least 1, not 0"):
        build(heads=0)
    with pytest.raises(ValueError, match=r"d_model must be even.* not 7"):
        build(d_model=7)
    with pytest.raises(ValueError, match=r"attention_dropout must be in \[0, 1\), not 1.5"):
        build(attention_dropout=1.5)
    for wrong in ([0], [30], [7, 5], [4, 4]):
        with pytest.raises(ValueError, match=r"cutoffs must be increasing.*vocabulary=30, not"):
            build(cutoffs=wrong)


def test_wrong_arguments_are_named():
    model, data = tiny([5]), words(2, 4)
    with pytest.raises(
        ValueError, match=r"memory must have shape \(2, 2, 3, 6\), not \(2, 1, 3, 6"
    ):
        model(*data, torch.zeros(2, 1, 3, 6), memory_length=3)
    with pytest.raises(ValueError, match="memory_length must be at least 1 with same_length=True"):
        model(*data, memory_length=0, same_length=True)
    with pytest.raises(ValueError, match="clamp must be None or at least 1, not 0"):
        model(*data, memory_length=0, clamp=0)
