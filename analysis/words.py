"""Which words make the difference between two optimizers on text, and which layers they move."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from statistics import fmean

from analysis.paper import OPTIMIZERS
from analysis.questions import OURS, DataAnswer, DataTrials, Question, by_name, by_seed
from analysis.statistics import CONFIDENCE, PairedDifference, paired_interval
from analysis.trials import TrialResult
from analysis.verdicts import Rule
from engine.rows import UPDATE_RATIO

MOST = 0.5  # of a difference
BAND = re.compile(r"words_(\d+)_(\d+)")
Parts = Mapping[int, float]  # by seed: what words add to the mean loss of all words, in nats


def _words(trials: DataTrials) -> DataAnswer | None:
    seeds = {name: found for name in trials.optimizers if (found := by_seed(trials.of(name)))}
    best = trials.best_other(seeds)
    if OURS not in seeds or best is None:
        return None
    ours, others = trials.of(OURS), trials.of(best)
    split = trials.metric.partition("/")[0]
    bands = _bands(ours[0], split)

    def gain(some: Sequence[str]) -> PairedDifference | None:
        return paired_interval(_parts(others, split, some), _parts(ours, split, some))

    whole, rare = gain(bands), gain(bands[-1:])
    if not bands or whole is None or rare is None:
        return None
    numbers = {}
    for band in bands:
        losses = {name: _mean(trials.of(name), f"{split}/loss_{band}") for name in (best, OURS)}
        own = gain([band])
        assert own is not None
        numbers[f"{trials.data}, {_spelled(band)}"] = by_name(losses) | {
            "share of all words, %": 100 * _mean(ours, f"{split}/share_{band}"),
            "gain, nats": own.mean,
            "low": own.low,
            "high": own.high,
        }
    return DataAnswer(
        f"{trials.data}: {whole.mean:+.3f} nats per word against {OPTIMIZERS[best]}, of which "
        f"{rare.mean:+.3f} [{rare.low:+.3f}, {rare.high:+.3f}] on {_spelled(bands[-1])}",
        numbers | _layers(trials, (best, OURS)),
        counts=whole.excludes_zero,
        good=rare.excludes_zero and rare.mean / whole.mean >= MOST,
    )


def _bands(one: TrialResult, split: str) -> list[str]:
    """Names of the bands of words that a run's evaluations had, the commonest first."""
    start = f"{split}/loss_"
    metrics = one.record.final if one.record else {}
    found = [m.removeprefix(start) for m in metrics if m.startswith(start)]
    return sorted(filter(BAND.fullmatch, found), key=lambda band: int(band.split("_")[1]))


def _spelled(band: str) -> str:
    return "words {} to {}".format(*band.split("_")[1:])


def _mean(runs: Sequence[TrialResult], metric: str) -> float:
    return fmean(value for one in runs if (value := one.final(metric)) is not None)


def _parts(runs: Sequence[TrialResult], split: str, bands: Sequence[str]) -> Parts:
    def part(one: TrialResult, band: str) -> float:
        share, loss = (one.final(f"{split}/{what}_{band}") for what in ("share", "loss"))
        return (share or 0.0) * (loss or 0.0)

    return {one.trial.seed: sum(part(one, band) for band in bands) for one in runs}


def _layers(trials: DataTrials, pair: tuple[str, str]) -> dict[str, dict[str, float]]:
    """Mean update ratios of the layer groups that all runs have them of."""
    found: dict[str, dict[str, float]] = {}
    for name in pair:
        meters = [one.record.meters for one in trials.of(name) if one.record]
        for column in meters[0]:
            if column.startswith(UPDATE_RATIO) and all(column in own for own in meters):
                group = column.removeprefix(UPDATE_RATIO)
                mean = 1000 * fmean(own[column] for own in meters)
                label = f"{trials.data}, step of {group}, ‰ of its weights' norm"
                found.setdefault(label, {})[OPTIMIZERS[name]] = mean
    return found


WORDS = Question(
    "words",
    Rule(
        "Where the difference in loss between NovoGrad and the best other optimizer comes from: "
        "common words or rare ones, by their rank in the training text. Gain: what the words add "
        "to the mean loss of all words, less with NovoGrad, paired by seed, with Student's "
        "{confidence:g} % interval. Beside it how far a step moves each layer, on average over "
        "the run. Holds if at least {most:g} % of the difference is made by the rarest words, and "
        "their interval excludes 0, on all data sets; does not hold if on none. Data sets count "
        "on which the interval of the whole difference excludes 0.",
        {"confidence": 100 * CONFIDENCE, "most": 100 * MOST},
    ),
    _words,
    "The rarest words make most of the difference on {good} of {counted} data sets. {texts}.",
)
