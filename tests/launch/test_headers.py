"""The headers of experiments: table and row, what the paper reached, hours, the command."""

from __future__ import annotations

import pytest

from launch.compose import options_of
from launch.cost import count_cost, describe_cost
from launch.estimate import Estimator
from launch.run_spec import make_run_spec
from tests.launch.headers import HARDWARE, header_lines, paper_line, path_of, rewritten

EXPERIMENTS = options_of("experiment")


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_table_paper_and_command(experiment):
    head = path_of(experiment).read_text().split("defaults:")[0]
    assert "Table" in head
    assert f"\n#   {paper_line(experiment)}\n" in head
    assert head.endswith(f"\n#   python -m scripts.launch experiment={experiment}\n")


def test_hours_are_those_of_the_plan():
    """Of one experiment; a slow test has all of them."""
    experiment = "imagenet/sgd_200ep"
    lines = header_lines(experiment, Estimator([]))
    assert rewritten(path_of(experiment).read_text(), lines) == path_of(experiment).read_text()
    overrides = [f"experiment={experiment}", "scale=paper", f"hardware={HARDWARE}"]
    spec = make_run_spec(overrides, need_data=False)
    (time,) = (x for x in describe_cost(spec, count_cost(spec)).splitlines() if x[:4] == "time")
    hours = lines[1].removeprefix("#   about ").split(" on ")[0]
    assert time.split(maxsplit=1)[1].startswith(f"{hours} if ")


@pytest.mark.slow
def test_all_headers_are_up_to_date():
    """After a change of recipes or of hardware.tflops: python -m tests.launch.headers."""
    estimator = Estimator([])
    stale = [
        name
        for name in EXPERIMENTS
        if rewritten(text := path_of(name).read_text(), header_lines(name, estimator)) != text
    ]
    assert not stale
