"""Where NovoGrad ends: beside the tuned others, after more epochs, and over many passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from statistics import fmean, stdev

from analysis.charts import Chart, Line
from analysis.metrics import best_quality, lost_quality, quality_label
from analysis.paper import OPTIMIZERS
from analysis.questions import (
    OURS,
    PERCENT,
    DataAnswer,
    DataTrials,
    Question,
    by_name,
    by_seed,
    in_percent,
    line_of,
    percents,
)
from analysis.statistics import CONFIDENCE, SLACK, WITHIN, PairedDifference, no_worse
from analysis.trials import DIVERGED, HEADLINE, TrialResult
from analysis.verdicts import Rule

CLOSED = 0.5  # of a distance: enough for an explanation
EPOCHS = "epochs / the fewest"
PASSES = "passes over the data"


def _headline(trials: DataTrials) -> DataAnswer | None:
    seeds = trials.final_seeds()
    best = trials.best_other(seeds)
    if OURS not in trials.optimizers or best is None:
        return None
    numbers = {}
    for optimizer, values in seeds.items():
        numbers[OPTIMIZERS[optimizer]] = fmean(values.values())
        if len(values) > 1:
            numbers[f"{OPTIMIZERS[optimizer]} ±"] = stdev(values.values())
    what = quality_label(trials.metric)
    name, label = f"{trials.data} ({what})", f"{trials.data}, {what}"
    other = f"{fmean(seeds[best].values()):.2f} of {OPTIMIZERS[best]}"
    if OURS not in seeds:
        return DataAnswer(f"{name} {DIVERGED} against {other} (behind)", {label: numbers})
    text = f"{name} {fmean(seeds[OURS].values()):.2f} against {other}"
    lead = trials.lead(seeds[OURS], seeds[best])
    if lead is None:
        return DataAnswer(f"{text} (too few seeds)", {label: numbers}, counts=False)
    behind = lead.high < 0 and lead.mean < -100 * SLACK
    tells = lead.excludes_zero or lead.high - lead.low <= 2 * 100 * WITHIN
    remark = "seeds can't tell" if not tells else "behind" if behind else ""
    remark = remark or ("ahead" if lead.low > 0 else "on par")
    return DataAnswer(
        f"{text}, {lead} ({remark})",
        {label: numbers | {"lead, %": lead.mean, "low": lead.low, "high": lead.high}},
        counts=tells,
        good=not behind,
    )


def _longer_training(trials: DataTrials) -> DataAnswer | None:
    numbers: dict[str, float] = {}
    lines, losses = [], []
    complete = [name for name in trials.optimizers if len(trials.points(name)) >= 3]
    for name in complete:
        points, runs = trials.points(name), trials.runs(name)
        lines.append(line_of(name, points, runs))
        losses.append(line_of(name, {x: _mean_train_loss(own) for x, own in runs.items()}))
        spelled = {f"{OPTIMIZERS[name]} × {x:g}": y for x, y in points.items()}
        numbers |= {key: value for key, value in spelled.items() if value is not None}
    if not lines:
        return None
    charts = (trials.chart(EPOCHS, lines), trials.chart(EPOCHS, losses, y="training loss"))
    table = {f"{trials.data}, {quality_label(trials.metric)}": numbers}
    if OURS not in complete:
        return DataAnswer(numbers=table, charts=charts)
    points = trials.points(OURS)
    best, last = best_quality(trials.metric, points.values()), points[max(points)]
    values = [f"{value:.2f}" for value in points.values() if value is not None]
    return DataAnswer(
        f"{trials.data}: {', '.join(values)}",
        table,
        charts,
        good=lost_quality(trials.metric, best, last) <= SLACK,
    )


def _regularisation(trials: DataTrials) -> DataAnswer | None:
    lines, losses, gaps = [], {}, {}
    last: dict[str, float | None] = {}
    for name in trials.optimizers:
        points, runs = trials.points(name), trials.runs(name)
        if len(points) < 3:
            continue
        lines.append(line_of(name, points, runs))
        end = max(points)
        last[name] = points[end]
        best = best_quality(trials.metric, points.values())
        losses[name] = lost_quality(trials.metric, best, points[end])
        gap = _generalisation_gap(runs[end])
        if gap is not None:
            gaps[name] = gap
    if OURS not in losses or len(losses) < 2:
        return None
    known = {name: value for name, value in last.items() if value is not None}
    others = best_quality(trials.metric, (last[name] for name in last if name != OURS))
    least = losses[OURS] <= max(SLACK, min(losses.values()))
    ahead = others is None or lost_quality(trials.metric, others, last[OURS]) <= SLACK
    return DataAnswer(
        f"{trials.data}: {percents(losses)}",
        {
            f"{trials.data}, {quality_label(trials.metric)} at the end": by_name(known),
            f"{trials.data}, % lost": in_percent(losses),
            f"{trials.data}, gap": by_name(gaps),
        },
        (trials.chart(EPOCHS, lines),),
        counts=max(losses.values()) > SLACK,
        good=least and ahead,
        bad=not least,
        marks={"least": least, "ahead": ahead},
    )


def _passes(trials: DataTrials) -> DataAnswer | None:
    """NovoGrad's difference to the best other optimizer at each number of passes."""
    differences = _differences(trials)
    if not differences:
        return None
    last_other, last = differences[max(differences)]
    places = sorted(differences)
    leads = [differences[at][1] for at in places]
    line = Line(
        trials.data,
        tuple(places),
        tuple(one.mean for one in leads),
        tuple((one.high - one.low) / 2 for one in leads),
    )
    numbers = {
        f"{trials.data}, {at:g} passes": {
            "difference, %": one.mean,
            "low": one.low,
            "high": one.high,
            **({} if one.effect_size is None else {"effect size": one.effect_size}),
        }
        for at, (_, one) in differences.items()
    }
    text = f"{trials.data} {last} after {places[-1]:g}, against {OPTIMIZERS[last_other]}"
    return DataAnswer(
        text,
        numbers,
        (
            trials.chart(
                PASSES,
                [line_of(n, trials.points(n), trials.runs(n)) for n in trials.optimizers],
                log_x=places[0] > 0,
            ),
        ),
        line,
        good=last.low > 0,
        bad=last.high < 0,
    )


def _differences(trials: DataTrials) -> dict[float, tuple[str, PairedDifference]]:
    """By position: the best other optimizer, and NovoGrad's lead in percent of its mean.

    Positive where NovoGrad is better. Only positions at which all have two seeds in common.
    """
    found = {}
    for at in trials.runs(OURS):
        seeds = {name: by_seed(trials.runs(name).get(at, ())) for name in trials.optimizers}
        seeds = {name: values for name, values in seeds.items() if len(values) > 1}
        other = trials.best_other(seeds)
        if other is None or OURS not in seeds:
            continue
        if lead := trials.lead(seeds[OURS], seeds[other]):
            found[at] = other, lead
    return found


def _tensor_sizes(trials: DataTrials) -> DataAnswer | None:
    """How much of NovoGrad's distance to the best other one equal steps of all weights close."""
    seeds = trials.final_seeds()
    best = trials.best_other(seeds)
    if OURS not in seeds or best is None:
        return None
    if no_worse(trials.metric, [*seeds[OURS].values()], [*seeds[best].values()]):
        return None
    points = trials.points(OURS)
    own = {one.trial.seed for one in trials.of(OURS)}
    ours, other = (fmean(q for s, q in seeds[name].items() if s in own) for name in (OURS, best))
    alike = best_quality(trials.metric, points.values())
    closed = 0.0 if alike is None or other == ours else (alike - ours) / (other - ours)
    span = (min(points), max(points))
    lines = [
        line_of("NovoGrad, all weights alike", points),
        line_of(OURS, dict.fromkeys(span, ours)),
        line_of(best, dict.fromkeys(span, other)),
    ]
    values = {"NovoGrad": ours, "weights alike": alike, "best other": other}
    numbers = {name: value for name, value in values.items() if value is not None}
    became = DIVERGED if alike is None else f"{alike:.2f}"
    return DataAnswer(
        f"{trials.data}: {ours:.2f} becomes {became}, {OPTIMIZERS[best]} has {other:.2f}",
        {f"{trials.data}, {quality_label(trials.metric)}": numbers | {"closed, %": 100 * closed}},
        (trials.chart("rate of a weight / NovoGrad's rate", lines, log_x=True),),
        good=closed >= CLOSED,
    )


def _mean_train_loss(runs: Sequence[TrialResult]) -> float | None:
    """At the end, over seeds; a single step's loss is noisy."""
    found = []
    for one in runs:
        curves: Mapping[str, Mapping[str, Sequence[float]]] = (
            one.record.curves if one.record else {}
        )
        values = [v for v in curves.get("train/loss", {}).get("value", ()) if isfinite(v)]
        found += [fmean(values[-3:])] if values else []
    return fmean(found) if found else None


def _generalisation_gap(runs: Sequence[TrialResult]) -> float | None:
    """By how much the loss on held-out data is above the training loss at the end."""
    split = runs[0].trial.metric.partition("/")[0]
    losses = [loss for one in runs if (loss := one.final(f"{split}/loss")) is not None]
    training = _mean_train_loss(runs)
    return None if not losses or training is None else fmean(losses) - training


ENDINGS = (
    Question(
        HEADLINE,
        Rule(
            "NovoGrad beside the best other optimizer, each tuned with the same number of trials. "
            "Lead: in percent of the other's mean, positive where NovoGrad is better, paired by "
            "seed, with Student's {confidence:g} % interval; d: mean / standard deviation of the "
            "differences. Behind: the interval lies below 0, and the mean below -{slack:g} %. "
            "Ahead: the interval lies above 0. On par: neither. Where the interval includes 0 and "
            "is more than {wide:g} % wide, the seeds can't tell, and the data set does not count. "
            "Holds if NovoGrad is not behind on any of the others; does not hold if it is behind "
            "on more than half of them.",
            PERCENT | {"confidence": 100 * CONFIDENCE, "wide": 2 * 100 * WITHIN},
        ),
        _headline,
        "On par or better on {good} of {counted} data sets: {texts}.",
        by_majority=True,
    ),
    Question(
        "longer_training",
        Rule(
            "The metric on held-out data after one, two and three times the epochs, and the "
            "training loss beside it. Holds if NovoGrad's quality after three times the epochs is "
            "not worse than the best of the three by more than {slack:g} %, on all data sets; "
            "does not hold if it is worse on all.",
            PERCENT,
        ),
        _longer_training,
        "Not worse after three times the epochs on {good} of {counted} data sets. NovoGrad's "
        "metric after 1, 2 and 3 times: {texts}.",
    ),
    Question(
        "regularisation",
        Rule(
            "What many epochs over a small part of the training data do, where they can overfit. "
            "Lost: after three times the epochs, relative to the best of one, two and three "
            "times. Gap: the loss on held-out data less the training loss, at the end. Only data "
            "sets count on which an optimizer loses more than {slack:g} %: on the others none "
            "overfits. An optimizer that learns less also overfits less, so losing little is not "
            "enough. Holds if NovoGrad loses less than {slack:g} %, or least, and ends at most "
            "{slack:g} % behind the best other one, on all data sets; does not hold if it loses "
            "least on none.",
            PERCENT,
        ),
        _regularisation,
        "An optimizer overfits on {counted} of {asked} data sets. There NovoGrad loses least, "
        "or less than 1 %, on {least}, and ends on par or better on {ahead}. Lost: {texts}.",
    ),
    Question(
        "passes",
        Rule(
            "NovoGrad against the best other optimizer over the number of passes over the training "
            "data, at equal numbers of steps. Difference: in percent of the other's mean, positive "
            "where NovoGrad is better, paired by seed, with Student's {confidence:g} % interval; "
            "effect size: mean difference / standard deviation of the differences. Holds if at the "
            "most passes the interval lies above 0 on all data sets; does not hold if it lies "
            "below 0 on all.",
            {"confidence": 100 * CONFIDENCE},
        ),
        _passes,
        "Ahead at the most passes on {good} of {counted} data sets: {texts}.",
        overview=Chart(
            "NovoGrad's lead over the best other optimizer",
            PASSES,
            "lead, % (95 % interval)",
            (Line("as good as the best other", (0.0,), (0.0,), colour=6, dash="dotted"),),
        ),
    ),
    Question(
        "tensor_sizes",
        Rule(
            "Whether NovoGrad is behind because each weight of a large tensor moves little in a "
            "step. Its runs again with every tensor's step multiplied by the square root of its "
            "number of weights, so that all weights move alike, as with Adam; the best of the "
            "rates tried. Closed: the part of the distance between NovoGrad and the best other "
            "optimizer that this gains, over the same seeds. Holds if at least {closed:g} % is "
            "closed on all data sets; does not hold if on none. Data sets on which NovoGrad is on "
            "par do not count.",
            {"closed": 100 * CLOSED},
        ),
        _tensor_sizes,
        "At least half of the distance is closed on {good} of {counted} data sets. {texts}.",
    ),
)
