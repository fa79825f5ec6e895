"""A verdict is of the paper's scale, of all numbers of a row, and fair to what is better."""

from __future__ import annotations

import math

import pytest

from results.ledger import Summary
from results.schema import Row, Table
from results.verdict import count, judge

TABLE = Table(0, "task", "", {"val/top1": 0.3, "val/top5": 0.3, "dev-clean/wer": 0.3}, ())


def row(**metrics: float) -> Row:
    names = {"top1": "val/top1", "top5": "val/top5", "wer": "dev-clean/wer"}
    return Row("a", {}, {names[k]: v for k, v in metrics.items()}, experiment="task/a")


def ours(row: Row, *values: float) -> dict[str, Summary | None]:
    return {m: Summary(v, None, 1) for m, v in zip(row.metrics, values, strict=True)}


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
    assert judge(one, TABLE, ours(one, measured)).kind == kind


def test_all_numbers_count_and_the_gap_is_told():
    two = row(top1=76.38, top5=93.08)
    verdict = judge(two, TABLE, ours(two, 76.40, 92.50))
    assert verdict.kind == "differs"
    assert str(verdict) == "differs: val top-5 −0.58"
    assert [gap.within for gap in verdict.gaps] == [True, False]


def test_without_runs_nothing_is_said():
    one = row(top1=76.38)
    assert str(judge(one, TABLE, {"val/top1": None})) == "not run"
    assert str(judge(one, TABLE, {})) == "not run"


def test_a_run_that_did_not_measure_a_number_is_refused():
    two = row(top1=76.38, top5=93.08)
    with pytest.raises(ValueError, match="did not measure val/top5"):
        judge(two, TABLE, {"val/top1": Summary(76.0, None, 1), "val/top5": None})


def test_rows_without_a_number_and_cited_ones_get_no_verdict():
    measured = {"val/top1": Summary(76.0, None, 1)}
    silent = Row("a", {}, {}, experiment="task/a")
    assert judge(silent, TABLE, measured).kind == "no number"
    cited = Row("a", {}, {"val/top1": 76.0}, cited="somebody", rerun="task/a")
    assert judge(cited, TABLE, measured).kind == "cited"


def test_counting():
    one = row(top1=76.38)
    verdicts = [judge(one, TABLE, ours(one, value)) for value in (76.38, 76.38, 1.0)]
    assert count(verdicts) == {"reproduced": 2, "differs": 1, "not run": 0}
