"""The tree of configs: every file composes, every pair that is silently optional exists."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from engine.config import SCALES, read_config, recipe_fingerprint
from launch.compose import _compose_groups, collect, compose, options_of
from tasks.catalog import TASKS
from tests.launch.recipes import FROZEN, recipes

ROOT = Path(__file__).parents[2]


def test_every_task_shrinks_to_every_scale():
    """Hydra skips a missing optional file silently."""
    for task in TASKS:
        for scale in SCALES:
            if scale != "paper":
                assert (ROOT / "configs" / "shrink" / f"{scale}_{task}.yaml").exists()


@pytest.mark.parametrize("small", ["an4", "mini_librispeech"])
def test_real_speech_keeps_a_test_set_that_tuning_does_not_see(small: str):
    raw = compose(["experiment=librispeech/novograd", "scale=mini", f"small_data={small}"])
    assert raw["data"]["validate_every"] == 2  # its dev-clean is too small, or the paper's own


def test_every_small_data_set_fits_every_small_scale():
    """A set without a file is as the scale's own: only WikiText-2 in few passes."""
    pairs = {f"{s}_{d}" for s in ("mini", "short") for d in options_of("small_data") if d != "own"}
    files = {path.stem for path in (ROOT / "configs" / "fit").glob("*.yaml")}
    assert pairs - files == {"short_wikitext_2"}
    assert files <= pairs


def test_the_paper_scale_changes_nothing():
    assert yaml.safe_load((ROOT / "configs/scale/paper.yaml").read_text()) == {}
    assert not list((ROOT / "configs/shrink").glob("paper_*"))


def test_later_wins_and_hardware_changes_no_science():
    base = compose(["experiment=imagenet/novograd_100ep", "scale=paper"])
    other = compose(["experiment=imagenet/novograd_100ep", "scale=paper", "hardware=dgx1"])
    assert base["budget"] == "100 epochs"
    assert {k for k in base if base[k] != other[k]} == {"hardware"}


def test_table_1_is_planned_as_the_paper_has_it():
    """1,251 steps an epoch, 125,100 in all, 128 images per GPU, on eight GPUs."""
    from engine.plan import make_plan

    for name in ("novograd_100ep", "sgd_100ep", "adamw_100ep"):
        config = read_config(compose([f"experiment=imagenet/{name}", "scale=paper"]))
        plan = make_plan(config, "image", 1_281_167 // config.batch.global_size, 8)
        assert (plan.steps, plan.accumulation, plan.micro) == (125_100, 1, 128)
        assert plan.warmup == 0


@pytest.mark.parametrize("every_scale", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_experiment_composes_and_changes_by_intent_only(every_scale):
    """After an intended change: python -m tests.launch.recipes."""
    frozen, found = json.loads(FROZEN.read_text()), {}
    for name, config in recipes(every_scale=every_scale):
        assert config.experiment == name.split()[0]
        assert config.batch.global_size % config.batch.micro == 0
        found[name] = recipe_fingerprint(config)
    assert found == (frozen if every_scale else {name: frozen[name] for name in found})
    assert {name.split()[0] for name in found} == {name.split()[0] for name in frozen}


def changes(*overrides: str) -> dict[str, list[object]]:
    problems: list[str] = []
    composed = collect(["experiment=imagenet/novograd_100ep", *overrides], problems)
    assert composed is not None
    assert not problems
    return composed[1].changed_by_scale


def test_what_a_scale_changes_is_known_key_by_key():
    found = changes("scale=short")
    assert found["optimizer.lr"] == [0.007, 0.00928]
    assert found["optimizer.weight_decay"] == [0.002, 0.0002]
    assert found["budget"] == ["100 epochs", "1 epochs"]
    assert found["batch.global_size"] == [1024, 64]
    assert found["data.name"] == ["imagenet", "cifar10"]
    assert not any(key.startswith(("multiply", "paths", "hardware", "tracking")) for key in found)
    assert changes("scale=paper") == {}


def test_a_users_override_is_no_change_of_the_scale():
    found = changes("scale=short", "optimizer.lr=0.3", "model.width=32")
    assert not {"optimizer.lr", "model.width"} & set(found)
    assert found["budget"] == ["100 epochs", "1 epochs"]
    assert changes("scale=paper", "optimizer.lr=0.3") == {}


@pytest.mark.parametrize(
    ("root", "folder"), [(None, "data"), ("", "data"), ("/some/where", "/some/where")]
)
def test_small_data_are_below_data_root_if_that_is_set(root, folder, monkeypatch):
    monkeypatch.delenv("DATA_ROOT", raising=False)
    if root is not None:
        monkeypatch.setenv("DATA_ROOT", root)
    _compose_groups.cache_clear()
    raw = compose(["experiment=librispeech/novograd", "scale=mini", "small_data=an4"])
    _compose_groups.cache_clear()
    assert raw["paths"]["data"] == folder


def test_machines_state_their_difference_only():
    base = yaml.safe_load((ROOT / "configs/hardware/base.yaml").read_text())
    for name in options_of("hardware"):
        own = yaml.safe_load((ROOT / f"configs/hardware/{name}.yaml").read_text())
        assert "base" in own.pop("defaults")
        assert not {key for key, value in own.items() if base[key] == value}, name
