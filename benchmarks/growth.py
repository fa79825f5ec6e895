"""`python -m scripts.bench growth`: how costs grow with models, tensors, lengths and data.

Data of 1 million items are measured; the page extrapolates to 100 million, and says so.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.contest import BenchOptions, Findings, peak_bytes, speed, take_turns, timed
from benchmarks.wikitext import SIZES, make_words
from optim import NovoGrad
from optim.baselines import torch_optimizer
from tasks.librispeech.manifest import _Subset
from tasks.streams import bucketed_micro_batches, shuffled_micro_batches
from tasks.wikitext103.model import TransformerXL
from tasks.wmt14.packing import Packing

TENSORS = (10, 100, 1_000, 10_000, 100_000)
NUMBERS = 64  # of a small tensor
MODELS = ((2, 128), (4, 256), (8, 512), (16, 512))  # layers and width of Transformer-XL
VOCABULARY, SEGMENT = 10_000, 64  # of these
LENGTHS = (64, 128, 256, 512)  # of a segment, after a memory as long
ITEMS = (100_000, 1_000_000)
ROUNDS = 5


def measure(options: BenchOptions) -> Findings:
    """One thread, on the CPU."""
    torch.set_num_threads(1)
    rounds = options.rounds(ROUNDS)
    detail = {
        "models": [model_row(layers, width, rounds) for layers, width in MODELS],
        "tensors": [optimizer_row(count, rounds) for count in TENSORS],
        "lengths": [length_row(length, rounds) for length in LENGTHS],
        "items": [data_row(name, count) for name in DATA for count in ITEMS],
    }
    return Findings([], detail)


def model_row(layers: int, width: int, rounds: int) -> dict[str, Any]:
    """A whole training step, and megabytes: kept between steps, and most of a step beyond these."""
    options = replace(
        SIZES,
        vocabulary=VOCABULARY,
        cutoffs=[],
        layers=layers,
        d_model=width,
        d_inner=4 * width,
        heads=width // SIZES.d_head,
    )
    words, model = make_words(options, SEGMENT, SEGMENT), TransformerXL(options)
    optimizer = NovoGrad(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        model(words.tokens, words.targets, words.memory, memory_length=SEGMENT)[0].sum().backward()
        optimizer.step()

    steps_per_s = speed("step", step, 1, min(rounds, 3)).ours
    optimizer.zero_grad()
    peak = peak_bytes(step)
    state = [tensor for own in optimizer.state.values() for tensor in own.values()]
    kept = sum(tensor.nbytes for tensor in (*model.parameters(), *state))
    return {
        "layers": layers,
        "width": width,
        "parameters": sum(p.numel() for p in model.parameters()),
        "ms": 1e3 / steps_per_s,
        "kept_mb": kept / 1e6,
        "step_mb": peak / 1e6,
    }


def optimizer_row(count: int, rounds: int) -> dict[str, Any]:
    """Milliseconds of a step on so many tensors of 64 numbers."""
    params = [torch.nn.Parameter(torch.ones(NUMBERS)) for _ in range(count)]
    for param in params:
        param.grad = torch.ones(NUMBERS)
    steps: dict[str, Callable[[], object]] = {
        "novograd": NovoGrad(params, lr=1e-4).step,
        "adamw": torch_optimizer("adamw", params, lr=1e-4, fused=True).step,
    }
    turns = take_turns({name: timed(step) for name, step in steps.items()}, rounds, warm=1)
    found = {f"{name}_ms": 1e3 * median(turn[name] for turn in turns) for name in steps}
    return {"tensors": count, **found}


def length_row(length: int, rounds: int) -> dict[str, Any]:
    """Tokens per second of Transformer-XL's forward and backward pass, four columns."""
    words = make_words(SIZES, length, length)
    model = TransformerXL(SIZES)

    def step() -> None:
        model.zero_grad()
        model(words.tokens, words.targets, words.memory, memory_length=length)[0].sum().backward()

    tokens = words.tokens.numel()
    found = speed("step", step, tokens, min(rounds, 3)).ours
    return {"length": length, "ms": 1e3 * tokens / found, "tokens_per_s": found}


def data_row(name: str, count: int) -> dict[str, Any]:
    """Seconds of making something for so many items, and bytes of what is kept."""
    before = time.perf_counter()
    kept = DATA[name](count)
    return {"what": name, "items": count, "seconds": time.perf_counter() - before, "bytes": kept}


def _lengths(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(4, 100, count)


def _order(count: int) -> int:
    """An epoch's micro-batches of 128 images."""
    return _bytes_of_lists(shuffled_micro_batches(count, 128, 0)(0))


def _bucketed(count: int) -> int:
    return _bytes_of_lists(bucketed_micro_batches(_lengths(count), 32, 0)(0))


def _bytes_of_lists(micro_batches: Sequence[Sequence[int]]) -> int:
    """Of Python's integers, 28 bytes each, and of what points to them."""
    return sum(sys.getsizeof(some) + 28 * len(some) for some in micro_batches)


def _packed(count: int) -> int:
    packing = Packing(_lengths(count), _lengths(count), 12_288)
    return sum(some.nbytes for some in packing.micro_batches(0, 0)) + packing._places.nbytes


def _manifest(count: int) -> int:
    """Names, lengths and texts, from Python objects to the arrays of the cache on disk."""
    text = "a text of about as many words as an utterance of some seconds has"
    utterances = [(f"103/1240/103-1240-{i:07}.flac", 200_000, text) for i in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        subset = _Subset.of(utterances)
        for name, array in subset._asdict().items():
            np.save(Path(folder) / f"{name}.npy", array)
        return sum(path.stat().st_size for path in Path(folder).iterdir())


DATA: dict[str, Callable[[int], int]] = {
    "an epoch's order (ImageNet)": _order,
    "batches of similar lengths (LibriSpeech)": _bucketed,
    "packing into token budgets (WMT14)": _packed,
    "manifest of names, lengths and texts (LibriSpeech)": _manifest,
}
