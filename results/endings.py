"""What the study's runs say of where NovoGrad ends, beside the others and after more epochs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from results.names import OPTIMIZERS
from results.outcomes import (
    OURS,
    Reader,
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
from results.quality import SLACK, lost, no_worse, quality_name, sign
from results.study_json import Study, chart_of, line_of, study_of
from results.trials import DIVERGED, HEADLINE, Outcome

CLOSED = 0.5  # of a distance: enough for an explanation


def headline(outcomes: Sequence[Outcome], _: Reader) -> Study | None:
    """NovoGrad beside the others, everyone tuned with as many trials.

    On par: the mean over the seeds is not worse than the best other one's by more than 1 % of it or
    two standard errors of the difference, whichever is more. Holds if NovoGrad is on par or better
    on all data sets; does not hold if on fewer than half of them.
    """
    own = of_study(outcomes, HEADLINE)
    numbers: dict[str, dict[str, float]] = {}
    par, texts = [], []
    for data in data_sets(own):
        found = seeds_of(own, data)
        metric = metric_on(own, data)
        others = {name: values for name, values in found.items() if name != OURS}
        if not of_optimizer(own, data, OURS) or not others:
            continue
        numbers[f"{data}, {quality_name(metric)}"] = _with_spread(found)
        best = max(others, key=lambda name: sign(metric) * fmean(others[name]))
        is_par = OURS in found and no_worse(metric, found[OURS], others[best])
        par.append(is_par)
        ours = f"{fmean(found[OURS]):.2f}" if OURS in found else DIVERGED
        texts.append(
            f"{data} {ours} against {fmean(others[best]):.2f} of "
            f"{OPTIMIZERS[best]}{'' if is_par else ' (behind)'}"
        )
    if not par:
        return None
    verdict = decide(par, fails=2 * sum(par) < len(par))
    summary = f"On par or better on {sum(par)} of {len(par)} data sets: {'; '.join(texts)}."
    return study_of(HEADLINE, verdict, summary, numbers, [], own)


def longer_training(outcomes: Sequence[Outcome], read: Reader) -> Study | None:
    """Validation after one, two and three times the epochs, and the training loss beside it.

    Holds if NovoGrad's quality after three times the epochs is not worse than after one by more
    than 1 %, on all data sets; does not hold if it is worse on all.
    """
    own = of_study(outcomes, "longer_training")
    numbers: dict[str, dict[str, float]] = {}
    charts, good, texts = [], [], []
    for data in data_sets(own):
        metric = metric_on(own, data)
        lines, losses = [], []
        for name in optimizers_on(own, data):
            points = points_of(own, data, name)
            if len(points) < 3:
                continue
            xs = sorted(points)
            lines.append(line_of(name, points))
            runs = {o.at: o for o in of_optimizer(own, data, name)}
            values = {f"{OPTIMIZERS[name]} × {x:g}": points[x] for x in xs}
            key = f"{data}, {quality_name(metric)}"
            numbers.setdefault(key, {}).update({k: v for k, v in values.items() if v is not None})
            losses.append(line_of(name, {x: _train_loss(read, runs[x]) for x in xs}))
            if name == OURS:
                good.append(lost(metric, points[xs[0]], points[xs[-1]]) <= SLACK)
                spelled = ", ".join(f"{v:.2f}" for v in values.values() if v is not None)
                texts.append(f"{data}: {spelled}")
        if lines:
            charts.append(chart_of(data, "epochs / the fewest", metric, lines))
            charts.append(chart_of(data, "epochs / the fewest", "training loss", losses))
    if not good:
        return None
    summary = (
        f"Not worse after three times the epochs on {sum(good)} of {len(good)} data sets. "
        f"NovoGrad's validation after 1, 2 and 3 times: {'; '.join(texts)}."
    )
    return study_of("longer_training", all_or_none(good), summary, numbers, charts, own)


def regularisation(outcomes: Sequence[Outcome], read: Reader) -> Study | None:
    """What many epochs over a small part of the training data do, where they can overfit.

    Lost: by three times the epochs against the best of one, two and three times. Gap: how far the
    training loss is below that of validation after three times. Holds if NovoGrad loses less than
    1 %, or least, and has the smallest gap, on all data sets; does not hold if on none.
    """
    own = of_study(outcomes, "regularisation")
    numbers: dict[str, dict[str, float]] = {}
    charts, good, texts = [], [], []
    for data in data_sets(own):
        metric = metric_on(own, data)
        losses, gaps, last, lines = {}, {}, {}, []
        for name in optimizers_on(own, data):
            points = points_of(own, data, name)
            known = [y for y in points.values() if y is not None]
            if len(points) < 3 or not known:
                continue
            lines.append(line_of(name, points))
            end = max(points)
            best = max(known, key=lambda y: sign(metric) * y)
            losses[name] = lost(metric, best, points[end])
            run = next(o for o in of_optimizer(own, data, name) if o.at == end)
            gap = _gap(read, run)
            ending = points[end]
            if gap is not None and ending is not None:
                gaps[name], last[name] = gap, ending
        if OURS not in losses or len(losses) < 2:
            continue
        charts.append(chart_of(data, "epochs / the fewest", metric, lines))
        numbers[f"{data}, {quality_name(metric)} at the end"] = by_name(last)
        numbers[f"{data}, % lost"] = in_percent(losses)
        numbers[f"{data}, gap"] = by_name(gaps)
        least = losses[OURS] <= max(SLACK, min(losses.values()))
        good.append(least and OURS in gaps and gaps[OURS] <= min(gaps.values()))
        spelled = ", ".join(f"{OPTIMIZERS[n]} {v:.2f}" for n, v in gaps.items())
        texts.append(f"{data}: lost {percents(losses)}; gap {spelled}")
    if not good:
        return None
    summary = f"Overfits least on {sum(good)} of {len(good)} data sets. {'. '.join(texts)}."
    return study_of("regularisation", all_or_none(good), summary, numbers, charts, own)


def tensor_sizes(outcomes: Sequence[Outcome], _: Reader) -> Study | None:
    """Whether NovoGrad is behind because each weight of a large tensor moves little in a step.

    Its runs again with every tensor's step multiplied by the root of its number of weights, so that
    all weights move alike, as with Adam; the best of four rates. Closed: the part of the distance
    between NovoGrad and the best other optimizer, both of the headline, that this gains. Holds if
    at least half is closed on all data sets where NovoGrad is behind; does not hold if on none.
    """
    own = of_study(outcomes, "tensor_sizes")
    numbers: dict[str, dict[str, float]] = {}
    charts, good, texts = [], [], []
    for data in data_sets(own):
        metric = metric_on(own, data)
        found = {name: fmean(v) for name, v in seeds_of(of_study(outcomes, HEADLINE), data).items()}
        ours = found.pop(OURS, None)
        points = points_of(own, data, OURS)
        known = [y for y in points.values() if y is not None]
        if ours is None or not found or not known:
            continue
        best = max(found, key=lambda name: sign(metric) * found[name])
        behind = sign(metric) * (found[best] - ours)
        if behind <= 0:
            continue
        alike = max(known, key=lambda y: sign(metric) * y)
        closed = sign(metric) * (alike - ours) / behind
        ends = (min(points), max(points))
        lines = [
            line_of("weights alike", points),
            line_of(OURS, dict.fromkeys(ends, ours)),
            line_of(best, dict.fromkeys(ends, found[best])),
        ]
        charts.append(
            chart_of(data, "rate of a weight / NovoGrad's rate", metric, lines, log_x=True)
        )
        numbers[f"{data}, {quality_name(metric)}"] = {
            "NovoGrad": ours,
            "weights alike": alike,
            "best other": found[best],
            "closed, %": 100 * closed,
        }
        good.append(closed >= CLOSED)
        texts.append(
            f"{data}: {ours:.2f} becomes {alike:.2f}, {OPTIMIZERS[best]} has {found[best]:.2f}"
        )
    if not good:
        return None
    summary = (
        f"At least half of the distance is closed on {sum(good)} of {len(good)} data sets. "
        f"{'; '.join(texts)}."
    )
    return study_of("tensor_sizes", all_or_none(good), summary, numbers, charts, own)


def _with_spread(found: Mapping[str, Sequence[float]]) -> dict[str, float]:
    numbers = {}
    for name, values in found.items():
        numbers[OPTIMIZERS[name]] = fmean(values)
        if len(values) > 1:
            numbers[f"{OPTIMIZERS[name]} ±"] = stdev(values)
    return numbers


def _train_loss(read: Reader, outcome: Outcome) -> float | None:
    curve = read(outcome.run_id).get("curves", {}).get("train/loss", {})
    values = [v for v in curve.get("value", []) if isinstance(v, float) and math.isfinite(v)]
    return fmean(values[-3:]) if values else None  # a step's loss is noisy


def _gap(read: Reader, outcome: Outcome) -> float | None:
    """By how much the loss on validation data is above the training loss at the end."""
    loss = read(outcome.run_id).get("final", {}).get(f"{outcome.metric.partition('/')[0]}/loss")
    training = _train_loss(read, outcome)
    return None if loss is None or training is None else float(loss) - training
