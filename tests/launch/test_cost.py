"""What `scripts.plan` prints of a run that is not run."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import yaml

from engine.plan import make_plan, reach
from launch import cost
from launch.run_spec import RunSpec, make_run_spec
from scripts import plan
from tests.engine.toy import toy_config

ROOT = Path(__file__).parents[2]


def spec_of(experiment: str, scale: str = "paper") -> RunSpec:
    return make_run_spec([f"experiment={experiment}", f"scale={scale}"], need_data=False)


def test_reach_by_hand(tmp_path: Path):
    """A constant rate of 0.5 for 20 steps, β1 = 0.9: 100 in all; 30 weights of 10, 10 of norm 4."""
    config = toy_config(tmp_path, optimizer__lr=0.5, schedule={"shape": "constant"})
    plan = make_plan(config, "example", 12, 1)
    assert reach(plan, 0.9, [(30, 10.0), (10, 4.0), (7, 0.0)]) == pytest.approx(
        (30 * 10 + 10 * 25) / 40
    )
    assert math.isnan(reach(plan, 0.9, [(7, 0.0)]))


@cache
def reach_per_rate(task: str) -> float:
    """The reach for a sum of learning rates of 1: all that the rows of a task differ in."""
    spec = spec_of("imagenet/novograd_100ep" if task == "imagenet" else f"{task}/novograd")
    return cost.reach_of(spec) / sum_of_rates(spec)


def sum_of_rates(spec: RunSpec) -> float:
    return sum(map(spec.plan.schedule, range(spec.plan.steps)))


@pytest.mark.parametrize(
    ("experiment", "expected"),
    [
        ("imagenet/novograd_100ep", 378),
        ("imagenet/novograd_32k_90ep", 39.4),
        pytest.param("librispeech/novograd", 2340, marks=pytest.mark.slow),
        pytest.param("librispeech/novograd_32k", 59.8, marks=pytest.mark.slow),
        pytest.param("wmt14/novograd", 1071, marks=pytest.mark.slow),
        pytest.param("wikitext103/novograd", 720, marks=pytest.mark.slow),
    ],
)
def test_reach_of_the_papers_rows(experiment: str, expected: float):
    """Slow where the model is large: its initial weights are drawn."""
    spec = spec_of(experiment)
    found = reach_per_rate(spec.config.task.name) * sum_of_rates(spec)
    assert found == pytest.approx(expected, rel=0.005)


@pytest.mark.slow
def test_the_papers_least_and_most():
    rows = [
        row
        for file in sorted((ROOT / "results/paper").glob("table*.yaml"))
        for row in yaml.safe_load(file.read_text())["rows"]
    ]
    names = {row["experiment"] for row in rows if "/novograd" in row.get("experiment", "")}
    assert len(names) > 10
    specs = [spec_of(name) for name in sorted(names)]
    found = [reach_per_rate(spec.config.task.name) * sum_of_rates(spec) for spec in specs]
    assert (math.floor(min(found)), round(max(found), -1)) == cost.PAPER_REACH


def test_an_initial_gain_shortens_it():
    spec = spec_of("imagenet/novograd_100ep", "mini")
    doubled = replace(spec, config=replace(spec.config, init_gain=2.0))
    assert cost.reach_of(doubled) < cost.reach_of(spec)


def test_the_line_is_printed_for_novograd_only(
    capsys: pytest.CaptureFixture[str],
):
    for row, there in (("novograd_100ep", True), ("sgd_100ep", False)):
        assert plan.main([f"experiment=imagenet/{row}", "scale=smoke"]) == 0
        lines = [x for x in capsys.readouterr().out.splitlines() if x.startswith("reach ")]
        assert len(lines) == there
    assert cost.about_reach(2339.9).startswith("reach      2,340 initial norms: ")


def test_the_optimizers_implementation_does_not_matter():
    overrides = ["experiment=imagenet/novograd_100ep", "scale=smoke"]
    plain = make_run_spec(overrides, need_data=False)
    fused = make_run_spec([*overrides, "+optimizer.fused=true"], need_data=False)
    assert cost.count_cost(fused) == cost.count_cost(plain)
