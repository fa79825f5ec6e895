"""The same weights whatever the number of processes and the accumulation, in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from engine.distributed import Group
from engine.evaluation import evaluate
from engine.trainer import Trainer
from tasks.base import Batch, Carry, Context, Counts
from tests.engine.toy import (
    LENGTH,
    Toy,
    ToyData,
    ToyModel,
    fit,
    make_trainer,
    run_world,
    toy_config,
    weights,
)

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


FOUR = pytest.param(4, marks=pytest.mark.slow)


class Results(dict[int, Any]):
    """By the number of processes; made when they are asked for."""

    def __init__(self, new_folder: Callable[[str], Path]) -> None:
        self._new_folder = new_folder

    def __missing__(self, world: int) -> Any:
        folder = self._new_folder(f"world{world}")
        run_world(world, train_all, str(folder))
        self[world] = torch.load(folder / "results.pt", weights_only=True)
        return self[world]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return Results(tmp_path_factory.mktemp)


@pytest.mark.parametrize("world", [1, 2, FOUR])
@pytest.mark.parametrize("accumulation", [1, 2, 4])
def test_worlds_and_accumulations_agree_with_uneven_micro_batches(results, world, accumulation):
    one_batch = results[1][0]["accumulation 1"]  # the whole batch at once
    for a, b in zip(one_batch, results[world][0][f"accumulation {accumulation}"], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("world", [2, FOUR])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_dropout_and_carry_belong_to_the_slot_not_to_the_process(results, world, name):
    for a, b in zip(results[1][0][name], results[world][0][name], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("world", [1, 2, FOUR])
def test_evaluation_counts_every_example_once_on_any_world_and_batch_size(results, world):
    for batch in (1, 7, 64):
        found = results[world][1][batch]
        assert found["examples"] == 37
        assert found["tokens"] == results[1][1][1]["tokens"]
        assert found["error"] == pytest.approx(results[1][1][1]["error"], rel=1e-14)


class Census(Toy):
    """Counts in whole numbers: no order of summation can hide an example, or count one twice."""

    def count(self, model: nn.Module, batch: Batch, carry: Carry) -> tuple[Counts, Carry]:
        x, mask = batch.tensors["x"], batch.tensors["mask"]
        hits = ((model(x) > 0) & mask).sum().item()
        seen = sum(2.0 ** (index - 1000) for index in batch.tensors["index"].tolist())
        tokens = float(mask.sum())
        return {"examples": batch.units, "tokens": tokens, "hits": hits, "seen": seen}, None

    def summarize(self, split: str, counts: Mapping[str, float]) -> dict[str, float]:
        return dict(counts)


def take_census(group: Group, folder: str) -> None:
    found = {}
    for batch in (1, 7, 64):
        task = Census(ToyModel(), ToyData(), Context(1, 2, group.world, batch, 0, Path()))
        torch.manual_seed(0)
        module = task.build_model().double()
        found[batch] = evaluate(task, module, "valid", group, "fp64")
    torch.save(found, Path(folder) / f"{group.rank}.pt")


def test_evaluation_counts_are_the_same_numbers_on_worlds_that_do_not_divide_the_data(tmp_path):
    """37 examples; with batches of 64 only the first process has any."""
    whole = None
    for world in (1, 2, 3):
        folder = tmp_path / str(world)
        folder.mkdir()
        run_world(world, take_census, str(folder))
        for rank in range(world):
            found = torch.load(folder / f"{rank}.pt", weights_only=True)
            whole = whole or found[1]
            assert found == dict.fromkeys((1, 7, 64), whole)
    assert whole is not None
    tokens = sum(1 + (1000 + i) % LENGTH for i in range(37))
    assert {"examples": 37, "tokens": tokens, "seen": 2.0**37 - 1}.items() <= whole.items()
    assert 0 < whole["hits"] < tokens


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
