"""How much NovoGrad tolerates: learning rates, initial weights, no warm-up, batches, a small β2."""

from __future__ import annotations

from statistics import fmean, stdev

from analysis.charts import Line
from analysis.metrics import best_quality, lost_quality, quality_label, quality_sign
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
from analysis.sensitivity import sensitivity
from analysis.statistics import CONFIDENCE, SLACK, WITHIN, no_worse
from analysis.trials import DIVERGED, RATES, best_result
from analysis.verdicts import Rule

MIN_RATES = 5  # for a width that counts
SHORT, LONG = (0.0, 0.25), 0.98  # values of β2


def _rates(trials: DataTrials) -> DataAnswer | None:
    widths, lines = {}, []
    for name in trials.optimizers:
        points = trials.points(name)
        found, best = sensitivity(trials.metric, points), best_result(trials.of(name))
        if found is not None and best is not None:
            widths[name] = found
            relative = {x / best.trial.at: y for x, y in points.items()}
            lines.append(line_of(name, relative))
    if not lines:
        return None
    decades = {name: found.decades for name, found in widths.items()}
    chart = trials.chart("learning rate / the optimizer's best", lines, log_x=True)
    numbers = {f"{trials.data}, decades": by_name(decades)}
    if OURS not in widths or len(widths) < 2 or len(trials.points(OURS)) < MIN_RATES:
        return DataAnswer(numbers=numbers, charts=(chart,))
    values = list(trials.final_seeds().get(OURS, {}).values())
    noisy = len(values) > 1 and 2 * stdev(values) / fmean(values) > WITHIN
    texts = [f"{OPTIMIZERS[n]} {w.bound}{w.decades:.2f}" for n, w in widths.items()]
    return DataAnswer(
        f"{trials.data}: {', '.join(texts)} decades{' (seeds differ too much)' * noisy}",
        numbers,
        (chart,),
        counts=not noisy,
        good=decades[OURS] >= max(decades.values()),
    )


def _initialisation(trials: DataTrials) -> DataAnswer | None:
    losses, lines = {}, []
    for name in trials.optimizers:
        points = trials.points(name)
        if 1.0 in points and len(points) >= 3:
            losses[name] = max(lost_quality(trials.metric, points[1.0], y) for y in points.values())
            lines.append(line_of(name, points, trials.runs(name)))
    if OURS not in losses or len(losses) < 2:
        return None
    return DataAnswer(
        f"{trials.data}: {percents(losses)}",
        {f"{trials.data}, % lost": in_percent(losses)},
        (trials.chart("gain of the initial weights", lines, log_x=True),),
        good=losses[OURS] <= max(SLACK, min(losses.values())),
    )


def _warmup(trials: DataTrials) -> DataAnswer | None:
    gains: dict[str, float] = {}
    lines: dict[str, list[Line]] = {}  # by series
    for name in trials.optimizers:
        cold: list[float | None] = []
        warm: list[float | None] = []
        for series in dict.fromkeys(one.trial.series for one in trials.of(name)):
            points = trials.points(name, series)
            lines.setdefault(series, []).append(line_of(name, points, trials.runs(name, series)))
            for percent, value in points.items():
                (warm if percent else cold).append(value)
        if cold and warm:
            with_it, without = (best_quality(trials.metric, v) for v in (warm, cold))
            gains[name] = 0.0 if with_it is None else lost_quality(trials.metric, with_it, without)
    if OURS not in gains or len(gains) < 2:
        return None
    charts = tuple(
        trials.chart(
            "warm-up, % of the run", drawn, title=f"{trials.data}, {series}" * bool(series)
        )
        for series, drawn in lines.items()
    )
    return DataAnswer(
        f"{trials.data}: {percents(gains)}",
        {f"{trials.data}, % gained": in_percent(gains)},
        charts,
        good=gains[OURS] <= max(SLACK, min(gains.values())),
    )


def _large_batch(trials: DataTrials) -> DataAnswer | None:
    losses: dict[float, dict[str, float]] = {}  # by the multiple of the batch, then the optimizer
    lines = []
    for name in trials.optimizers:
        points = trials.points(name)
        for x, y in trials.points(name, "with warm-up").items():
            points[x] = best_quality(trials.metric, (y, points.get(x)))
        if len(points) < 3:
            continue
        for x in sorted(points)[1:]:
            lost = lost_quality(trials.metric, points[min(points)], points[x])
            losses.setdefault(x, {})[name] = lost
        lines.append(line_of(name, points))
    if len(lines) < 2 or any(OURS not in of for of in losses.values()):
        return None
    nearest = losses[min(losses)]
    return DataAnswer(
        "; ".join(f"{trials.data}, × {x:g}: {percents(of)}" for x, of in losses.items()),
        {f"{trials.data}, × {x:g}, % lost": in_percent(of) for x, of in losses.items()},
        (trials.chart("batch / the smallest", lines, log_x=True),),
        good=losses[max(losses)][OURS] <= WITHIN,
        bad=nearest[OURS] > max(WITHIN, min(nearest.values()) + SLACK),
    )


def _beta2(trials: DataTrials) -> DataAnswer | None:
    runs = trials.runs(OURS)
    found = {x: [*known.values()] for x, own in runs.items() if (known := by_seed(own))}
    if not {*SHORT, LONG} <= set(runs) or not found:
        return None
    sign = quality_sign(trials.metric)
    shorts = [x for x in SHORT if x in found]
    short = max(shorts, key=lambda x: sign * fmean(found[x]), default=None)
    texts = [f"{fmean(values):.2f} with {x:g}" for x, values in found.items()]
    means = {f"β2 = {x:g}": fmean(values) for x, values in found.items()}
    return DataAnswer(
        f"{trials.data}: {', '.join(texts)}",
        {f"{trials.data}, {quality_label(trials.metric)}": means},
        good=short is not None
        and (LONG not in found or no_worse(trials.metric, found[short], found[LONG])),
    )


def _variants(trials: DataTrials) -> DataAnswer | None:
    plain = by_seed(trials.runs(OURS).get(0.0, ()))
    series = dict.fromkeys(one.trial.series for one in trials.of(OURS) if one.trial.series)
    seeds = {name: by_seed(trials.runs(OURS, name).get(0.0, ())) for name in series}
    leads = {name: lead for name, own in seeds.items() if (lead := trials.lead(own, plain))}
    gone = [name for name, own in seeds.items() if not own]  # a run of it diverged
    if not plain or not (leads or gone):
        return None
    texts = [f"{name} {lead}" for name, lead in leads.items()]
    texts += [f"{name} {DIVERGED}" for name in gone]
    means = {name: fmean(seeds[name].values()) for name in leads}
    differ = [one.excludes_zero and abs(one.mean) > 100 * SLACK for one in leads.values()]
    return DataAnswer(
        f"{trials.data}: {'; '.join(texts)}",
        {
            f"{trials.data}, {quality_label(trials.metric)}": {
                "Algorithm 1": fmean(plain.values()),
                **means,
            }
        },
        good=not any(differ) and not gone,
    )


ROBUSTNESS = (
    Question(
        RATES,
        Rule(
            "How wide the range of good learning rates is. Width: the decades around the best rate "
            "in which the quality stays within {within:g} % of the best, interpolated linearly "
            "over the logarithm of the rate; “≥” marks a range that reaches the last rate tried. "
            "Only data sets with at least {rates} rates count on which two standard deviations "
            "over the seeds of NovoGrad's best are below {within:g} %. Holds if NovoGrad's range "
            "is the widest on all of them; does not hold if on none.",
            PERCENT | {"rates": MIN_RATES},
        ),
        _rates,
        "Widest on {good} of {counted} data sets. {texts}.",
    ),
    Question(
        "initialisation",
        Rule(
            "What initial weights of the wrong size cost. Lost: the quality at the worse of the "
            "gains 0.25 and 4, relative to gain 1. Holds if NovoGrad loses least, or less than "
            "{slack:g} %, on all data sets; does not hold if on none.",
            PERCENT,
        ),
        _initialisation,
        "Loses least, or less than 1 %, on {good} of {counted} data sets. Lost: {texts}.",
    ),
    Question(
        "warmup",
        Rule(
            "What a warm-up gains, at the best rate and at 3.16 times that rate. Gained: the best "
            "run with a warm-up of any length tried, at either rate, relative to the best one "
            "without. Holds if NovoGrad gains less than {slack:g} %, or least, on all data sets; "
            "does not hold if on none.",
            PERCENT,
        ),
        _warmup,
        "Gains least, or less than 1 %, on {good} of {counted} data sets. Gained by warm-up: "
        "{texts}.",
    ),
    Question(
        "large_batch",
        Rule(
            "What batches 8 and 32 times as large cost at the same number of epochs. NovoGrad's "
            "rates and decays grow as in the paper's tables, SGD's rate with the batch, Adam's "
            "with its square root. Lost: relative to the smallest batch; at 32 times the better of "
            "with and without warm-up. Holds if NovoGrad loses at most {within:g} % at 32 times on "
            "all data sets; does not hold if on all it loses more than {within:g} % at 8 times "
            "already, and {slack:g} % more than another optimizer.",
            PERCENT,
        ),
        _large_batch,
        "Within 5 % at the largest batch on {good} of {counted} data sets. Lost: {texts}.",
    ),
    Question(
        "beta2",
        Rule(
            "Whether a short memory of the second moment is enough. Holds if the better of β2 = 0 "
            "and 0.25 is not worse than β2 = {long} by more than {slack:g} % or two standard "
            "errors, on all data sets; does not hold if it is worse on all. A setting with a "
            "diverged run is worse than one without.",
            PERCENT | {"long": LONG},
        ),
        _beta2,
        "A short memory is as good on {good} of {counted} data sets. {texts}.",
    ),
    Question(
        "variants",
        Rule(
            "Algorithm 1 against its variants: weight decay in the update (footnote 2), times "
            "1 / (1 - β1), so that it acts as strongly; AMSGrad; and the first moment as an "
            "average with 1 - β1, at a rate times 1 / (1 - β1), so that only the first gradient, "
            "which the average does not damp, weighs more. "
            "Difference: in percent of Algorithm 1's mean, positive where the variant is better, "
            "paired by seed, with Student's {confidence:g} % interval. Holds if on no data set an "
            "interval excludes 0 with a mean beyond {slack:g} %; does not hold if on all.",
            PERCENT | {"confidence": 100 * CONFIDENCE},
        ),
        _variants,
        "No variant differs on {good} of {counted} data sets. {texts}.",
    ),
)
