"""Comparisons over seeds: paired differences with intervals and effect sizes, and equivalence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from analysis.metrics import quality_sign

SLACK = 0.01  # of the quality: a smaller difference does not count
WITHIN = 0.05  # of the best quality: still good
CONFIDENCE = 0.95


@dataclass(frozen=True)
class PairedDifference:
    """Ours less the other's over the same seeds, with an interval of the mean difference."""

    mean: float
    low: float
    high: float
    effect_size: float | None  # Cohen's d_z: mean / standard deviation; None where that is 0
    pairs: int

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval lies on one side of 0."""
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        """Of a difference in percent."""
        effect = "" if self.effect_size is None else f", d = {self.effect_size:.1f}"
        return f"{self.mean:+.1f} % [{self.low:+.1f}, {self.high:+.1f}]{effect}, n = {self.pairs}"


def paired_interval(
    ours: Mapping[int, float], others: Mapping[int, float], confidence: float = CONFIDENCE
) -> PairedDifference | None:
    """Student's t interval of the mean difference over common seeds; None for less than two."""
    # What scipy.stats.t.ppf calls; importing scipy.stats takes a second.
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    seeds = sorted(set(ours) & set(others))
    if len(seeds) < 2:
        return None
    differences = [ours[seed] - others[seed] for seed in seeds]
    mean, spread, pairs = fmean(differences), stdev(differences), len(differences)
    half = float(stdtrit(pairs - 1, (1 + confidence) / 2)) * (spread / math.sqrt(pairs))
    effect_size = mean / spread if spread else None
    return PairedDifference(mean, mean - half, mean + half, effect_size, pairs)


def no_worse(metric: str, ours: Sequence[float], others: Sequence[float]) -> bool:
    """Whether our mean quality is within SLACK of theirs, or within two standard errors."""
    worse = quality_sign(metric) * (fmean(others) - fmean(ours))
    return worse <= max(SLACK * abs(fmean(others)), 2 * _standard_error(ours, others))


def _standard_error(ours: Sequence[float], others: Sequence[float]) -> float:
    """Of the difference of two means."""
    parts = [stdev(v) ** 2 / len(v) if len(v) > 1 else 0.0 for v in (ours, others)]
    return math.sqrt(sum(parts))
