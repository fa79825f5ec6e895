"""`python -m scripts.bench_optim`: times the optimizers' step() on the CPU, side by side.

All optimizers work in one process on the same parameters. A round gives each of them one step, in
an order that changes from round to round, with the same gradients written afresh before each, so
that a busy machine or a warm cache favours nobody; ratios are taken within a round. Optimizers
that take more than twice AdamW's time take part in every third round only. Needs 16 GB of memory.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import json
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import date
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from statistics import median, quantiles
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn import Parameter

from optim import ClipGlobalNorm, NovoGrad, native, transform_gradients
from optim.baselines import Optimizer, torch_optimizer

Shape = tuple[int, ...]
Row = dict[str, Any]

RESULTS = Path(__file__).parent.parent / "results" / "bench"
ROUNDS = {"resnet50v2": 36, "transformer_big": 12, "small_tensors": 60}
FULL_FACTOR = 4
LARGE = 100_000_000  # parameters from which on optimizers are left out, to save memory
TRIAD_NUMEL = 1 << 26
OURS, REFERENCE = "NovoGrad (ours)", "torch AdamW fused"
OPTIONS: dict[str, Any] = {"lr": 1e-4, "weight_decay": 1e-3}
BETAS = (0.95, 0.98)
OTHERS = (  # package, module, class
    ("timm", "timm.optim", "NvNovoGrad"),
    ("pytorch_optimizer", "pytorch_optimizer", "NovoGrad"),
    ("torch_optimizer", "torch_optimizer", "NovoGrad"),
    ("monai", "monai.optimizers", "Novograd"),
)
NOTES = """\
Times are medians; noise is the interquartile range as a share of the median. "/ AdamW" is the time
over that of torch's fused AdamW and "/ ours" that over ours, both as medians over rounds. GB/s counts
24 bytes per parameter for NovoGrad, 20 for SGD, 28 for Adam; the triad (a = b + s c, 12 bytes per
element) gives the memory's bandwidth, which can be passed by what stays in the cache or is written in
place. Memory is what torch allocates inside step(), at its peak, as a share of the parameters' size;
state is in bytes per parameter."""


def resnet50v2() -> list[Shape]:
    """ResNet-50 v2 for ImageNet."""
    shapes: list[Shape] = [(64, 3, 7, 7)]
    channels = 64
    for width, blocks in zip((64, 128, 256, 512), (3, 4, 6, 3), strict=True):
        for block in range(blocks):
            shapes += [(channels,)] * 2
            shapes += [(4 * width, channels, 1, 1)] if block == 0 else []
            shapes += [(width, channels, 1, 1), (width,), (width,)]
            shapes += [(width, width, 3, 3), (width,), (width,), (4 * width, width, 1, 1)]
            channels = 4 * width
    shapes += [(channels,), (channels,), (1000, channels), (1000,)]
    return _checked(shapes, 153, 25_549_352)


def transformer_big() -> list[Shape]:
    """Transformer-big with one embedding of 8192 pieces."""
    norm: list[Shape] = [(1024,)] * 2
    attention: list[Shape] = [(1024, 1024), (1024,)] * 4
    feed_forward: list[Shape] = [(4096, 1024), (4096,), (1024, 4096), (1024,)]
    encoder = [*attention, *norm, *feed_forward, *norm]
    decoder = [*attention, *norm, *encoder]
    return _checked([(8192, 1024), *encoder * 6, *decoder * 6], 253, 184_745_984)


def small_tensors() -> list[Shape]:
    """A thousand tensors where the cost of a call counts more than that of the arithmetic."""
    return _checked([(64,), (256,), (1024,), (4096,), (21600,)] * 200, 1000, 5_408_000)


def _checked(shapes: list[Shape], tensors: int, parameters: int) -> list[Shape]:
    assert (len(shapes), sum(map(math.prod, shapes))) == (tensors, parameters)
    return shapes


PARAMETER_SETS: dict[str, Callable[[], list[Shape]]] = {
    "resnet50v2": resnet50v2,
    "transformer_big": transformer_big,
    "small_tensors": small_tensors,
}


@dataclass(frozen=True)
class Competitor:
    """An optimizer to time; without `make` it is not installed."""

    name: str
    kind: str  # ours, torch, other
    traffic: int  # bytes moved per fp32 parameter
    make: Callable[[list[Parameter]], Optimizer] | None
    context: Callable[[], AbstractContextManager[Any]] = nullcontext
    before: Callable[[Optimizer], object] | None = None  # timed together with the step
    spare: bool = False  # left out on large sets


def competitors() -> list[Competitor]:
    """All of them, in the order of the table."""
    return [*_ours(), *_torchs(), *_others()]


def _ours() -> list[Competitor]:
    make = partial(NovoGrad, betas=BETAS, **OPTIONS)
    no_kernels = partial(mock.patch.object, native, "supports", lambda dtype: False)
    return [
        Competitor(OURS, "ours", 24, make),
        Competitor(f"{OURS} without compiler", "ours", 24, make, no_kernels),
        Competitor(f"{OURS} foreach", "ours", 24, partial(make, foreach=True)),
        Competitor(f"{OURS} single", "ours", 24, partial(make, foreach=False, fused=False)),
    ]


def _torchs() -> list[Competitor]:
    found = []
    for name, title, traffic in (("adamw", "AdamW", 28), ("adam", "Adam", 28), ("sgd", "SGD", 20)):
        own = {"momentum": 0.9} if name == "sgd" else {}
        for form in ("fused", "foreach", "default"):
            choice = {} if form == "default" else {form: True}
            make = partial(torch_optimizer, name, **OPTIONS, **own, **choice)
            spare = name == "adam" or (name == "sgd" and form != "fused")
            label = f"torch {title} {form}"
            found.append(Competitor(label, "torch", traffic, make, spare=spare))
    return found


def _others() -> list[Competitor]:
    found = []
    for package, module, class_name in OTHERS:
        label = f"{package} {class_name}"
        try:
            make = partial(getattr(import_module(module), class_name), betas=BETAS, **OPTIONS)
        except (ImportError, AttributeError):
            found.append(Competitor(label, "other", 24, None))
            continue
        found.append(Competitor(label, "other", 24, make))
        if "foreach" in inspect.signature(make).parameters:  # on by default, so time it without
            loop = partial(make, foreach=False)
            found.append(Competitor(f"{label} loop", "other", 24, loop))
    return found


def with_clipping(everyone: Iterable[Competitor]) -> list[Competitor]:
    """The few of them that are timed together with clipping by the global norm."""

    def transform(optimizer: Optimizer) -> object:
        return transform_gradients(optimizer, [ClipGlobalNorm(1.0)])

    def clip(optimizer: Optimizer) -> object:
        params = [p for group in optimizer.param_groups for p in group["params"]]
        return torch.nn.utils.clip_grad_norm_(params, 1.0)

    chosen = {OURS: transform, REFERENCE: clip, "timm NvNovoGrad": clip}
    return [
        Competitor(c.name, c.kind, c.traffic, c.make, before=chosen[c.name])
        for c in everyone
        if c.name in chosen
    ]


class Workload:
    """Parameters with gradients, and those gradients kept to write them anew."""

    def __init__(self, shapes: Sequence[Shape]) -> None:
        source = torch.Generator().manual_seed(0)
        self.params = [Parameter(torch.empty(s).normal_(0, 0.02, generator=source)) for s in shapes]
        self._kept = [torch.empty(s).normal_(0, 0.01, generator=source) for s in shapes]
        self._grads = [g.clone() for g in self._kept]
        for param, grad in zip(self.params, self._grads, strict=True):
            param.grad = grad
        self.tensors = len(shapes)
        self.numel = sum(map(math.prod, shapes))

    def refill(self) -> None:
        """Undoes what an optimizer has done to the gradients."""
        torch._foreach_copy_(self._grads, self._kept)


@dataclass
class Runner:
    """A competitor at work: its optimizer, and seconds by round."""

    competitor: Competitor
    optimizer: Optimizer
    seconds: dict[int, float] = field(default_factory=dict)
    every: int = 1
    extra_bytes: int = 0

    def step(self) -> float:
        before, optimizer = self.competitor.before, self.optimizer
        with self.competitor.context():
            start = time.perf_counter()
            if before is not None:
                before(optimizer)
            optimizer.step()
            return time.perf_counter() - start

    def state_bytes(self) -> int:
        values = [v for state in self.optimizer.state.values() for v in state.values()]
        return sum(v.numel() * v.element_size() for v in values if isinstance(v, Tensor))


class Triad:
    """a = b + s c over arrays that no cache holds: the memory's bandwidth."""

    def __init__(self) -> None:
        self._a, self._b, self._c = (torch.ones(TRIAD_NUMEL) for _ in range(3))

    def gigabytes_per_second(self) -> float:
        start = time.perf_counter()
        torch.add(self._b, self._c, alpha=0.5, out=self._a)
        return 12e-9 * TRIAD_NUMEL / (time.perf_counter() - start)


def peak_bytes(action: Callable[[], object]) -> int:
    """The most that torch's CPU allocator holds during the action beyond what it held before."""
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        action()
    assert profile.kineto_results is not None
    events = [e for e in profile.kineto_results.events() if e.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def warm_up(runners: list[Runner], work: Workload, label: str) -> None:
    """Three untimed steps each: state, peak memory, then how often to take part."""
    for index, runner in enumerate(runners):
        progress(f"{label}: warming up, optimizer", index + 1, len(runners))
        work.refill()
        runner.step()
        work.refill()
        runner.extra_bytes = peak_bytes(runner.step)
    seconds = {}
    for runner in runners:
        work.refill()
        seconds[runner.competitor.name] = runner.step()
    for runner in runners:
        slow = seconds[runner.competitor.name] > 2 * seconds[REFERENCE]
        runner.every = 3 if slow and runner.competitor.name != OURS else 1


def run(
    everyone: Iterable[Competitor], work: Workload, triad: Triad, rounds: int, label: str
) -> tuple[list[Row], float]:
    """Times all in turn; returns the table's rows and the triad's bandwidth."""
    present = [c for c in everyone if not (c.spare and work.numel > LARGE)]
    runners = [Runner(c, c.make(work.params)) for c in present if c.make is not None]
    warm_up(runners, work, label)
    bandwidths = []
    order = list(runners)
    gc.collect()
    gc.disable()
    for number in range(rounds):
        progress(f"{label}: round", number + 1, rounds)
        bandwidths.append(triad.gigabytes_per_second())
        random.Random(number).shuffle(order)
        for runner in order:
            if number % runner.every == 0:
                work.refill()
                runner.seconds[number] = runner.step()
    gc.enable()
    bandwidth = median(bandwidths)
    by_name = {r.competitor.name: r for r in runners}
    return [row_of(c, by_name, work, bandwidth) for c in present], bandwidth


def row_of(
    competitor: Competitor, runners: dict[str, Runner], work: Workload, bandwidth: float
) -> Row:
    """What the table says about one competitor."""
    row: Row = {"name": competitor.name, "kind": competitor.kind}
    if competitor.make is None:
        return row | {"installed": False}
    runner = runners[competitor.name]
    middle = median(runner.seconds.values())
    low, _, high = quantiles(runner.seconds.values(), n=4)
    speed = competitor.traffic * 1e-9 * work.numel / middle
    numbers = {
        "median_ms": 1e3 * middle,
        "noise_percent": 100 * (high - low) / middle,
        "to_adamw": ratio(runner, runners[REFERENCE]),
        "to_ours": ratio(runner, runners[OURS]),
        "gb_per_s": speed,
        "of_triad_percent": 100 * speed / bandwidth,
        "extra_memory_percent": 100 * runner.extra_bytes / (4 * work.numel),
        "state_bytes_per_parameter": runner.state_bytes() / work.numel,
    }
    rounded = {name: float(f"{value:.5g}") for name, value in numbers.items()}
    return row | {"installed": True, "rounds": len(runner.seconds), **rounded}


def ratio(of: Runner, to: Runner) -> float:
    """The median over common rounds."""
    return median(t / to.seconds[k] for k, t in of.seconds.items() if k in to.seconds)


def progress(what: str, done: int, total: int) -> None:
    """Rewrites a line of a terminal; elsewhere writes the first and the last."""
    text = f"{what} {done} of {total}"
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="\n" * (done == total), file=sys.stderr, flush=True)
    elif done in (1, total):
        print(text, file=sys.stderr, flush=True)


def bench(name: str, everyone: list[Competitor], triad: Triad, rounds: int) -> Row:
    """All that is measured on one parameter set."""
    work = Workload(PARAMETER_SETS[name]())
    step, bandwidth = run(everyone, work, triad, rounds, name)
    clip, _ = run(with_clipping(everyone), work, triad, rounds, f"{name} with clipping")
    return {
        "tensors": work.tensors,
        "parameters": work.numel,
        "rounds": rounds,
        "triad_gb_per_s": round(bandwidth, 1),
        "left_out": [c.name for c in everyone if c.name not in {r["name"] for r in step}],
        "step": step,
        "clip_and_step": clip,
    }


def targets(sets: dict[str, Row]) -> list[Row]:
    """What the benchmark is there to watch; `reached` is None where it was not measured."""
    found = []
    for name, to_adamw in (("resnet50v2", 0.9), ("transformer_big", 0.9), ("small_tensors", 0.6)):
        measured = sets.get(name, {"step": [], "tensors": 0, "parameters": 1})
        ours: Row = next((r for r in measured["step"] if r["name"] == OURS), {})
        others = [r["to_ours"] for r in measured["step"] if r["kind"] == "other" and r["installed"]]
        state = 4 + 8 * measured["tensors"] / measured["parameters"]  # v, and a step count
        for what, value, sign, limit in (
            ("our time / AdamW fused", ours.get("to_adamw"), "<=", to_adamw),
            ("fastest other NovoGrad / our time", min(others, default=None), ">=", 2.4),
            ("memory inside step, % of parameters", ours.get("extra_memory_percent"), "<", 1),
            ("state, bytes per parameter", ours.get("state_bytes_per_parameter"), "<=", state),
        ):
            reached = None if value is None else COMPARE[sign](value, limit)
            wanted = f"{sign} {limit:.5g}"
            row = {"set": name, "target": what, "wanted": wanted, "measured": value}
            found.append(row | {"reached": reached})
    return found


def blocks(data: Row) -> Iterator[str | list[list[str]]]:
    """The report's headings (with #), paragraphs and tables."""
    yield f"# Optimizer steps on the CPU, {data['date']}"
    packages = ", ".join(f"{name} {number}" for name, number in data["packages"].items())
    yield f"Threads: {data['threads']}; NovoGrad's kernels: {data['kernels']}; {packages}."
    yield NOTES
    for name, found in data["sets"].items():
        yield f"## {name}: {found['tensors']:,} tensors, {found['parameters']:,} parameters"
        yield f"{found['rounds']} rounds; triad {found['triad_gb_per_s']} GB/s."
        yield table(found["step"], COLUMNS)
        if found["left_out"]:
            yield f"Left out to save memory: {', '.join(found['left_out'])}."
        yield "Clip by global norm, then step (ratios to the same of the others):"
        yield table(found["clip_and_step"], [c for c in COLUMNS if c[0] in CLIP_COLUMNS])
    yield "## To reach"
    words = {True: "reached", False: "not reached", None: "not measured"}
    head = ["set", "target", "wanted", "this run", ""]
    cells = [
        [t["set"], t["target"], t["wanted"], f"{t['measured'] or 0:.4g}", words[t["reached"]]]
        for t in data["targets"]
    ]
    yield [head, *cells]
    noise = data["noise_percent"]
    verdict = "quiet" if noise["median"] < 5 else "noisy" if noise["median"] > 15 else "fair"
    yield (
        f"Noise (interquartile range / median): {noise['median']} % in the middle row, "
        f"{noise['worst']} % in the worst: a {verdict} run."
    )


def table(rows: list[Row], columns: Sequence[tuple[str, str, str]]) -> list[list[str]]:
    """The header and the rows as text."""
    cells = [["", *(heading for heading, _, _ in columns)]]
    for row in rows:
        values = [form.format(row[key]) if key in row else "" for _, key, form in columns]
        cells.append([row["name"], *(values if row["installed"] else ["not installed"])])
    return [line + [""] * (len(cells[0]) - len(line)) for line in cells]


def as_text(block: str | list[list[str]]) -> str:
    """Aligned columns, numbers to the right."""
    if isinstance(block, str):
        return block.lstrip("# ")
    widths = [max(map(len, column)) for column in zip(*block, strict=True)]
    return "\n".join(...)


def as_markdown(block: str | list[list[str]]) -> str:
    ...


def main(arguments: Sequence[str] | None = None) -> int:
    ...


if __name__ == "__main__":
    sys.exit(main())
