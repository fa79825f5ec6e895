"""Questions of the study: an answer for each data set, and by a stated rule a verdict over all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from statistics import fmean, stdev

from analysis.charts import Chart, Line
from analysis.claims import FAILS, HOLDS, UNDECIDED, StudyResult
from analysis.metrics import quality_label, quality_sign
from analysis.paper import OPTIMIZERS
from analysis.statistics import SLACK, WITHIN, PairedDifference, paired_interval
from analysis.trials import HEADLINE, TrialResult
from analysis.verdicts import Rule

OURS = "novograd"
DATA_COLOURS = (4, 5, 7)  # of lines of data sets: no optimizer's, and not the grey of a level
MIN_DATA_SETS = 2  # one data set alone decides nothing
Points = dict[float, float | None]  # mean quality by position; None where a run diverged
PERCENT = {"slack": 100 * SLACK, "within": 100 * WITHIN}  # thresholds that many rules name


@dataclass(frozen=True)
class DataTrials:
    """The results of a study on one data set, and those of the headline beside them."""

    data: str
    results: tuple[TrialResult, ...]
    headline: tuple[TrialResult, ...]

    @property
    def metric(self) -> str:
        """What the study judges this data set by."""
        return self.results[0].trial.metric

    @property
    def optimizers(self) -> list[str]:
        """In the order of all tables."""
        there = {one.trial.optimizer for one in self.results}
        return [name for name in OPTIMIZERS if name in there]

    def of(self, optimizer: str) -> list[TrialResult]:
        return [one for one in self.results if one.trial.optimizer == optimizer]

    def runs(self, optimizer: str, series: str = "") -> dict[float, list[TrialResult]]:
        """By position, in order; those of a position differ in their seeds."""
        found: dict[float, list[TrialResult]] = {}
        for one in self.of(optimizer):
            if one.trial.series == series:
                found.setdefault(one.trial.at, []).append(one)
        return dict(sorted(found.items()))

    def points(self, optimizer: str, series: str = "") -> Points:
        """Mean qualities over seeds."""
        runs = self.runs(optimizer, series)
        return {at: mean_quality(own) for at, own in runs.items()}

    def final_seeds(self) -> dict[str, dict[int, float]]:
        """The headline's qualities by optimizer and seed; only where every run finished."""
        names = [n for n in OPTIMIZERS if any(one.trial.optimizer == n for one in self.headline)]
        own = {n: [one for one in self.headline if one.trial.optimizer == n] for n in names}
        return {name: found for name in names if (found := by_seed(own[name]))}

    def best_other(self, seeds: Mapping[str, Mapping[int, float]]) -> str | None:
        """The optimizer with the best mean over seeds, NovoGrad left out."""
        others = [name for name in seeds if name != OURS]
        sign = quality_sign(self.metric)
        return max(others, key=lambda n: sign * fmean(seeds[n].values()), default=None)

    def lead(
        self, ours: Mapping[int, float], others: Mapping[int, float]
    ) -> PairedDifference | None:
        """By how many percent of the others' mean we are better, paired by at least two seeds."""
        if not others:
            return None
        unit = 100 * quality_sign(self.metric) / abs(fmean(others.values()))
        return paired_interval(
            {seed: unit * q for seed, q in ours.items()},
            {seed: unit * q for seed, q in others.items()},
        )

    def chart(
        self,
        x_label: str,
        lines: Iterable[Line],
        *,
        title: str = "",
        y: str = "",
        log_x: bool = False,
    ) -> Chart:
        """Lines along the axis; perplexities on a logarithmic scale."""
        name = y or quality_label(self.metric)
        log_y = not y and self.metric.endswith("/ppl")
        return Chart(f"{title or self.data}: {name}", x_label, name, tuple(lines), log_x, log_y)


def by_seed(runs: Iterable[TrialResult]) -> dict[int, float]:
    """Qualities by seed; empty where a run has none."""
    found = {one.trial.seed: one.quality for one in runs}
    return {} if None in found.values() else {s: q for s, q in found.items() if q is not None}


def mean_quality(runs: Iterable[TrialResult]) -> float | None:
    """None where a run has none."""
    found = by_seed(runs)
    return fmean(found.values()) if found else None


def line_of(
    name: str, points: Points, runs: Mapping[float, Sequence[TrialResult]] | None = None
) -> Line:
    """A line, mostly an optimizer's; with the spread over seeds where every point has several."""
    places = sorted(points)
    spread = None
    if runs and all(len(by_seed(runs.get(x, ()))) > 1 for x in places):
        spread = tuple(stdev(by_seed(runs[x]).values()) for x in places)
    xs = tuple(float(f"{x:.6g}") for x in places)
    return Line(OPTIMIZERS.get(name, name), xs, tuple(points[x] for x in places), spread)


@dataclass(frozen=True)
class DataAnswer:
    """What a study shows on one data set."""

    text: str = ""  # for the summary; empty where the data set is only drawn
    numbers: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    charts: tuple[Chart, ...] = ()
    line: Line | None = None  # of the chart that shows all data sets together
    counts: bool = True  # towards the verdict
    good: bool = False  # supports the claim
    bad: bool | None = None  # contradicts it; None: where it does not support it
    marks: Mapping[str, bool] = field(default_factory=dict)  # counted by name in the summary

    @property
    def contradicts(self) -> bool:
        return not self.good if self.bad is None else self.bad


@dataclass(frozen=True)
class Question:
    """A study: its rule, how it answers on a data set, and how its summary is written.

    The summary may name {good}, {counted} and {asked} data sets, {texts}, and marks. The claim
    holds if every data set that counts supports it; it does not hold if all contradict it, or with
    `by_majority` more than half. `overview` is the chart that gets a line of each data set.
    """

    study: str
    rule: Rule
    answer: Callable[[DataTrials], DataAnswer | None]
    summary: str
    by_majority: bool = False
    overview: Chart | None = None

    def result(self, results: Sequence[TrialResult]) -> StudyResult | None:
        """Over all data sets; None where there is nothing to show."""
        own = [one for one in results if one.trial.study == self.study]
        answers = [
            a for data in data_sets(own) if (a := self.answer(select(results, self.study, data)))
        ]
        if not any(answer.text for answer in answers):
            return None
        counted = [answer for answer in answers if answer.counts and answer.text]
        good = sum(answer.good for answer in counted)
        marks = {name: sum(a.marks[name] for a in counted) for a in answers for name in a.marks}
        summary = self.summary.format(
            good=good,
            counted=len(counted),
            asked=len(answers),
            texts="; ".join(answer.text for answer in answers if answer.text),
            **marks,
        )
        numbers = {
            key: {name: float(f"{value:.6g}") for name, value in values.items()}
            for answer in answers
            for key, values in answer.numbers.items()
        }
        charts = tuple(chart for answer in answers for chart in answer.charts)
        if self.overview is not None and (lines := [a.line for a in answers if a.line]):
            charts = (_with_lines(self.overview, lines), *charts)
        runs = tuple(sorted({one.run_id for one in own if one.value is not None}))
        verdict = self.verdict(counted)
        return StudyResult(self.study, self.rule, verdict, summary, numbers, charts, runs)

    def verdict(self, counted: Sequence[DataAnswer]) -> str:
        if len(counted) < MIN_DATA_SETS:
            return UNDECIDED
        if all(answer.good for answer in counted):
            return HOLDS
        bad, most = sum(answer.contradicts for answer in counted), len(counted)
        return FAILS if bad == most or (self.by_majority and 2 * bad > most) else UNDECIDED


def _with_lines(overview: Chart, lines: Sequence[Line]) -> Chart:
    """An overview with a line of each data set, and its own lines along all of their axis."""
    places = sorted({x for line in lines for x in line.x})
    span = (places[0], places[-1])
    own = tuple(replace(line, x=span, y=(line.y[0], line.y[0])) for line in overview.lines)
    coloured = (
        replace(line, colour=c) for line, c in zip(lines, cycle(DATA_COLOURS), strict=False)
    )
    return replace(overview, lines=(*own, *coloured), log_x=span[0] > 0)


def select(results: Iterable[TrialResult], study: str, data: str) -> DataTrials:
    """The results of a study on a data set."""
    of_data = [one for one in results if one.trial.data == data]
    own, headline = (
        tuple(one for one in of_data if one.trial.study == name) for name in (study, HEADLINE)
    )
    return DataTrials(data, own, headline)


def data_sets(results: Iterable[TrialResult]) -> list[str]:
    """In the order in which they appear."""
    return list(dict.fromkeys(one.trial.data for one in results))


def by_name(values: Mapping[str, float]) -> dict[str, float]:
    """Numbers of optimizers by the names that tables use."""
    return {OPTIMIZERS[name]: value for name, value in values.items()}


def in_percent(parts: Mapping[str, float]) -> dict[str, float]:
    """The same of parts of a whole."""
    return by_name({name: 100 * part for name, part in parts.items()})


def percents(parts: Mapping[str, float]) -> str:
    """For a summary."""
    return ", ".join(f"{name} {value:.1f} %" for name, value in in_percent(parts).items())
