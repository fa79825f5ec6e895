"""What findings are made of: outcomes of a study, along an axis and over seeds; verdicts; words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from results.claims import FAILS, HOLDS, UNDECIDED
from results.names import OPTIMIZERS
from results.quality import quality, sign
from results.trials import Outcome

OURS = "novograd"
FEWEST = 2  # data sets: one alone decides nothing
Reader = Callable[[str], Mapping[str, Any]]  # the record of a run


def of_study(outcomes: Iterable[Outcome], study: str) -> list[Outcome]:
    """Those of one study."""
    return [outcome for outcome in outcomes if outcome.study == study]


def data_sets(outcomes: Iterable[Outcome]) -> list[str]:
    """In the order in which they appear."""
    return list(dict.fromkeys(outcome.data for outcome in outcomes))


def optimizers_on(outcomes: Iterable[Outcome], data: str) -> list[str]:
    """In the order of all tables."""
    there = {outcome.optimizer for outcome in outcomes if outcome.data == data}
    return [name for name in OPTIMIZERS if name in there]


def of_optimizer(outcomes: Iterable[Outcome], data: str, optimizer: str) -> list[Outcome]:
    """Those of an optimizer on a data set."""
    return [one for one in outcomes if (one.data, one.optimizer) == (data, optimizer)]


def metric_on(outcomes: Iterable[Outcome], data: str) -> str:
    """What a data set is judged by."""
    return next(outcome.metric for outcome in outcomes if outcome.data == data)


def points_of(
    outcomes: Iterable[Outcome], data: str, optimizer: str, series: str = ""
) -> dict[float, float | None]:
    """Qualities along the axis, of the first seed."""
    own = [one for one in of_optimizer(outcomes, data, optimizer) if one.series == series]
    first = min((one.seed for one in own), default=0)
    return {one.at: quality(one.metric, one.value) for one in own if one.seed == first}


def seeds_of(outcomes: Iterable[Outcome], data: str) -> dict[str, list[float]]:
    """Qualities over seeds, of optimizers of which every run finished."""
    names = optimizers_on(outcomes, data)
    found = {name: all_known(of_optimizer(outcomes, data, name)) for name in names}
    return {name: values for name, values in found.items() if values}


def all_known(runs: Iterable[Outcome]) -> list[float]:
    """Qualities of runs of which each ended with a number; else none."""
    values = [quality(one.metric, one.value) for one in runs]
    return [value for value in values if value is not None] if None not in values else []


def best_other(metric: str, seeds: Mapping[str, Sequence[float]]) -> str | None:
    """Whose mean over the seeds is the best, NovoGrad left out."""
    others = [name for name in seeds if name != OURS]
    return max(others, key=lambda name: sign(metric) * fmean(seeds[name]), default=None)


def decide(good: Sequence[bool], *, fails: bool) -> str:
    """By whether the claim is good on each data set."""
    if len(good) < FEWEST:
        return UNDECIDED
    return HOLDS if all(good) else FAILS if fails else UNDECIDED


def all_or_none(good: Sequence[bool]) -> str:
    """Holds if good on all data sets, does not hold if on none."""
    return decide(good, fails=not any(good))


def by_name(values: Mapping[str, float]) -> dict[str, float]:
    """Numbers of optimizers as they are called in tables."""
    return {OPTIMIZERS[name]: value for name, value in values.items()}


def in_percent(parts: Mapping[str, float]) -> dict[str, float]:
    """The same of parts of a whole."""
    return by_name({name: 100 * part for name, part in parts.items()})


def percents(parts: Mapping[str, float]) -> str:
    """As words of a summary."""
    return ", ".join(f"{name} {value:.1f} %" for name, value in in_percent(parts).items())
