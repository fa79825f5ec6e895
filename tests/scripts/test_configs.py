"""The tree of configs: every file composes, every pair that is silently optional exists."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from engine.config import SCALES, read_config
from scripts import launch
from tasks.catalog import TASKS

ROOT = Path(__file__).parents[2]
EXPERIMENTS = launch.options_of("experiment")


@pytest.mark.parametrize("experiment", EXPERIMENTS)
@pytest.mark.parametrize("scale", SCALES)
def test_every_experiment_composes_at_every_scale(experiment, scale):
    config = read_config(launch.compose([f"experiment={experiment}", f"scale={scale}"]))
    assert config.experiment == experiment
    assert config.batch.global_size % config.batch.micro == 0


def test_every_task_shrinks_to_every_scale():
    """Hydra skips a missing optional file without a word."""
    for task in TASKS:
        for scale in SCALES:
            if scale != "paper":
                assert (ROOT / "configs" / "shrink" / f"{scale}_{task}.yaml").exists()


def test_the_paper_scale_changes_nothing():
    assert yaml.safe_load((ROOT / "configs/scale/paper.yaml").read_text()) == {}
    assert not list((ROOT / "configs/shrink").glob("paper_*"))


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_says_what_it_is(experiment):
    head = (ROOT / "configs/experiment" / f"{experiment}.yaml").read_text().splitlines()[:6]
    assert any("Table" in line for line in head)
    assert any(f"python -m scripts.launch experiment={experiment}" in line for line in head)


def test_later_wins_and_hardware_changes_no_science():
    base = launch.compose(["experiment=imagenet/novograd_100ep", "scale=paper"])
    other = launch.compose(["experiment=imagenet/novograd_100ep", "scale=paper", "hardware=dgx1"])
    assert base["budget"] == "100 epochs"
    assert {k for k in base if base[k] != other[k]} == {"hardware"}


def test_table_1_is_planned_as_the_paper_has_it():
    """1,251 steps an epoch, 125,100 in all, 128 images per GPU, on eight GPUs."""
    from engine.plan import make_plan

    for name in ("novograd_100ep", "sgd_100ep", "adamw_100ep"):
        config = read_config(launch.compose([f"experiment=imagenet/{name}", "scale=paper"]))
        plan = make_plan(config, "image", 1_281_167 // config.batch.global_size, 8)
        assert (plan.steps, plan.accumulation, plan.micro) == (125_100, 1, 128)
        assert plan.warmup == 0
