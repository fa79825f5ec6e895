"""Sensitivity to the learning rate or another axis: the range around the best value that is good.

Good is a quality within 5 % of the best one. Between measured values the loss of quality is
interpolated over the logarithm of the axis, so that the width does not depend on how a grid falls;
where the range reaches the end of what was measured, the width is a lower bound and marked so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from analysis.metrics import lost_quality, quality_sign
from analysis.statistics import WITHIN


@dataclass(frozen=True)
class Sensitivity:
    """A range of an axis around its best value."""

    low: float
    high: float
    open_below: bool  # may continue below: nothing was measured there
    open_above: bool

    @property
    def decades(self) -> float:
        return math.log10(self.high / self.low)

    @property
    def bound(self) -> str:
        """`≥ ` where the width is a lower bound."""
        return "≥ " if self.open_below or self.open_above else ""

    def __str__(self) -> str:
        return f"{self.bound}{self.decades:.2f} decades ({self.low:.3g} … {self.high:.3g})"


def sensitivity(metric: str, qualities: Mapping[float, float | None]) -> Sensitivity | None:
    """From qualities by positive axis value: None where a run diverged, NaN where it was not run.

    The range ends at the last good value beside a run that diverged. None with fewer than two
    values, or where nothing finished.
    """
    places = sorted(qualities)
    known = {x: y for x, y in qualities.items() if y is not None and not math.isnan(y)}
    if len(places) < 2 or not known:
        return None
    peak = max(known, key=lambda x: quality_sign(metric) * known[x])
    if known[peak] <= 0:
        return Sensitivity(peak, peak, False, False)  # nothing was learned at any value
    middle = places.index(peak)

    def reach(way: Sequence[float]) -> tuple[float, bool]:
        """How far the quality stays good, and whether only the measurements end there."""
        for before, after in pairwise(way):
            there = qualities[after]
            if there is None:
                return before, False
            if math.isnan(there):
                return before, True
            here = lost_quality(metric, known[peak], known[before])
            loss = lost_quality(metric, known[peak], there)
            if loss > WITHIN:
                part = (WITHIN - here) / (loss - here)
                exponent = math.log10(before) + part * (math.log10(after) - math.log10(before))
                return float(10.0**exponent), False
        return way[-1], True

    low, open_below = reach(places[middle::-1])
    high, open_above = reach(places[middle:])
    return Sensitivity(low, high, open_below, open_above)
