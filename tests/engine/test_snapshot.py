"""The state on the host: nothing is lost on the way, and errors come to light."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine.distributed import PIECE_BYTES, Group
from engine.snapshot import BackgroundWriter, gather_carries, map_tensors, on_host
from engine.step import Tally
from tests.engine.toy import make_trainer, run_world, toy_config


def test_structures_stay_what_they_are() -> None:
    state: dict[str, Any] = {
        "a": [torch.ones(2), (1, torch.zeros(1))],
        "b": None,
        "betas": (0.9, 0.5),
    }
    copied = map_tensors(lambda t: t + 1, state)
    assert copied["betas"] == (0.9, 0.5)
    assert copied["a"][1][0] == 1
    assert torch.equal(copied["a"][0], torch.full((2,), 2.0))
    taken = on_host(state)
    assert taken["b"] is None
    state["a"][0] += 1  # the training continues
    assert torch.equal(taken["a"][0], torch.ones(2))


def test_carries_of_one_process_come_back() -> None:
    carries = [{"memory": torch.arange(3.0)}, None]
    (first, second) = gather_carries(Group(0, 1, torch.device("cpu")), carries)
    assert torch.equal(first["memory"], torch.arange(3.0))
    assert second is None


def test_writes_follow_one_another_and_an_error_is_raised_by_the_next_call() -> None:
    writer, may_end = BackgroundWriter(), threading.Event()
    order: list[int] = []

    def wait_and_write() -> None:
        assert may_end.wait(10)
        order.append(1)

    writer.start(wait_and_write)
    may_end.set()
    writer.start(lambda: order.append(2))
    writer.wait()
    assert order == [1, 2]
    writer.start(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        writer.start(lambda: order.append(3))
    writer.wait()
    assert order == [1, 2]


def test_a_stopped_run_whose_last_loss_was_not_finite_has_diverged(tmp_path: Path) -> None:
    """On a GPU a loss is looked at one step late: before saving, the last one must be."""
    trainer = make_trainer(toy_config(tmp_path), Group(0, 1, torch.device("cpu")), tmp_path)
    take_step = trainer.stepper.run

    def run(*args: object, **options: object) -> object:
        result = take_step(*args, **options)  # type: ignore[arg-type]
        waited = SimpleNamespace(synchronize=lambda: None)
        trainer.stepper._previous = Tally(torch.tensor([torch.nan, 1.0, 0.0]), 0, 0, waited)
        return result

    trainer.stepper.run = run  # type: ignore[assignment,method-assign]
    trainer.request_stop()
    outcome = trainer.fit()
    assert outcome.status == "diverged"
    assert not list(tmp_path.rglob("step-*.pt"))


def _gather(group: Group) -> None:
    size = 3 * PIECE_BYTES // 8 + 5  # of float64: no whole number of pieces
    alike = [torch.full((size,), float(group.rank), dtype=torch.float64), None]
    other = [torch.full((group.rank + 1,), float(group.rank))]
    for carries in (alike, other):
        gathered = gather_carries(group, carries)
        if not group.is_first:
            assert gathered == []
            continue
        for rank in range(group.world):
            whole = gathered[rank * len(carries)]
            assert torch.equal(whole, torch.full_like(whole, rank))
            assert len(whole) == (size if carries is alike else rank + 1)


def test_carries_of_several_processes_come_in_order() -> None:
    """In pieces where all have the same shape, and otherwise too."""
    run_world(2, _gather)
