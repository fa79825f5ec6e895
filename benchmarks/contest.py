"""Contestants of a benchmark that take turns, so that all meet the same moments of a machine."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from statistics import fmean, median, quantiles
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from analysis.performance import Measurement, Quartiles
from tasks.products import product

Action = Callable[[], object]
CPU = torch.device("cpu")
SIZE = 1536  # rows and columns of a large matrix product
TRIES = 7


@dataclass(frozen=True)
class BenchOptions:
    """How a bench is to run; `full` asks for four times as many rounds."""

    device: torch.device = CPU
    full: bool = False

    def rounds(self, usual: int) -> int:
        return 4 * usual if self.full else usual


@dataclass
class Findings:
    """What a bench has measured; `detail` is kept in its record and not shown on the page.

    `pages`, by file name, are written beside the record.
    """

    measurements: list[Measurement] = field(default_factory=list)
    detail: dict[str, Any] = field(default_factory=dict)
    pages: dict[str, str] = field(default_factory=dict)


def seconds(action: Action, device: torch.device | None = None) -> float:
    """Of an action, until the device has done it."""
    synchronise(device)
    before = time.perf_counter()
    action()
    synchronise(device)
    return time.perf_counter() - before


def timed(action: Action, device: torch.device | None = None) -> Callable[[], float]:
    """An action that returns its seconds."""
    return lambda: seconds(action, device)


def peak_bytes(action: Action, device: torch.device = CPU) -> int:
    """The most that torch's allocator holds during the action beyond what it held before."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        action()
        return torch.cuda.max_memory_allocated(device) - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # nothing about missing GPUs
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        action()
    assert profile.kineto_results is not None
    events = [e for e in profile.kineto_results.events() if e.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def synchronise(device: torch.device | None) -> None:
    """Waits for a GPU; nothing on a CPU."""
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)


def progress(what: str, done: int, total: int) -> None:
    """Rewrites a terminal's line; elsewhere writes the last one."""
    text = f"{what} {done} of {total}"
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        print(f"\r\033[K{text}", end=end, file=sys.stderr, flush=True)
    elif done == total:
        print(text, file=sys.stderr, flush=True)


def take_turns(
    contestants: Mapping[str, Callable[[], float]], rounds: int, warm: int
) -> list[dict[str, float]]:
    """Seconds of everyone in each round, after some that do not count; the order rotates."""
    names = [*contestants]
    kept: list[dict[str, float]] = []
    for number in range(warm + rounds):
        progress(
            f"{', '.join(name for name in names if name[0] != ' ')}: round",
            number + 1,
            warm + rounds,
        )
        turn = number % len(names)
        times = {name: contestants[name]() for name in names[turn:] + names[:turn]}
        if number >= warm:
            kept.append(times)
    return kept


def compete(
    ours: Mapping[str, Action],
    theirs: Action,
    amount: float,
    rounds: int,
    warm: int = 2,
    device: torch.device | None = None,
) -> list[Measurement]:
    """Our actions, by contest, against a competitor, who has two turns in every round.

    `amount` is how much of the contest's unit one action does.
    """
    actions = {**ours, " theirs": theirs, " again": theirs}
    timers = {name: timed(action, device) for name, action in actions.items()}
    turns = take_turns(timers, rounds, warm)
    first, again = ([turn[name] for turn in turns] for name in (" theirs", " again"))
    return [
        judge(name, [turn[name] for turn in turns], first, again, amount=amount) for name in ours
    ]


def judge(
    contest: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    again: Sequence[float],
    *,
    amount: float,
) -> Measurement:
    """From seconds by round; ours are compared with the mean of the competitor's two turns."""
    means = [fmean(pair) for pair in zip(theirs, again, strict=True)]
    return Measurement(
        contest,
        amount / median(ours),
        len(ours),
        amount / median(means),
        quartiles([mean / own for mean, own in zip(means, ours, strict=True)]),
        quartiles([second / first for first, second in zip(theirs, again, strict=True)]),
    )


def speed(
    contest: str,
    action: Action,
    amount: float,
    rounds: int,
    warm: int = 1,
    device: torch.device | None = None,
) -> Measurement:
    """Of an action without a competitor."""
    turns = take_turns({contest: timed(action, device)}, rounds, warm)
    return Measurement(contest, amount / median(turn[contest] for turn in turns), rounds)


def quartiles(values: Sequence[float]) -> Quartiles:
    """Of one value: this value."""
    return Quartiles(*quantiles(values, n=4)) if len(values) > 1 else Quartiles(*3 * [values[0]])


# --- What a machine can do at best ----------------------------------------------------------------


def count_flops(action: Action) -> int:
    """Of the matrix products and convolutions of an action."""
    onednns = getattr(torch.ops.mkldnn, "_linear_pointwise", None)  # torch does not count it
    formulas = {} if onednns is None else {onednns: _linear_flops}
    with FlopCounterMode(display=False, custom_mapping=formulas) as counter:
        action()
    return int(counter.get_total_flops())


def _linear_flops(x: Sequence[int], weight: Sequence[int], *_: Any, **__: Any) -> int:
    """From shapes: (…, k) times the transpose of (n, k)."""
    return 2 * prod(x) * weight[0]


def flops_per_second(device: torch.device) -> float:
    """Of a product of two large float32 matrices by the faster library, the quickest of some."""
    a, b = torch.randn(SIZE, SIZE, device=device), torch.randn(SIZE, SIZE, device=device)
    return 2 * SIZE**3 / min(seconds(lambda: product(a, b), device) for _ in range(TRIES))


def of_matrix_products(
    found: Measurement, action: Action, amount: float, device: torch.device
) -> Measurement:
    """With the share of the machine's best matrix product that the action's products reach."""
    share = count_flops(action) * found.ours / amount / flops_per_second(device)
    return replace(found, limit="a large matrix product's flop/s", of_limit=share)


def in_place_gb_per_s(a: Tensor, b: Tensor) -> float:
    """The memory's bandwidth for updates in place, with arrays that no cache holds."""
    taken = seconds(lambda: a.add_(b, alpha=1e-9), a.device)
    return 12e-9 * a.numel() / taken
