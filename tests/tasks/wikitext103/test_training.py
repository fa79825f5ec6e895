"""Transformer-XL through the engine: the memory is part of what is resumed and shared out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from engine.config import RunConfig, read_config
from engine.distributed import Group
from engine.plan import make_plan, micro_batches_of
from engine.rows import read_rows
from engine.trainer import Trainer
from launch.compose import compose
from launch.run_spec import make_task
from tests.engine.toy import run_world

ALONE = Group(0, 1, torch.device("cpu"))


def config_of(data: Path) -> RunConfig:
    """The smoke scale in float64, with dropout; 14 steps end neither an epoch nor at a save."""
    words = ["experiment=wikitext103/novograd", "scale=smoke", "hardware=cpu", f"paths.data={data}"]
    words += ["hardware.precision=fp64", "budget='14 steps'", "checkpoint.every='6 steps'"]
    words += [
        "batch.global_size=512",
        "tracking.log_every='2 steps'",
        "evaluation.every='14 steps'",
    ]
    config = read_config(compose(words))
    return replace(config, hardware=replace(config.hardware, processes=1))


def make_trainer(config: RunConfig, group: Group, folder: Path) -> Trainer:
    folder.mkdir(exist_ok=True)
    task = make_task(config, micro_batches_of(config, group.world))
    task.prepare_data()
    plan = make_plan(config, task.unit, task.steps_per_epoch, group.world)
    return Trainer(config, plan, task, group, folder, "wiki")


def weights(trainer: Trainer) -> list[torch.Tensor]:
    return [p.detach().clone() for p in trainer.module.parameters()]


def rows(folder: Path) -> list[dict[str, Any]]:
    timed = ("wall_s", "speed/units_per_s", "speed/data_wait")
    return [
        {k: v for k, v in r.items() if k not in timed} for r in read_rows(folder / "metrics.jsonl")
    ]


def test_a_run_stopped_in_mid_epoch_resumes_bit_for_bit(tmp_path: Path):
    config = config_of(tmp_path / "data")
    whole = make_trainer(config, ALONE, tmp_path / "whole")
    assert whole.fit().status == "finished"
    stopped = make_trainer(config, ALONE, tmp_path / "parts")
    run = stopped.stepper.run

    def stop_after_eight(step: int, *arguments: Any, **options: Any) -> Any:
        if step == 8:
            stopped.request_stop()
        return run(step, *arguments, **options)

    stopped.stepper.run = stop_after_eight  # type: ignore[method-assign]
    outcome = stopped.fit()
    assert outcome.status == "preempted"
    assert 0 < outcome.step < 14
    assert stopped.plan.steps_per_epoch > outcome.step
    resumed = make_trainer(config, ALONE, tmp_path / "parts")
    assert resumed.fit().status == "finished"
    for a, b in zip(weights(whole), weights(resumed), strict=True):
        assert torch.equal(a, b)
    assert rows(tmp_path / "whole") == rows(tmp_path / "parts")


def train_in_a_world(group: Group, folder: Path) -> None:
    trainer = make_trainer(config_of(folder / "data"), group, folder / f"world-{group.world}")
    assert trainer.fit().status == "finished"
    if group.is_first:
        torch.save(weights(trainer), folder / f"world-{group.world}.pt")


def test_worlds_of_one_and_two_learn_the_same(tmp_path: Path):
    """Columns, memories and dropout belong to micro-batches, not to processes."""
    train_in_a_world(ALONE, tmp_path)
    run_world(2, train_in_a_world, tmp_path)
    one, two = (torch.load(tmp_path / f"world-{n}.pt", weights_only=True) for n in (1, 2))
    for a, b in zip(one, two, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
