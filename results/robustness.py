"""What the study's runs say of how much NovoGrad takes: rates, initial weights, batches, memory."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from results.outcomes import (
    OURS,
    Reader,
    all_known,
    all_or_none,
    by_name,
    data_sets,
    decide,
    in_percent,
    metric_on,
    of_optimizer,
    of_study,
    optimizers_on,
    percents,
    points_of,
    seeds_of,
)
from results.quality import (
    SLACK,
    WITHIN,
    best_of,
    lost,
    no_worse,
    quality_name,
    sign,
    width,
)
from results.study_json import Study, chart_of, line_of, study_of
from results.trials import HEADLINE, RATES, Outcome, tune


def rates(outcomes: Sequence[Outcome], _: Reader) -> Study | None:
    """How wide the range of good learning rates is.

    Width: the decades around the best rate in which the quality stays within 5 % of the best;
    between measured rates by straight lines over the logarithm. Only data sets with seven rates
    count on which seeds of NovoGrad's best differ by less than 5 % (two standard deviations). Holds
    if NovoGrad's is the widest on all of them; does not hold if on none.
    """
    own = of_study(outcomes, RATES)
    numbers: dict[str, dict[str, float]] = {}
    charts, wins, texts = [], [], []
    for data in data_sets(own):
        metric = metric_on(own, data)
        widths: dict[str, float] = {}
        lines = []
        for name in optimizers_on(own, data):
            points = points_of(own, data, name)
            if len(points) < 2:
                continue
            found = width(points, metric)
            if found is not None:
                widths[name] = found
                best = tune(of_optimizer(own, data, name))[data, name].lr
                lines.append(line_of(name, {x / best: y for x, y in points.items()}))
        if not lines:
            continue
        charts.append(
            chart_of(data, "learning rate / the optimizer's best", metric, lines, log_x=True)
        )
        numbers[f"{data}, decades"] = by_name(widths)
        if OURS in widths and len(widths) > 1 and len(points_of(own, data, OURS)) >= 7:
            spelled = ", ".join(f"{n} {v:.2f}" for n, v in by_name(widths).items())
            noisy = 2 * _noise(outcomes, data) > WITHIN
            texts.append(f"{data}: {spelled} decades{' (seeds differ too much)' * noisy}")
            if not noisy:
                wins.append(widths[OURS] >= max(widths.values()))
    if not texts:
        return None
    summary = f"Widest on {sum(wins)} of {len(wins)} data sets. {'; '.join(texts)}."
    return study_of(RATES, all_or_none(wins), summary, numbers, charts, own)


def initialisation(outcomes: Sequence[Outcome], _: Reader) -> Study | None:
    """What the wrong size of the initial weights costs.

    Lost: by the worse of the gains 0.25 and 4 against gain 1. Holds if NovoGrad loses least, or
    less than 1 %, on all data sets; does not hold if on none.
    """
    own = of_study(outcomes, "initialisation")
    numbers: dict[str, dict[str, float]] = {}
    charts, good, texts = [], [], []
    for data in data_sets(own):
        metric = metric_on(own, data)
        losses, lines = {}, []
        for name in optimizers_on(own, data):
            points = points_of(own, data, name)
            if 1.0 not in points or len(points) < 3:
                continue
            losses[name] = max(lost(metric, points[1.0], points[x]) for x in points)
            lines.append(line_of(name, points))
        if OURS not in losses or len(losses) < 2:
            continue
        charts.append(chart_of(data, "gain of the initial weights", metric, lines, log_x=True))
        numbers[f"{data}, % lost"] = in_percent(losses)
        good.append(losses[OURS] <= max(SLACK, min(losses.values())))
        texts.append(f"{data}: {percents(losses)}")
    if not good:
        return None
    summary = f"Loses least on {sum(good)} of {len(good)} data sets. Lost: {'; '.join(texts)}."
    return study_of("initialisation", all_or_none(good), summary, numbers, charts, own)


def warmup(outcomes: Sequence[Outcome], _: Reader) -> Study | None:
    """What a warm-up brings, at the best rate and at 3.16 times it.

    Gained: by the best run with a warm-up of 5 or 25 % of the run, at either rate, against the best
    without. Holds if NovoGrad gains less than 1 %, or least, on all data sets; does not hold if on
    none.
    """
    own = of_study(outcomes, "warmup")
    numbers: dict[str, dict[str, float]] = {}
    good, texts, charts = [], [], []
    for data in data_sets(own):
        metric = metric_on(own, data)
        lines: dict[str, list[dict[str, Any]]] = {}
        gains = {}
        for name in optimizers_on(own, data):
            cold: list[float | None] = []
            warm: list[float | None] = []
            for series in dict.fromkeys(one.series for one in of_optimizer(own, data, name)):
                points = points_of(own, data, name, series)
                lines.setdefault(series, []).append(line_of(name, points))
                for percent, value in points.items():
                    (warm if percent else cold).append(value)
            with_warmup = best_of(metric, warm)
            if cold and warm:
                without = best_of(metric, cold)
                gains[name] = 0.0 if with_warmup is None else lost(metric, with_warmup, without)
        if OURS not in gains or len(gains) < 2:
            continue
        for series, drawn in lines.items():
            where = f"{data}, {series}" if series else data
            charts.append(chart_of(where, "warm-up, % of the run", metric, drawn))
        numbers[f"{data}, % gained"] = in_percent(gains)
        good.append(gains[OURS] <= max(SLACK, min(gains.values())))
        texts.append(f"{data}: {percents(gains)}")
    if not good:
        return None
    summary = (
        f"Needs it least on {sum(good)} of {len(good)} data sets. Gained by warm-up: "
        f"{'; '.join(texts)}."
    )
    return study_of("warmup", all_or_none(good), summary, numbers, charts, own)


def large_batch(outcomes: Sequence[Outcome], _: Reader) -> Study | None:
    """What batches 8 and 32 times as large cost, with as many epochs.

    NovoGrad's rates and decays grow as in the paper's tables, SGD's rate with the batch, Adam's
    with its square root. Lost: against the smallest batch; at 32 times the better of with and
    without warm-up. Holds if NovoGrad loses at most 5 % at 32 times on all data sets; does not hold
    if on all it loses more than 5 % at 8 times already, and 1 % more than another optimizer.
    """
    own = of_study(outcomes, "large_batch")
    numbers: dict[str, dict[str, float]] = {}
    charts, small, behind, texts = [], [], [], []
    for data in data_sets(own):
        metric = metric_on(own, data)
        losses: dict[float, dict[str, float]] = {}  # by the multiple, then the optimizer
        lines = []
        for name in optimizers_on(own, data):
            points = points_of(own, data, name)
            for x, y in points_of(own, data, name, "with warm-up").items():
                points[x] = best_of(metric, (y, points.get(x)))
            if len(points) < 3:
                continue
            first = points[min(points)]
            for x in sorted(points)[1:]:
                losses.setdefault(x, {})[name] = lost(metric, first, points[x])
            lines.append(line_of(name, points))
        if len(lines) < 2 or any(OURS not in of for of in losses.values()):
            continue
        charts.append(chart_of(data, "batch / the smallest", metric, lines, log_x=True))
        for x, of in losses.items():
            numbers[f"{data}, × {x:g}, % lost"] = in_percent(of)
            texts.append(f"{data}, × {x:g}: {percents(of)}")
        small.append(losses[max(losses)][OURS] <= WITHIN)
        nearest = losses[min(losses)]
        behind.append(nearest[OURS] > max(WITHIN, min(nearest.values()) + SLACK))
    if not small:
        return None
    verdict = decide(small, fails=all(behind))
    summary = (
        f"Within 5 % at the largest batch on {sum(small)} of {len(small)} data sets. Lost: "
        f"{'; '.join(texts)}."
    )
    return study_of("large_batch", verdict, summary, numbers, charts, own)


def beta2(outcomes: Sequence[Outcome], _: Reader) -> Study | None:
    """Whether a short memory of the second moment is enough.

    Holds if the better of β2 = 0 and 0.25 is not worse than β2 = 0.98 by more than 1 % or two
    standard errors, on all data sets; does not hold if it is worse on all. One with a run that
    diverged is worse than one without.
    """
    own = of_study(outcomes, "beta2")
    numbers: dict[str, dict[str, float]] = {}
    good, texts = [], []
    for data in data_sets(own):
        metric = metric_on(own, data)
        runs = of_optimizer(own, data, OURS)
        found = {
            x: known
            for x in sorted({one.at for one in runs})
            if (known := all_known(one for one in runs if one.at == x))
        }
        if not {0.0, 0.25, 0.98} <= {one.at for one in runs} or not found:
            continue
        numbers[f"{data}, {quality_name(metric)}"] = {
            f"β2 = {x:g}": fmean(values) for x, values in found.items()
        }
        shorts = [x for x in (0.0, 0.25) if x in found]
        short = max(shorts, key=lambda x: sign(metric) * fmean(found[x]), default=None)
        is_good = short is not None and (
            0.98 not in found or no_worse(metric, found[short], found[0.98])
        )
        good.append(is_good)
        spelled = ", ".join(f"{fmean(values):.2f} with {x:g}" for x, values in found.items())
        texts.append(f"{data}: {spelled}")
    if not good:
        return None
    summary = (
        f"A short memory is as good on {sum(good)} of {len(good)} data sets. {'; '.join(texts)}."
    )
    return study_of("beta2", all_or_none(good), summary, numbers, [], own)


def _noise(outcomes: Sequence[Outcome], data: str) -> float:
    """The standard deviation over NovoGrad's seeds, as a part of the quality."""
    values = seeds_of(of_study(outcomes, HEADLINE), data).get(OURS, [])
    return stdev(values) / fmean(values) if len(values) > 1 else 0.0
