"""A run's numbers beside the paper's, for every row."""

from __future__ import annotations

import pytest

from analysis.paper import read_paper
from launch.paper_row import compare_with_paper, paper_row

ROWS = [(table, row) for table in read_paper() for row in table.rows if row.experiment]


@pytest.mark.parametrize(("table", "row"), ROWS, ids=[row.row for _, row in ROWS])
def test_every_row_is_judged_at_the_papers_scale_only(table, row):
    """A run measures all metrics of its table, also those that the paper leaves out of a row."""
    experiment = str(row.experiment)
    final = {name: row.metrics.get(name, 1.0) for name in table.tolerance}
    verdict = "reproduced (one run)" if row.metrics else "no number (one run)"
    assert compare_with_paper(experiment, "paper", final)["paper/verdict"] == verdict
    small = compare_with_paper(experiment, "mini", final)["paper/verdict"]
    assert small == "not comparable: scale mini"
    assert paper_row(experiment)["metrics"] == row.metrics


def test_other_experiments_have_no_row():
    assert paper_row("toy/run") == compare_with_paper("toy/run", "paper", {}) == {}
