"""The table of metrics: label, unit, direction, digits, and how relative differences are taken.

A metric is found by the last part of its name: `dev-clean/wer` is a `wer`. A task's headline states
its direction again, as tasks import nothing from here; a test compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


class UnknownMetric(ValueError):
    """A metric that is not in the table; the message names it."""


@dataclass(frozen=True)
class Metric:
    """What is known of a kind of number.

    Relative differences ("within 5 %") are taken of its quality: the value itself, or for error
    rates the accuracy 100 − value. Where lower is better (perplexity) an excess over
    the best counts as lost.
    """

    label: str
    unit: str
    higher_is_better: bool
    digits: int = 2
    accuracy: str = ""  # of an error rate in percent: what 100 − value is called

    @property
    def sign(self) -> float:
        """+1 where higher values are better, −1 where lower ones are."""
        return 1.0 if self.higher_is_better else -1.0

    def format(self, value: float) -> str:
        """With the digits of the paper's tables."""
        return f"{value:.{self.digits}f}"


METRICS = {
    "top1": Metric("top-1", "%", True),
    "top5": Metric("top-5", "%", True),
    "wer": Metric("WER", "%", False, accuracy="word accuracy"),
    "cer": Metric("CER", "%", False, accuracy="character accuracy"),
    "sacrebleu": Metric("SacreBLEU", "", True),
    "token_bleu": Metric("Token-BLEU", "", True),
    "bleu": Metric("BLEU", "", True),
    "ppl": Metric("perplexity", "", False),
    "loss": Metric("loss", "nats", False, digits=4),
}


def find_metric(name: str) -> Metric | None:
    """The entry of a metric, or None: a learning rate, say, has no better direction."""
    return METRICS.get(name.rpartition("/")[2])


def metric_of(name: str) -> Metric:
    """The entry of a metric."""
    found = find_metric(name)
    if found is None:
        raise UnknownMetric(f"{name}: unknown metric; analysis/metrics.py has {', '.join(METRICS)}")
    return found


def split_of(name: str) -> str:
    """The part of the data that a metric is measured on: `test_64/ppl` is on `test`."""
    return name.partition("/")[0].partition("_")[0]


def metric_label(name: str) -> str:
    """`dev-clean/wer` as "dev-clean WER", `test_64/ppl` as "test perplexity"."""
    return f"{split_of(name)} {metric_of(name).label}"


def axis_label(name: str) -> str:
    """The label with its unit: "val top-1, %"."""
    unit = metric_of(name).unit
    return metric_label(name) + (f", {unit}" if unit else "")


# --- Quality: a value of which percentages mean something -----------------------------------------


def quality(name: str, value: float | None) -> float | None:
    """Accuracy, BLEU or perplexity; None where there is no finite value."""
    if value is None or not math.isfinite(value):
        return None
    return 100.0 - value if metric_of(name).accuracy else value


def quality_label(name: str) -> str:
    """A quality on an axis: "dev-clean word accuracy, %"."""
    accuracy = metric_of(name).accuracy
    return f"{split_of(name)} {accuracy}, %" if accuracy else axis_label(name)


def quality_sign(name: str) -> float:
    """+1 where a higher quality is better, −1 for perplexity and loss."""
    metric = metric_of(name)
    return 1.0 if metric.accuracy else metric.sign


def lost_quality(name: str, better: float | None, other: float | None) -> float:
    """The fraction of the better quality that the other one lacks; 1 if either is missing."""
    if better is None or other is None:
        return 1.0
    if quality_sign(name) < 0:
        return other / better - 1.0
    return 1.0 - other / better if better > 0 else 0.0  # there was nothing to lose


def best_quality(name: str, values: Iterable[float | None]) -> float | None:
    """The best of some qualities; None if there is none."""
    known = [value for value in values if value is not None]
    return max(known, key=lambda value: quality_sign(name) * value, default=None)
