"""Telemetry is what the optimizer's steps did, and changes nothing in them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import recipe_fingerprint
from engine.distributed import Group
from engine.rows import TELEMETRY, read_rows, thin_curves
from engine.telemetry import layer_group
from tests.engine.toy import fit, make_trainer, toy_config, weights

CPU = Group(0, 1, torch.device("cpu"))
OPTIMIZERS = [
    {"name": "novograd", "lr": 0.05, "weight_decay": 0.01},
    {"name": "adam", "lr": 0.01},
    {"name": "sgd", "lr": 0.1, "momentum": 0.9},
]


def changing(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    """Rows without telemetry, and without what differs from run to run."""
    return [
        {k: v for k, v in row.items() if not k.startswith((TELEMETRY, "speed/", "wall_s"))}
        for row in rows
    ]


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("blocks.3.body.0.weight", "blocks.3"),
        ("decoder.1.attention.q.weight", "decoder.1"),
        ("head.bias", "head"),
        ("embedding", "embedding"),
    ],
)
def test_layer_groups_follow_the_names(name, group):
    assert layer_group(name) == group


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=["novograd", "adam", "sgd"])
def test_switched_on_it_changes_no_bit_of_a_run(tmp_path, optimizer):
    given: dict[str, Any] = {"optimizer": optimizer, "gradient__clip_norm": 0.5}
    config = toy_config(tmp_path, **given)
    with_it = toy_config(tmp_path, **given, tracking__optimizer_every="4 steps")
    assert recipe_fingerprint(with_it) == recipe_fingerprint(config)
    plain, _ = fit(config, CPU, tmp_path / "off")
    measured, _ = fit(with_it, CPU, tmp_path / "on")
    for a, b in zip(weights(plain), weights(measured), strict=True):
        assert torch.equal(a, b)
    off, on = (read_rows(tmp_path / name / "metrics.jsonl") for name in ("off", "on"))
    assert changing(on) == changing(off)
    assert not any(key.startswith(TELEMETRY) for row in off for key in row)
    # Rows are logged every 3 steps: 4 steps become 6.
    found = [row["step"] for row in on if any(key.startswith(TELEMETRY) for key in row)]
    assert found == [6, 12, 18]
    assert thin_curves(on) == thin_curves(off)


@pytest.mark.parametrize("by", ["layer", "tensor"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=["novograd", "adam", "sgd"])
def test_values_are_those_of_the_steps(tmp_path, optimizer, by):
    """In float64, against the weights before and after each step and the optimizer's state."""
    changes = {"tracking__optimizer_every": "3 steps", "tracking__optimizer_by": by}
    config = toy_config(tmp_path, optimizer=optimizer, gradient__clip_norm=0.5, **changes)
    trainer = make_trainer(config, CPU, tmp_path)
    wanted: list[dict[str, dict[str, list[float]]]] = []
    before: list[torch.Tensor] = []

    def norms() -> dict[str, dict[str, list[float]]]:
        found: dict[str, dict[str, list[float]]] = {}
        for (name, p), old in zip(trainer.module.named_parameters(), before, strict=True):
            assert p.grad is not None
            one = found.setdefault(name if by == "tensor" else name.split(".")[0], {})
            one.setdefault("gradient_norm", []).append(float(p.grad.norm()))
            one.setdefault("update", []).append(float((p.detach() - old).norm()))
            one.setdefault("weight", []).append(float(p.detach().norm()))
            v = trainer.optimizer.state[p].get("exp_avg_sq")
            if v is not None:
                one.setdefault("second_moment_root", []).append(float(v.sum().sqrt()))
        return found

    trainer.optimizer.register_step_pre_hook(
        lambda *_: before.__setitem__(slice(None), weights(trainer))
    )
    trainer.optimizer.register_step_post_hook(lambda *_: wanted.append(norms()))
    trainer.fit()
    measured = 0
    for row in read_rows(tmp_path / "metrics.jsonl"):
        columns = {k: v for k, v in row.items() if k.startswith(TELEMETRY)}
        if not columns:
            continue
        step = wanted[int(row["step"]) - 1]
        expected = {}
        factor = 1.0
        if optimizer["name"] == "novograd":  # its gradients are scaled inside the step
            given = [n for parts in step.values() for n in parts["gradient_norm"]]
            exact = row["train/grad_norm"]
            factor = exact / math.hypot(*given) * min(1.0, 0.5 / (exact + 1e-6))
        for group, parts in step.items():
            update, weight = math.hypot(*parts.pop("update")), math.hypot(*parts.pop("weight"))
            for quantity, values in parts.items():
                scale = factor if quantity == "gradient_norm" else 1.0
                expected[f"{TELEMETRY}{quantity}/{group}"] = math.hypot(*values) * scale
            expected[f"{TELEMETRY}update_ratio/{group}"] = update / weight
        assert columns == pytest.approx(expected, rel=1e-9)
        measured += 1
    assert measured == 6


def test_a_bad_duration_is_named(tmp_path: Path):
    config = toy_config(tmp_path, tracking__optimizer_every="often")
    with pytest.raises(Exception, match=r"tracking\.optimizer_every must be a duration"):
        make_trainer(config, CPU, tmp_path)
