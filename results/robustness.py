"""What the study's runs say of how much NovoGrad takes: rates, initial weights, batches, memory."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev

from results.names import OPTIMIZERS
from results.outcomes import (
    OURS,
    Reader,
    all_or_none,
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
from results.quality import SLACK, WITHIN, lost, no_worse, quality, quality_name, sign, width
from results.study_json import Study, chart_of, line_of, study_of
from results.trials import HEADLINE, RATES, Outcome, tune


def rates(outcomes: Sequence[Outcome], _: Reader) -> Study | None:
    """How wide the range of good learning rates is.

    Width: the decades around the best rate in which the quality stays within 5 % of the best;
    between measured rates by straight lines over the logarithm. Holds if NovoGrad's is the widest
    on all data sets with seven rates; does not hold if on none.
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
        numbers[f"{data}, decades"] = {OPTIMIZERS[name]: value for name, value in widths.items()}
        if OURS in widths and len(widths) > 1 and len(points_of(own, data, OURS)) >= 7:
            wins.append(widths[OURS] >= max(widths.values()))
            spelled = ", ".join(f"{OPTIMIZERS[n]} {v:.2f}" for n, v in widths.items())
            texts.append(f"{data}: {spelled} decades")
    if not wins:
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
    """What a warm-up brings, at the best rate and above it.

    Gained: by a warm-up of 5 or 25 % of the run, whichever is better, against none. Holds if, at
    the best rate, NovoGrad gains less than 1 % or than two standard deviations over its seeds on
    all data sets; does not hold if on none.
    """
    own = of_study(outcomes, "warmup")
    numbers: dict[str, dict[str, float]] = {}
    good, texts, charts = [], [], []
    for data in data_sets(own):
        metric = metric_on(own, data)
        for series in dict.fromkeys(o.series for o in own if o.data == data):
            gains, lines = {}, []
            for name in optimizers_on(own, data):
                points = points_of(own, data, name, series)
                if 0.0 in points and len(points) > 1:
                    parts = [lost(metric, points[x], points[0.0]) for x in points if x]
                    gains[name] = max(parts)
                    lines.append(line_of(name, points))
            if OURS not in gains:
                continue
            where = f"{data}{f', {series}' if series else ''}"
            charts.append(chart_of(where, "warm-up, % of the run", metric, lines))
            numbers[f"{where}, % gained"] = in_percent(gains)
            texts.append(f"{where}: {percents(gains)}")
            if not series:
                noise = _noise(outcomes, data)
                good.append(gains[OURS] <= max(SLACK, 2 * noise))
    if not good:
        return None
    summary = (
        f"No need of it on {sum(good)} of {len(good)} data sets. Gained by warm-up: "
        f"{'; '.join(texts)}."
    )
    return study_of("warmup", all_or_none(good), summary, numbers, charts, own)


def large_batch(outcomes: Sequence[Outcome], _: Reader) -> Study | None:
    """What batches 8 and 32 times as large cost.

    NovoGrad's rates and decays grow as in the paper's tables, SGD's rate with the batch, Adam's
    with its square root. Lost: at 32 times the batch, the better of with and without warm-up. Holds
    if NovoGrad loses at most 5 % on all data sets; does not hold if on all it loses more than that
    and more than another optimizer.
    """
    own = of_study(outcomes, "large_batch")
    numbers: dict[str, dict[str, float]] = {}
    charts, small, behind, texts = [], [], [], []
    for data in data_sets(own):
        metric = metric_on(own, data)
        losses, lines = {}, []
        for name in optimizers_on(own, data):
            points = points_of(own, data, name)
            warm = points_of(own, data, name, "with warm-up")
            if len(points) < 3:
                continue
            for x, y in warm.items():
                if y is not None and lost(metric, y, points.get(x)) > 0:
                    points[x] = y
            first, last = min(points), max(points)
            losses[name] = lost(metric, points[first], points[last])
            lines.append(line_of(name, points))
        if OURS not in losses or len(losses) < 2:
            continue
        charts.append(chart_of(data, "batch / the smallest", metric, lines, log_x=True))
        numbers[f"{data}, % lost"] = in_percent(losses)
        small.append(losses[OURS] <= WITHIN)
        behind.append(losses[OURS] > min(losses.values()))
        texts.append(f"{data}: {percents(losses)}")
    if not small:
        return None
    fails = all(b and not s for b, s in zip(behind, small, strict=True))
    verdict = decide(small, fails=fails)
    summary = (
        f"Within 5 % on {sum(small)} of {len(small)} data sets, the least lost on "
        f"{len(behind) - sum(behind)}. Lost at the largest batch: {'; '.join(texts)}."
    )
    return study_of("large_batch", verdict, summary, numbers, charts, own)


def beta2(outcomes: Sequence[Outcome], _: Reader) -> Study | None:
    """Whether a short memory of the second moment is enough.

    Holds if the better of β2 = 0 and 0.25 is not worse than β2 = 0.98 by more than 1 % or two
    standard errors, on all data sets; does not hold if it is worse on all.
    """
    own = of_study(outcomes, "beta2")
    numbers: dict[str, dict[str, float]] = {}
    good, texts = [], []
    for data in data_sets(own):
        metric = metric_on(own, data)
        found: dict[float, list[float]] = {}
        for one in of_optimizer(own, data, OURS):
            value = quality(metric, one.value)
            if value is not None:
                found.setdefault(one.at, []).append(value)
        if not {0.0, 0.25, 0.98} <= set(found):
            continue
        numbers[f"{data}, {quality_name(metric)}"] = {
            f"β2 = {x:g}": fmean(found[x]) for x in sorted(found)
        }
        short = max((0.0, 0.25), key=lambda x: sign(metric) * fmean(found[x]))
        good.append(no_worse(metric, found[short], found[0.98]))
        spelled = ", ".join(f"{fmean(found[x]):.2f} with {x:g}" for x in sorted(found))
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
