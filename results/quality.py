"""Results such that percentages of them mean something: how good, and how much less good.

A quality is top-1 accuracy, BLEU, word accuracy (100 less the word error rate) or perplexity. "5 %
lost" is 5 % of the better quality, or a perplexity 5 % above the better one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean, stdev

WITHIN = 0.05  # of the best quality: still good
SLACK = 0.01  # of the quality: less than this is no difference


def sign(metric: str) -> float:
    """1 where more is better, -1 where less is."""
    return -1.0 if metric.endswith("/ppl") else 1.0


def quality(metric: str, value: float | None) -> float | None:
    """A result such that percentages of it mean something; None if there is none."""
    if value is None or not math.isfinite(value):
        return None
    return 100.0 - value if metric.endswith("/wer") else value


def quality_name(metric: str) -> str:
    """How a quality is called on an axis."""
    return f"{metric.partition('/')[0]} word accuracy, %" if metric.endswith("/wer") else metric


def lost(metric: str, better: float | None, other: float | None) -> float:
    """Which part of the better quality the other one lacks; all of it if either is none."""
    if better is None or other is None:
        return 1.0
    if metric.endswith("/ppl"):
        return other / better - 1.0
    return 1.0 - other / better if better > 0 else 0.0  # there was nothing to lose


def best_of(metric: str, values: Iterable[float | None]) -> float | None:
    """The best quality there is."""
    known = [value for value in values if value is not None]
    return max(known, key=lambda value: sign(metric) * value, default=None)


def width(points: Mapping[float, float | None], metric: str) -> float | None:
    """Decades around the best in which less than WITHIN is lost; None if nothing came out.

    At the ends of what was measured, and beside a run that diverged, it stops.
    """
    known = {x: y for x, y in points.items() if y is not None}
    if not known:
        return None
    peak = max(known, key=lambda x: sign(metric) * known[x])
    if known[peak] <= 0:
        return 0.0  # nothing was learned with any
    ordered = sorted(points)

    def reach(way: Sequence[float]) -> float:
        last = peak
        for before, after in pairwise(way):
            there = points[after]
            if there is None:
                break
            here = lost(metric, known[peak], known[before])
            loss = lost(metric, known[peak], there)
            if loss > WITHIN:
                part = (WITHIN - here) / (loss - here)
                exponent = math.log10(before) + part * (math.log10(after) - math.log10(before))
                return float(10.0**exponent)
            last = after
        return last

    middle = ordered.index(peak)
    low, high = reach(ordered[middle::-1]), reach(ordered[middle:])
    return math.log10(high / low)


def no_worse(metric: str, ours: Sequence[float], others: Sequence[float]) -> bool:
    """Within SLACK, or two standard errors of the difference."""
    worse = sign(metric) * (fmean(others) - fmean(ours))
    return worse <= max(SLACK * abs(fmean(others)), 2 * _standard_error(ours, others))


def can_tell(ours: Sequence[float], others: Sequence[float]) -> bool:
    """Whether there is a difference of two standard errors, or one of WITHIN would be as much."""
    noise = 2 * _standard_error(ours, others)
    return noise <= max(WITHIN * abs(fmean(others)), abs(fmean(others) - fmean(ours)))


def _standard_error(ours: Sequence[float], others: Sequence[float]) -> float:
    """Of the difference of two means."""
    parts = [stdev(v) ** 2 / len(v) if len(v) > 1 else 0.0 for v in (ours, others)]
    return math.sqrt(sum(parts))
