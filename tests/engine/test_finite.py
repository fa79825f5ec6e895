"""NaN and infinities are found before they are saved, and named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.distributed import Group
from engine.finite import find_non_finite
from engine.trainer import Trainer
from tasks.base import Batch, DataProblem
from tests.engine.toy import make_trainer, run_world, toy_config

NAN, INF = float("nan"), float("inf")


def alone(folder: Path, **changes: Any) -> Trainer:
    return make_trainer(toy_config(folder, **changes), Group(0, 1, torch.device("cpu")), folder)


def put(trainer: Trainer, example: int, value: float) -> None:
    """Has an example of the data hold a value."""
    make = trainer.task._batch  # type: ignore[attr-defined]

    def batch(items: list[Any]) -> Batch:
        made: Batch = make(items)
        made.tensors["x"][made.tensors["index"] == example, 0, 2] = value
        return made

    trainer.task._batch = batch  # type: ignore[attr-defined]


def before_step(trainer: Trainer, step: int, do: Any) -> None:
    """Calls something between the loss of a step and its update."""
    prepare = trainer.stepper._prepare_gradients

    def disturbed(*arguments: Any) -> Any:
        if trainer.at.step == step:
            do()
        return prepare(*arguments)

    trainer.stepper._prepare_gradients = disturbed  # type: ignore[assignment,method-assign]


def part_of(trainer: Trainer, name: str) -> Any:
    return trainer.module.get_submodule(name)


def assert_good_checkpoint(trainer: Trainer, last: int) -> None:
    loaded = trainer.store.load_latest()
    assert loaded is not None
    assert loaded.step == last
    named = [*loaded.state["model"].items()]
    for number, state in loaded.state["optimizer"]["state"].items():
        named += [(f"{number} {key}", t) for key, t in state.items() if torch.is_tensor(t)]
    assert find_non_finite(named) is None


def test_the_first_of_many_tensors_is_named():
    big = torch.full((9,), 1e38)  # whose norm overflows
    good = [("a", big), ("b", torch.arange(3)), ("c", torch.zeros(0)), ("d", torch.ones(2).half())]
    assert find_non_finite(good) is None
    assert find_non_finite([]) is None
    bad = [*good, ("e", torch.tensor([1.0, INF])), ("f", torch.tensor(NAN, dtype=torch.float64))]
    assert find_non_finite(bad) == "e has 1 elements like inf"
    assert find_non_finite(bad[-1:]) == "f is nan"


def meet_bad_data(group: Group, folder: str) -> None:
    config = toy_config(Path(folder), checkpoint__every="1 steps")
    trainer = make_trainer(config, group, Path(folder))
    put(trainer, 55, NAN)
    expected = r"the loss is nan at step 2: the input x\[1\] is not finite in micro-batch 3"
    with pytest.raises(DataProblem, match=expected) as caught:
        trainer.fit()
    assert len(set(group.gather(str(caught.value)))) == 1
    if group.is_first:
        assert_good_checkpoint(trainer, 2)


@pytest.mark.parametrize("world", [1, 2])
def test_in_the_data(world, tmp_path):
    """All processes name the same input, also where one alone has it; exit status 2, not 5."""
    run_world(world, meet_bad_data, str(tmp_path))


def test_in_the_data_of_fp16(tmp_path):
    """Where a step whose gradients overflow is skipped, and this one was skipped silently."""
    trainer = alone(tmp_path, hardware__precision="fp16", checkpoint__every="1 steps")
    put(trainer, 55, NAN)
    with pytest.raises(DataProblem, match=r"at step \d: the input x\[1\] is not finite"):
        trainer.fit()


def test_in_the_data_of_an_evaluation(tmp_path):
    trainer = alone(tmp_path)
    put(trainer, 1003, INF)  # of the examples that are evaluated
    with pytest.raises(DataProblem, match=r"of valid is nan: the input x\[3\] is not finite"):
        trainer.fit()
    assert_good_checkpoint(trainer, 4)


def test_in_the_model_the_part_is_named(tmp_path):
    trainer = alone(tmp_path, model__batch_norm=True)
    part_of(trainer, "norm").register_forward_hook(
        lambda module, inputs, output: output * NAN if trainer.at.step == 6 else output
    )
    outcome = trainer.fit()
    assert outcome.status == "diverged"
    assert "at step 6, lr" in outcome.message
    assert "the output of norm is not finite in micro-batch 0" in outcome.message
    assert_good_checkpoint(trainer, 5)  # the best so far


def test_a_statistic_that_only_an_evaluation_uses(tmp_path):
    """Training with batch norm does not read it: the loss stays finite."""
    trainer = alone(tmp_path, model__batch_norm=True, tracking__log_every="100 steps")
    before_step(trainer, 4, lambda: part_of(trainer, "norm").running_var.fill_(NAN))
    outcome = trainer.fit()
    assert outcome.status == "diverged"
    expected = "after step 5 the buffer norm.running_var has 7 elements like nan"
    assert outcome.message == f"{expected} (all was finite after step 4)"
    assert outcome.best == {}
    assert_good_checkpoint(trainer, 4)


def test_a_metric_that_is_nan_is_never_the_best(tmp_path, monkeypatch):
    trainer = alone(tmp_path)
    summarize = trainer.task.summarize

    def with_nan(*arguments: Any) -> dict[str, float]:
        found = summarize(*arguments)
        return found | {"error": NAN} if trainer.at.step > 5 else found

    monkeypatch.setattr(trainer.task, "summarize", with_nan)
    outcome = trainer.fit()
    assert (outcome.status, trainer.at.best_step) == ("diverged", 5)
    assert outcome.message == "after step 10 valid/error is nan"
    assert_good_checkpoint(trainer, 8)


def test_an_optimizer_state_under_a_finite_loss(tmp_path):
    """The gradient's square overflows: Adam then never moves this tensor again."""
    adam = {"name": "adam", "lr": 0.05}
    changes = {"hardware__precision": "fp32", "checkpoint__every": "1 steps", "optimizer": adam}
    trainer = alone(tmp_path, **changes)

    def large() -> None:
        for parameter in part_of(trainer, "last").parameters():
            assert parameter.grad is not None
            parameter.grad.fill_(1e30)

    before_step(trainer, 10, large)
    outcome = trainer.fit()
    assert outcome.status == "diverged"
    expected = "after step 11 the optimizer's exp_avg_sq of last.weight has 7 elements like inf"
    assert outcome.message == f"{expected} (all was finite after step 10)"
    assert all(p.isfinite().all() for p in trainer.module.parameters())
    assert_good_checkpoint(trainer, 10)
