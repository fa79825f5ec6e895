"""`make bench-optim`: times the optimizers' step(), side by side, on a GPU where there is one.

All work on the same parameters. A round gives each one step, in an order that changes, with the
same gradients written afresh before it, so that neither a drift of the machine's speed nor a warm
cache favours one; ratios are taken within a round. Those slower than twice torch's fused AdamW are
in every third round only.

By default those that matter take part: torch's fused optimizers and AdamW on lists of tensors, the
fastest other NovoGrad, which the first round finds, and other methods in the first round alone;
fewer on the large model. `--full` has all, in four times as many rounds, and takes 16 GB of memory.
"""

from __future__ import annotations

import gc
import inspect
import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from importlib import import_module, metadata
from statistics import median
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from analysis.performance import Measurement
from benchmarks.contest import (
    BenchOptions,
    Findings,
    in_place_gb_per_s,
    judge,
    peak_bytes,
    progress,
    quartiles,
    seconds,
)
from benchmarks.optim_page import Row, blocks, rendered
from benchmarks.optimizer_workloads import PARAMETER_SETS, Workload
from optim import ClipGlobalNorm, NovoGrad, build_optimizer, native, transform_gradients
from optim.baselines import Optimizer, torch_optimizer

LARGE = 100_000_000  # parameters from which on spare competitors are left out
MUON_ON_CPU = 10_000_000  # its bfloat16 matrix products take more than a minute per step there
OURS, REFERENCE = "NovoGrad (ours)", "torch AdamW fused"
AGAIN = f"{REFERENCE}, again"  # for the noise
FEW = (OURS, REFERENCE, AGAIN, "torch SGD fused", "timm NvNovoGrad")  # in half precision
TRITON = f"{OURS} fused (Triton)"
USUAL = (*FEW, TRITON, "torch AdamW foreach", "torch Adam fused")  # and others' NovoGrads, methods
OPTIONS: dict[str, Any] = {"lr": 1e-4, "weight_decay": 1e-3}
BETAS = (0.95, 0.98)
OTHERS: tuple[tuple[str, str, str], ...] = (  # package, module, class
    ("timm", "timm.optim", "NvNovoGrad"),
    ("pytorch-optimizer", "pytorch_optimizer", "NovoGrad"),
    ("torch-optimizer", "torch_optimizer", "NovoGrad"),
    ("monai", "monai.optimizers", "Novograd"),
)
NEIGHBOURS = {"lamb": 28, "lars": 24, "lion": 20, "adafactor": 16, "muon": 20}  # with traffic


@dataclass(frozen=True)
class Competitor:
    """An optimizer to time; it is not installed if there is no `make`."""

    name: str
    kind: str  # ours, torch, neighbour (other methods), other (NovoGrads of others)
    traffic: int  # bytes moved per fp32 parameter
    make: Callable[[list[torch.nn.Parameter]], Optimizer] | None
    context: Callable[[], AbstractContextManager[Any]] = nullcontext
    before: Callable[[Optimizer], object] = lambda optimizer: None  # timed with the step
    spare: bool = False


def competitors(*, on_gpu: bool = False) -> list[Competitor]:
    """All of them, in the order of the table. On a GPU ours is foreach by default, or Triton."""
    make: Callable[..., Optimizer] = partial(NovoGrad, betas=BETAS, **OPTIONS)
    single = partial(make, foreach=False, fused=False)
    no_kernels = partial(mock.patch.object, native, "supports", lambda dtype: False)
    found = [
        Competitor(OURS, "ours", 24, make),
        Competitor(TRITON, "ours", 24, partial(make, fused=True))
        if on_gpu
        else Competitor(f"{OURS} without compiler", "ours", 24, make, no_kernels),
        Competitor(f"{OURS} foreach", "ours", 24, partial(make, foreach=True)),
        Competitor(f"{OURS} single", "ours", 24, single, spare=True),
    ]
    for title, traffic in (("AdamW", 28), ("Adam", 28), ("SGD", 20)):
        for form in ("fused", "foreach", "default"):
            options = OPTIONS | ({"momentum": 0.9} if title == "SGD" else {})
            options |= {} if form == "default" else {form: True}
            make = partial(torch_optimizer, title.lower(), **options)
            spare = title == "Adam" or form == "foreach" or (title, form) == ("SGD", "default")
            found.append(Competitor(f"torch {title} {form}", "torch", traffic, make, spare=spare))
            if found[-1].name == REFERENCE:
                found.append(replace(found[-1], name=AGAIN))
    for name, traffic in NEIGHBOURS.items():
        make = partial(build_optimizer, name, **OPTIONS)
        found.append(Competitor(name, "neighbour", traffic, make, spare=True))
    for package, module, class_name in OTHERS:
        label = f"{package} {class_name}"
        try:
            make = partial(getattr(import_module(module), class_name), betas=BETAS, **OPTIONS)
        except (ImportError, AttributeError):
            found.append(Competitor(label, "other", 24, None))
            continue
        found.append(Competitor(label, "other", 24, make))
        if "foreach" in inspect.signature(make).parameters:  # on unless it is switched off
            found.append(Competitor(f"{label} loop", "other", 24, partial(make, foreach=False)))
    return found


def with_clipping(everyone: list[Competitor]) -> list[Competitor]:
    """The few that are also timed together with clipping by the global norm."""

    def clip(optimizer: Optimizer) -> object:
        if isinstance(optimizer, NovoGrad):
            return transform_gradients(optimizer, [ClipGlobalNorm(1.0)])
        params = [p for group in optimizer.param_groups for p in group["params"]]
        return torch.nn.utils.clip_grad_norm_(params, 1.0)

    names = (OURS, REFERENCE, AGAIN, "timm NvNovoGrad")
    return [replace(c, before=clip) for c in everyone if c.name in names]


@dataclass
class Runner:
    """A competitor at work: its optimizer, and seconds by round."""

    competitor: Competitor
    optimizer: Optimizer
    work: Workload
    seconds: dict[int, float] = field(default_factory=dict)
    extra_bytes: int = 0

    def step(self) -> float:
        before, optimizer = self.competitor.before, self.optimizer
        self.work.refill()

        def action() -> None:
            before(optimizer)
            optimizer.step()

        with self.competitor.context():
            return seconds(action, self.work.params[0].device)


def takes_part(competitor: Competitor, work: Workload, full: bool) -> bool:
    """Not all do where memory or time is short, or half precision slow in torch's operations."""
    if competitor.name == "muon" and work.params[0].is_cpu and work.numel > MUON_ON_CPU:
        return False
    if work.params[0].dtype != torch.float32 or (work.numel > LARGE and not full):
        return competitor.name in FEW
    if full:
        return not (competitor.spare and work.numel > LARGE)
    return competitor.name in USUAL or competitor.kind in ("neighbour", "other")


def run(
    everyone: list[Competitor],
    work: Workload,
    bandwidth_now: Callable[[], float],
    rounds: int,
    label: str,
    full: bool,
) -> tuple[list[Row], float, dict[str, Runner]]:
    """Times all in turn; returns the table's rows, the limit in GB/s and everyone's seconds."""
    present = [c for c in everyone if takes_part(c, work, full)]
    runners = {c.name: Runner(c, c.make(work.params), work) for c in present if c.make}
    for index, runner in enumerate(runners.values()):
        progress(f"{label}: warming up", index + 1, len(runners))
        runner.step()  # makes the state
        runner.extra_bytes = peak_bytes(runner.step, work.params[0].device)
    bandwidths, fast, slow = [], list(runners.values()), list(runners.values())
    gc.disable()
    for number in range(rounds):
        progress(f"{label}: round", number + 1, rounds)
        bandwidths.append(bandwidth_now())
        order = slow if number % 3 == 0 else fast
        for runner in random.Random(number).sample(order, len(order)):
            runner.seconds[number] = runner.step()
        if number == 0:
            limit = 2 * runners[REFERENCE].seconds[0]
            slow = slow if full else regular(slow)
            fast = [r for r in slow if r.seconds[0] < limit or r.competitor.name == OURS]
    gc.enable()
    bandwidth = median(bandwidths)
    return [row_of(c, runners, work, bandwidth) for c in everyone], bandwidth, runners


def regular(runners: list[Runner]) -> list[Runner]:
    """Without other methods, and of other NovoGrads the one that was fastest in the first round."""
    others = [r for r in runners if r.competitor.kind == "other"]
    best = min(others, key=lambda r: r.seconds[0], default=None)
    return [r for r in runners if r.competitor.kind in ("ours", "torch") or r is best]


def row_of(competitor: Competitor, runners: dict[str, Runner], work: Workload, limit: float) -> Row:
    """What the table says about one competitor."""
    row: Row = {"name": competitor.name, "kind": competitor.kind}
    if competitor.name not in runners:
        return row | {"status": "left out" if competitor.make else "not installed"}
    runner, seconds = runners[competitor.name], runners[competitor.name].seconds
    middle = median(seconds.values())
    speed = competitor.traffic / 4 * 1e-9 * work.bytes / middle
    state = [v for of in runner.optimizer.state.values() for v in of.values()]
    state_bytes = sum(v.numel() * v.element_size() for v in state if isinstance(v, Tensor))
    numbers = {
        "median_ms": 1e3 * middle,
        "to_adamw": median(t / runners[REFERENCE].seconds[k] for k, t in seconds.items()),
        "to_ours": median(t / runners[OURS].seconds[k] for k, t in seconds.items()),
        "extra_memory_percent": 100 * runner.extra_bytes / work.bytes,
        "state_bytes_per_parameter": state_bytes / work.numel,
        "gb_per_s": speed,
        "of_limit_percent": 100 * speed / limit,
    }
    if len(seconds) > 1:
        spread = quartiles([*seconds.values()])
        numbers["noise_percent"] = 100 * (spread.high - spread.low) / middle
    rounded = {name: float(f"{value:.5g}") for name, value in numbers.items()}
    return row | {"status": "timed", "rounds": len(seconds), **rounded}


def bench(
    name: str,
    everyone: list[Competitor],
    bandwidth_now: Callable[[], float],
    options: BenchOptions,
) -> tuple[Row, list[Measurement]]:
    """All that is measured on one parameter set; clipping on all of them only if `full`."""
    work = Workload(PARAMETER_SETS[name], options.device)
    rounds, full = options.rounds(PARAMETER_SETS[name].rounds), options.full
    step, bandwidth, runners = run(everyone, work, bandwidth_now, rounds, name, full)
    found = judge_steps(name, runners, step, bandwidth)
    row: Row = {"tensors": len(work.params), "parameters": work.numel, "rounds": rounds}
    row |= {"limit_gb_per_s": round(bandwidth, 1), "step": step}
    del runners
    gc.collect()  # the optimizers' state
    clipped = name == "resnet50v2"
    if clipped or full:
        clipping, label = with_clipping(everyone), f"{name} with clipping"
        row["clip_and_step"], _, runners = run(clipping, work, bandwidth_now, rounds, label, full)
    if clipped:
        found.append(judge_pair(f"{name}_clip", runners, REFERENCE, AGAIN))
    return row, found


def judge_steps(
    name: str, runners: dict[str, Runner], rows: list[Row], bandwidth: float
) -> list[Measurement]:
    """Against AdamW, with the share of the bandwidth in place; and against other NovoGrads."""
    ours = next(row for row in rows if row["name"] == OURS)
    share = {"limit": "the bandwidth of updates in place", "of_limit": ours["gb_per_s"] / bandwidth}
    found = [replace(judge_pair(name, runners, REFERENCE, AGAIN), **share)]
    others = [row for row in rows if row["kind"] == "other" and row["status"] == "timed"]
    if name == "resnet50v2" and others:
        fastest = min(others, key=lambda row: float(row["to_ours"]))["name"]
        found.append(replace(judge_pair("other_novograd", runners, fastest, fastest), noise=None))
    return found


def judge_pair(
    contest: str, runners: dict[str, Runner], competitor: str, again: str
) -> Measurement:
    """In the rounds that all three were in."""
    names = (OURS, competitor, again)
    rounds = set.intersection(*(set(runners[name].seconds) for name in names))
    ours, theirs, second = ([runners[n].seconds[k] for k in sorted(rounds)] for n in names)
    return judge(contest, ours, theirs, second, amount=1)


def measure(options: BenchOptions) -> Findings:
    """All parameter sets; the whole tables are a page of its own."""
    arrays = (torch.ones(1 << 26, device=options.device) for _ in range(2))
    bandwidth_now = partial(in_place_gb_per_s, *arrays)
    on_gpu = options.device.type == "cuda"
    kernels = "C++" if native.supports(torch.float32) else "torch's (no C++ compiler)"
    kernels = "torch's foreach, or Triton" if on_gpu else kernels
    data: Row = {"date": date.today().isoformat(), "threads": torch.get_num_threads()}
    data |= {"kernels": kernels, "packages": {}, "sets": {}}
    for package in ("torch", *(package for package, _, _ in OTHERS)):
        with suppress(metadata.PackageNotFoundError):
            data["packages"][package] = metadata.version(package)
    everyone, measurements = competitors(on_gpu=on_gpu), []
    for name in PARAMETER_SETS:
        data["sets"][name], found = bench(name, everyone, bandwidth_now, options)
        measurements += found
    rows = [r for s in data["sets"].values() for r in (*s["step"], *s.get("clip_and_step", ()))]
    noise = [row["noise_percent"] for row in rows if "noise_percent" in row]
    data["noise_percent"] = {"median": round(median(noise)), "worst": round(max(noise))}
    page = ["Written by `make bench-optim`.", *(rendered(b, markdown=True) for b in blocks(data))]
    print(*(rendered(block, markdown=False) for block in blocks(data)), sep="\n\n")
    return Findings(measurements, data, {"optim.md": "\n\n".join(page) + "\n"})
