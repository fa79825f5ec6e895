"""The same weights whatever the number of processes and the accumulation, in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.distributed import Group
from engine.evaluation import evaluate
from engine.trainer import Trainer
from tests.engine.toy import fit, make_trainer, run_world, toy_config, weights

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "novograd": {},
    "clipped": {"gradient__clip_norm": 0.05, "gradient__larc": {"trust": 0.01}},
    "sgd": {"optimizer": {"name": "sgd", "lr": 0.05}},
    "adamw": {"optimizer": {"name": "adamw", "lr": 0.01}},
}


def train_all(group: Group, folder: str) -> None:
    """Every accumulation for this world, and every optimizer with dropout and carry."""
    results = {}
    for accumulation in (1, 2, 4):
        config = toy_config(Path(folder), batch__micro=16 // (group.world * accumulation))
        results[f"accumulation {accumulation}"] = run(config, group, folder)
    for name, changes in OPTIMIZERS.items():
        config = toy_config(Path(folder), model__dropout=0.3, model__carry=0.1, **changes)
        results[name] = run(config, group, folder)
    counts = {}
    for batch in (1, 7, 64):
        trainer = make_trainer(toy_config(Path(folder), evaluation__batch=batch), group, Path())
        metrics = evaluate(trainer.task, trainer.module, "valid", group, "fp64")
        assert metrics is not None
        counts[batch] = metrics
    if group.is_first:
        torch.save((results, counts), Path(folder) / "results.pt")


def run(config: Any, group: Group, folder: str) -> list[torch.Tensor]:
    import shutil

    runs = Path(folder) / "run"
    trainer: Trainer
    trainer, outcome = fit(config, group, runs)
    assert outcome.status == "finished"
    group.wait_for_all()
    if group.is_first:
        shutil.rmtree(runs)
    group.wait_for_all()
    return weights(trainer)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    found = {}
    for world in (1, 2, 4):
        folder = tmp_path_factory.mktemp(f"world{world}")
        run_world(world, train_all, str(folder))
        found[world] = torch.load(folder / "results.pt", weights_only=True)
    return found


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("accumulation", [1, 2, 4])
def test_worlds_and_accumulations_agree_with_uneven_micro_batches(results, world, accumulation):
    one_batch = results[1][0]["accumulation 1"]  # the whole batch at once
    for a, b in zip(one_batch, results[world][0][f"accumulation {accumulation}"], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_dropout_and_carry_belong_to_the_slot_not_to_the_process(results, world, name):
    for a, b in zip(results[1][0][name], results[world][0][name], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_evaluation_counts_every_example_once_on_any_world_and_batch_size(results):
    for world in (1, 2, 4):
        for batch in (1, 7, 64):
            found = results[world][1][batch]
            assert found["examples"] == 37
            assert found["tokens"] == results[1][1][1]["tokens"]
            assert found["error"] == pytest.approx(results[1][1][1]["error"], rel=1e-14)


def count_all_reduces(group: Group, folder: str) -> None:
    """DDP communicates once per bucket and step, in the last micro-batch; the tally once."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    trainer = make_trainer(toy_config(Path(folder)), group, Path(folder) / "counted")
    calls = 0

    def hook(state, bucket):  # DDP looks at annotations: none, or its own
        nonlocal calls
        calls += 1
        return allreduce_hook(state, bucket)

    trainer.model.register_comm_hook(None, hook)  # type: ignore[operator]
    trainer.fit()
    assert trainer.plan.accumulation == 4
    assert calls == trainer.plan.steps  # one bucket


def test_gradients_are_communicated_once_per_step(tmp_path):
    run_world(2, count_all_reduces, str(tmp_path))
