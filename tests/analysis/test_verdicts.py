"""Verdicts of rows: every metric counts, and better than the paper counts as reproduced."""

from __future__ import annotations

import math

import pytest

from analysis.paper import Row, Table
from analysis.summaries import Cell, Summary
from analysis.verdicts import Rule, count, judge, tolerance_rule

TABLE = Table(0, "task", "", {"val/top1": 0.3, "val/top5": 0.3, "dev-clean/wer": 0.3}, ())


def row(**metrics: float) -> Row:
    names = {"top1": "val/top1", "top5": "val/top5", "wer": "dev-clean/wer"}
    return Row("a", {}, {names[k]: v for k, v in metrics.items()}, experiment="task/a")


def ours(*values: float | None) -> Cell:
    """The cell of one run; None for what it did not measure."""
    return Cell(tuple(None if v is None else Summary(v, None, 1) for v in values), 1)


@pytest.mark.parametrize(
    ("metric", "paper", "measured", "kind"),
    [
        ("top1", 76.38, 76.38, "reproduced"),
        ("top1", 76.38, 76.08, "reproduced"),  # exactly the tolerance, but for binary rounding
        ("top1", 76.38, 76.07, "differs"),
        ("top1", 76.38, 99.0, "reproduced"),
        ("wer", 3.71, 4.01, "reproduced"),
        ("wer", 3.71, 4.02, "differs"),
        ("wer", 3.71, 1.0, "reproduced"),
        ("wer", 3.71, math.nan, "differs"),
        ("wer", 3.71, math.inf, "differs"),
    ],
)
def test_within_the_tolerance_or_better(metric, paper, measured, kind):
    one = row(**{metric: paper})
    assert judge(one, TABLE, ours(measured)).kind == kind


def test_every_metric_counts_and_gaps_are_shown():
    two = row(top1=76.38, top5=93.08)
    verdict = judge(two, TABLE, ours(76.40, 92.50))
    assert verdict.kind == "differs"
    assert str(verdict) == "differs: val top-5 −0.58"
    assert [gap.within for gap in verdict.gaps] == [True, False]


def test_without_runs_the_verdict_is_not_run():
    one = row(top1=76.38)
    assert str(judge(one, TABLE, Cell((None,), 0))) == "not run"


def test_a_row_whose_runs_all_diverged_differs():
    verdict = judge(row(top1=76.38), TABLE, Cell((None,), 0, diverged=2))
    assert (verdict.kind, str(verdict)) == ("differs", "differs: all runs diverged")


def test_a_run_that_did_not_measure_a_number_is_refused():
    two = row(top1=76.38, top5=93.08)
    with pytest.raises(ValueError, match="did not measure val/top5"):
        judge(two, TABLE, ours(76.0, None))


def test_rows_without_a_number_and_cited_ones_get_no_verdict():
    silent = Row("a", {}, {}, experiment="task/a")
    assert judge(silent, TABLE, ours(76.0, 93.0, 4.0)).kind == "no number"
    cited = Row("a", {}, {"val/top1": 76.0}, cited="somebody", rerun="task/a")
    assert judge(cited, TABLE, ours(76.0)).kind == "cited"


def test_verdicts_are_counted():
    one = row(top1=76.38)
    verdicts = [judge(one, TABLE, ours(value)) for value in (76.38, 76.38, 1.0)]
    assert count(verdicts) == {"reproduced": 2, "differs": 1, "not run": 0}


def test_rules_show_their_thresholds():
    assert str(Rule("within {within:g} %", {"within": 5})) == "within 5 %"
    assert str(tolerance_rule(TABLE)) == "tolerance 0.3"
    mixed = Table(0, "task", "", {"dev-clean/wer": 0.3, "dev-other/wer": 0.6}, ())
    rule = tolerance_rule(mixed)
    assert str(rule) == "tolerance 0.3 (dev-clean WER), 0.6 (dev-other WER)"
    assert rule.thresholds == mixed.tolerance
