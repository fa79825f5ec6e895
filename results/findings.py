"""What the study's runs say of the paper's claims: numbers, curves and verdicts, by stated rules.

Nothing here is decided by hand: the rules are in the docstrings of the functions, which STUDY.md
shows. One data set alone decides nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from results.claims import FAILS, HOLDS, STUDIES, UNDECIDED
from results.names import OPTIMIZERS
from results.outcomes import (
    data_sets,
    metric_on,
    of_optimizer,
    of_study,
    optimizers_on,
    points_of,
    seeds_of,
)
from results.quality import SLACK, WITHIN, lost, no_worse, quality, quality_name, sign, width
from results.study_json import Study, chart_of, line_of, study_of
from results.trials import DIVERGED, HEADLINE, RATES, Outcome, read_trials, tune

OURS = "novograd"
CLOSED = 0.5  # of a distance: enough for an explanation
FEWEST = 2  # data sets: one alone decides nothing
TRIALS = STUDIES / "trials.csv"
Reader = Callable[[str], Mapping[str, Any]]  # the record of a run


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
    verdict = _decide(par, fails=2 * sum(par) < len(par))
    summary = f"On par or better on {sum(par)} of {len(par)} data sets: {'; '.join(texts)}."
    return study_of(HEADLINE, verdict, summary, numbers, [], own)


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
    return study_of(RATES, _all_or_none(wins), summary, numbers, charts, own)


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
        numbers[f"{data}, % lost"] = _in_percent(losses)
        good.append(losses[OURS] <= max(SLACK, min(losses.values())))
        texts.append(f"{data}: {_percents(losses)}")
    if not good:
        return None
    summary = f"Loses least on {sum(good)} of {len(good)} data sets. Lost: {'; '.join(texts)}."
    return study_of("initialisation", _all_or_none(good), summary, numbers, charts, own)


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
            numbers[f"{where}, % gained"] = _in_percent(gains)
            texts.append(f"{where}: {_percents(gains)}")
            if not series:
                noise = _noise(outcomes, data)
                good.append(gains[OURS] <= max(SLACK, 2 * noise))
    if not good:
        return None
    summary = (
        f"No need of it on {sum(good)} of {len(good)} data sets. Gained by warm-up: "
        f"{'; '.join(texts)}."
    )
    return study_of("warmup", _all_or_none(good), summary, numbers, charts, own)


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
        numbers[f"{data}, % lost"] = _in_percent(losses)
        small.append(losses[OURS] <= WITHIN)
        behind.append(losses[OURS] > min(losses.values()))
        texts.append(f"{data}: {_percents(losses)}")
    if not small:
        return None
    fails = all(b and not s for b, s in zip(behind, small, strict=True))
    verdict = _decide(small, fails=fails)
    summary = (
        f"Within 5 % on {sum(small)} of {len(small)} data sets, the least lost on "
        f"{len(behind) - sum(behind)}. Lost at the largest batch: {'; '.join(texts)}."
    )
    return study_of("large_batch", verdict, summary, numbers, charts, own)


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
    return study_of("longer_training", _all_or_none(good), summary, numbers, charts, own)


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
    return study_of("beta2", _all_or_none(good), summary, numbers, [], own)


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
    return study_of("tensor_sizes", _all_or_none(good), summary, numbers, charts, own)


FINDINGS: dict[str, Callable[[Sequence[Outcome], Reader], Study | None]] = {
    HEADLINE: headline,
    RATES: rates,
    "initialisation": initialisation,
    "warmup": warmup,
    "large_batch": large_batch,
    "longer_training": longer_training,
    "beta2": beta2,
    "tensor_sizes": tensor_sizes,
}


def all_findings(folder: Path) -> dict[str, str]:
    """The texts of `studies/*.json` by name, from the table of trials and the records."""
    outcomes = read_trials(folder / "studies" / TRIALS.name)
    files = {path.stem: path for path in (folder / "runs").rglob("*.json")} if outcomes else {}

    def read(run_id: str) -> Mapping[str, Any]:
        path = files.get(run_id.rpartition("/")[2])
        found: Mapping[str, Any] = json.loads(path.read_text()) if path else {}
        return found

    studies = {name: find(outcomes, read) for name, find in FINDINGS.items()}
    return {
        name: json.dumps(study, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        for name, study in studies.items()
        if study is not None
    }


def _with_spread(found: Mapping[str, Sequence[float]]) -> dict[str, float]:
    numbers = {}
    for name, values in found.items():
        numbers[OPTIMIZERS[name]] = fmean(values)
        if len(values) > 1:
            numbers[f"{OPTIMIZERS[name]} ±"] = stdev(values)
    return numbers


def _noise(outcomes: Sequence[Outcome], data: str) -> float:
    """The standard deviation over NovoGrad's seeds, as a part of the quality."""
    values = seeds_of(of_study(outcomes, HEADLINE), data).get(OURS, [])
    return stdev(values) / fmean(values) if len(values) > 1 else 0.0


def _decide(good: Sequence[bool], *, fails: bool) -> str:
    """By whether the claim is good on each data set."""
    if len(good) < FEWEST:
        return UNDECIDED
    return HOLDS if all(good) else FAILS if fails else UNDECIDED


def _all_or_none(good: Sequence[bool]) -> str:
    return _decide(good, fails=not any(good))


def _in_percent(parts: Mapping[str, float]) -> dict[str, float]:
    return {OPTIMIZERS[name]: 100 * part for name, part in parts.items()}


def _percents(parts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.1f} %" for name, value in _in_percent(parts).items())


def _train_loss(read: Reader, outcome: Outcome) -> float | None:
    curve = read(outcome.run_id).get("curves", {}).get("train/loss", {})
    values = [v for v in curve.get("value", []) if isinstance(v, float) and math.isfinite(v)]
    return fmean(values[-3:]) if values else None  # a step's loss is noisy
