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
    best_other,
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
from results.quality import SLACK, best_of, can_tell, lost, no_worse, quality_name
from results.study_json import Study, chart_of, line_of, study_of
from results.trials import DIVERGED, HEADLINE, Outcome

CLOSED = 0.5  # of a distance: enough for an explanation


def headline(outcomes: Sequence[Outcome], _: Reader) -> Study | None:
    """NovoGrad beside the others, everyone tuned with as many trials.

    On par: the mean over the seeds is not worse than the best other one's by more than 1 % of it or
    two standard errors of the difference, whichever is more. Where two standard errors are more
    than the difference and than 5 %, the seeds can't tell, and the data set does not count. Holds
    if NovoGrad is on par or better on all others; does not hold if on fewer than half of them.
    """
    own = of_study(outcomes, HEADLINE)
    numbers: dict[str, dict[str, float]] = {}
    par, texts = [], []
    for data in data_sets(own):
        found = seeds_of(own, data)
        metric = metric_on(own, data)
        best = best_other(metric, found)
        if not of_optimizer(own, data, OURS) or best is None:
            continue
        numbers[f"{data}, {quality_name(metric)}"] = _with_spread(found)
        is_par = OURS in found and no_worse(metric, found[OURS], found[best])
        remark = "" if is_par else " (behind)"
        if OURS in found and not can_tell(found[OURS], found[best]):
            remark = " (seeds can't tell)"
        else:
            par.append(is_par)
        ours = f"{fmean(found[OURS]):.2f}" if OURS in found else DIVERGED
        texts.append(
            f"{data} {ours} against {fmean(found[best]):.2f} of {OPTIMIZERS[best]}{remark}"
        )
    if not texts:
        return None
    verdict = decide(par, fails=2 * sum(par) < len(par))
    summary = f"On par or better on {sum(par)} of {len(par)} data sets: {'; '.join(texts)}."
    return study_of(HEADLINE, verdict, summary, numbers, [], own)


def longer_training(outcomes: Sequence[Outcome], read: Reader) -> Study | None:
    """Validation after one, two and three times the epochs, and the training loss beside it.

    Holds if NovoGrad's quality after three times the epochs is not worse than the best of the three
    by more than 1 %, on all data sets; does not hold if it is worse on all.
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
                best = best_of(metric, points.values())
                good.append(lost(metric, best, points[xs[-1]]) <= SLACK)
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

    Lost: by three times the epochs against the best of one, two and three times. Gap: the loss on
    validation data less that of training, at the end. Only data sets count on which an optimizer
    loses more than 1 %: nobody overfits on the others. Who learns less overfits less, too, so that
    losing little is not enough. Holds if NovoGrad loses less than 1 %, or least, and ends at most
    1 % behind the best other one, on all data sets; does not hold if it loses least on none.
    """
    own = of_study(outcomes, "regularisation")
    numbers: dict[str, dict[str, float]] = {}
    charts, least, ahead, texts = [], [], [], []
    for data in data_sets(own):
        metric = metric_on(own, data)
        losses, gaps, lines = {}, {}, []
        last: dict[str, float | None] = {}
        for name in optimizers_on(own, data):
            points = points_of(own, data, name)
            if len(points) < 3:
                continue
            lines.append(line_of(name, points))
            end = max(points)
            last[name] = points[end]
            losses[name] = lost(metric, best_of(metric, points.values()), points[end])
            run = next(o for o in of_optimizer(own, data, name) if o.at == end)
            gap = _gap(read, run)
            if gap is not None:
                gaps[name] = gap
        if OURS not in losses or len(losses) < 2:
            continue
        charts.append(chart_of(data, "epochs / the fewest", metric, lines))
        known = {name: value for name, value in last.items() if value is not None}
        numbers[f"{data}, {quality_name(metric)} at the end"] = by_name(known)
        numbers[f"{data}, % lost"] = in_percent(losses)
        numbers[f"{data}, gap"] = by_name(gaps)
        texts.append(f"{data}: {percents(losses)}")
        if max(losses.values()) > SLACK:
            others = best_of(metric, (last[name] for name in last if name != OURS))
            least.append(losses[OURS] <= max(SLACK, min(losses.values())))
            ahead.append(others is None or lost(metric, others, last[OURS]) <= SLACK)
    if not charts:
        return None
    good = [a and b for a, b in zip(least, ahead, strict=True)]
    verdict = decide(good, fails=not any(least))
    summary = (
        f"An optimizer overfits on {len(good)} of {len(charts)} data sets. There NovoGrad loses "
        f"least on {sum(least)}, and ends on par or better on {sum(ahead)}. Lost: "
        f"{'; '.join(texts)}."
    )
    return study_of("regularisation", verdict, summary, numbers, charts, own)


def tensor_sizes(outcomes: Sequence[Outcome], _: Reader) -> Study | None:
    """Whether NovoGrad is behind because each weight of a large tensor moves little in a step.

    Its runs again with every tensor's step multiplied by the root of its number of weights, so that
    all weights move alike, as with Adam; the best of four rates. Closed: the part of the distance
    between NovoGrad and the best other optimizer that this gains; all with the first seed. Holds if
    at least half is closed on all data sets asked; does not hold if on none. Sets on which NovoGrad
    is on par do not count.
    """
    own = of_study(outcomes, "tensor_sizes")
    ends = of_study(outcomes, HEADLINE)
    numbers: dict[str, dict[str, float]] = {}
    charts, good, texts = [], [], []
    for data in data_sets(own):
        metric = metric_on(own, data)
        seeds = seeds_of(ends, data)
        best = best_other(metric, seeds)
        if OURS not in seeds or best is None or no_worse(metric, seeds[OURS], seeds[best]):
            continue
        points = points_of(own, data, OURS)
        ours, other = (seeds[name][0] for name in (OURS, best))
        alike = best_of(metric, points.values())
        behind = other - ours
        closed = 0.0 if alike is None or not behind else (alike - ours) / behind
        span = (min(points), max(points))
        lines = [
            line_of("NovoGrad, all weights alike", points),
            line_of(OURS, dict.fromkeys(span, ours)),
            line_of(best, dict.fromkeys(span, other)),
        ]
        charts.append(
            chart_of(data, "rate of a weight / NovoGrad's rate", metric, lines, log_x=True)
        )
        values = {"NovoGrad": ours, "weights alike": alike, "best other": other}
        numbers[f"{data}, {quality_name(metric)}"] = {
            **{name: value for name, value in values.items() if value is not None},
            "closed, %": 100 * closed,
        }
        good.append(closed >= CLOSED)
        became = DIVERGED if alike is None else f"{alike:.2f}"
        texts.append(f"{data}: {ours:.2f} becomes {became}, {OPTIMIZERS[best]} has {other:.2f}")
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
