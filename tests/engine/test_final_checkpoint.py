"""At the end of a run: which weights the final splits are evaluated with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine import run_evaluation
from engine.checkpoint import CheckpointError
from engine.distributed import Group, joined
from engine.plan import make_plan, micro_batches_of
from engine.trainer import Trainer
from tasks.base import Context, Headline
from tasks.catalog import task_class
from tests.engine.toy import Toy, ToyData, ToyModel, run_world, toy_config, weights


class LastTested(Toy):
    """The highest error of all evaluations is called the best: that of step 5."""

    headline = Headline("valid", "error", higher_is_better=True)
    final_splits = ("test",)  # of the same examples


class BestTested(LastTested):
    final_checkpoint = "best"


def make(folder: Path, group: Group, kind: type[Toy], **changes: Any) -> Trainer:
    config = toy_config(folder, **changes)
    micro_batches = micro_batches_of(config, group.world)
    context = Context(config.seed, config.batch.micro, micro_batches, 7, 0, folder)
    task = kind(ToyModel(), ToyData(), context)
    plan = make_plan(config, task.unit, task.steps_per_epoch, group.world)
    return Trainer(config, plan, task, group, folder, "toy-run")


def check_best(group: Group, folder: Path) -> None:
    trainer = make(folder, group, BestTested)
    outcome = trainer.fit()
    assert (outcome.status, trainer.at.best_step) == ("finished", 5)
    assert outcome.final["test/error"] == outcome.best["valid/error"]
    assert outcome.last["test/error"] == outcome.final["valid/error"]
    assert outcome.last["test/error"] < outcome.final["test/error"]
    best, last = trainer.store.load_best(), trainer.store.load_latest()
    assert best is not None
    assert last is not None
    assert (best.step, last.step) == (5, 20)
    assert last.state["last"] == outcome.last
    for name, value in trainer.module.state_dict().items():  # the last are in place again
        assert torch.equal(value, last.state["model"][name])
        assert not torch.equal(value, best.state["model"][name])


@pytest.mark.parametrize("world", [1, 2])
def test_the_best_checkpoint_is_tested_where_a_task_asks_for_it(tmp_path: Path, world: int):
    run_world(world, check_best, tmp_path)


def test_elsewhere_and_where_the_last_is_the_best_one_test_is_enough(tmp_path: Path):
    with joined("cpu", 60.0) as group:
        for kind, every in ((LastTested, 5), (BestTested, 20)):
            changes = {"evaluation__every": f"{every} steps"}
            outcome = make(tmp_path / kind.__name__, group, kind, **changes).fit()
            assert outcome.last == {}
            assert outcome.final["test/error"] == outcome.final["valid/error"]


def test_stopped_while_the_best_is_tested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The last weights are saved, and the test is made after resuming."""
    with joined("cpu", 60.0) as group:
        whole = make(tmp_path / "whole", group, BestTested)
        expected = whole.fit()
        stopped = make(tmp_path / "stopped", group, BestTested)
        plain, calls = run_evaluation.evaluate, []

        def evaluate(task, model, split, *others):
            calls.append(split)
            if calls.count("test") == 2:
                stopped.request_stop()
            return plain(task, model, split, *others)

        monkeypatch.setattr(run_evaluation, "evaluate", evaluate)
        assert stopped.fit().status == "preempted"
        monkeypatch.setattr(run_evaluation, "evaluate", plain)
        resumed = make(tmp_path / "stopped", group, BestTested)
        outcome = resumed.fit()
        assert (outcome.final, outcome.last) == (expected.final, expected.last)
        for ours, theirs in zip(weights(resumed), weights(whole), strict=True):
            assert torch.equal(ours, theirs)


def test_without_the_best_checkpoint_there_is_no_number(tmp_path: Path):
    with joined("cpu", 60.0) as group:
        trainer = make(tmp_path, group, BestTested)
        trainer.store.load_best = lambda: None  # type: ignore[method-assign]
        with pytest.raises(CheckpointError, match=r"the best step was 5, but best\.pt is no"):
            trainer.fit()


def test_table_7_check_best_and_no_other_table_does():
    kinds = {name: task_class(name) for name in ("imagenet", "librispeech", "wmt14", "wikitext103")}
    assert {name: kind.final_checkpoint for name, kind in kinds.items()} == {
        "imagenet": "last",
        "librispeech": "last",
        "wmt14": "last",
        "wikitext103": "best",
    }
