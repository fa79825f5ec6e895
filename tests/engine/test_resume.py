"""A run that was interrupted ends with the same bits as one that was not."""

from __future__ import annotations

import os
import random
import signal
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.distributed import Group
from engine.evaluation import evaluate
from engine.rows import read_rows
from engine.saving import restore_run
from engine.trainer import Trainer
from tests.engine.toy import fit, make_trainer, run_world, toy_config, weights

CHANGES: dict[str, Any] = {
    "model__dropout": 0.3,
    "model__carry": 0.1,
    "model__batch_norm": True,
    "hardware__precision": "fp32",
    "gradient__clip_norm": 0.5,
}


def rows(folder: Path) -> list[dict[str, Any]]:
    """Without what a clock says."""
    timed = ("wall_s", "speed/units_per_s", "speed/data_wait")
    return [
        {key: value for key, value in row.items() if key not in timed}
        for row in read_rows(folder / "metrics.jsonl")
    ]


def finish(group: Group, folder: str) -> None:
    """To the end, from wherever the folder's checkpoints are."""
    trainer, outcome = fit(toy_config(Path(folder), **CHANGES), group, Path(folder))
    assert outcome.status == "finished"
    if group.is_first:
        torch.save(weights(trainer) + list(trainer.module.buffers()), Path(folder) / "final.pt")


def die_at(group: Group, folder: str, step: int) -> None:
    """Until every process kills itself in the middle of a step."""
    trainer = make_trainer(toy_config(Path(folder), **CHANGES), group, Path(folder))
    kill_in_step(trainer, step)
    trainer.fit()


def kill_in_step(trainer: Trainer, step: int) -> None:
    original = trainer.stepper._update

    def update() -> bool:
        if trainer.at.step == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return original()

    trainer.stepper._update = update  # type: ignore[method-assign]


def ask_to_stop_at(group: Group, folder: str, step: int) -> None:
    """SIGTERM, to one process only: all stop at the same step and save."""
    trainer = make_trainer(toy_config(Path(folder), **CHANGES), group, Path(folder))
    signal.signal(signal.SIGTERM, lambda *_: trainer.request_stop())
    original = trainer.stepper._update

    def update() -> bool:
        if trainer.at.step == step and group.rank == group.world - 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return original()

    trainer.stepper._update = update  # type: ignore[method-assign]
    outcome = trainer.fit()
    assert outcome.status == "preempted"
    assert len(set(group.gather(outcome.step))) == 1
    assert step + 1 <= outcome.step <= step + 2


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The folder of a run by its number of processes, made when it is asked for."""

    @cache
    def made(world: int) -> Path:
        folder: Path = tmp_path_factory.mktemp(f"straight{world}")
        run_world(world, finish, str(folder))
        return folder

    return made


def assert_same_run(folder: Path, other: Path) -> None:
    ours = torch.load(folder / "final.pt", weights_only=True)
    theirs = torch.load(other / "final.pt", weights_only=True)
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b)
    assert rows(folder) == rows(other)


@pytest.mark.parametrize("world", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 4))])
def test_killed_at_random_steps(undisturbed, world, tmp_path):
    """Twice in the same run."""
    kill_and_finish(undisturbed(world), world, tmp_path, random.Random(world), times=2)


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(7))
@pytest.mark.parametrize("world", [1, 2, 4])
def test_killed_at_many_random_steps(undisturbed, world, attempt, tmp_path):
    draw = random.Random(100 * world + attempt)
    kill_and_finish(undisturbed(world), world, tmp_path, draw, times=1)


def kill_and_finish(
    undisturbed: Path, world: int, folder: Path, draw: random.Random, times: int
) -> None:
    for step in sorted(draw.sample(range(20), times)):
        with pytest.raises(AssertionError, match="-9"):
            run_world(world, die_at, str(folder), step)
    run_world(world, finish, str(folder))
    assert_same_run(folder, undisturbed)


@pytest.mark.parametrize(
    ("world", "step"), [(2, 5), *(pytest.param(n, 11, marks=pytest.mark.slow) for n in (1, 4))]
)
def test_stopped_on_request(undisturbed, world, step, tmp_path):
    run_world(world, ask_to_stop_at, str(tmp_path), step)
    run_world(world, finish, str(tmp_path))
    assert_same_run(tmp_path, undisturbed(world))


def test_another_number_of_processes_goes_on_with_the_same_samples(tmp_path):
    """Without batch norm: agreement to rounding, also of the carry."""
    changes = {**CHANGES, "model__batch_norm": False, "hardware__precision": "fp64"}
    straight, changed = tmp_path / "straight", tmp_path / "changed"
    alone = Group(0, 1, torch.device("cpu"))
    first, _ = fit(toy_config(straight, **changes), alone, straight)
    run_world(2, stop_after, str(changed), changes, 8)
    second, outcome = fit(toy_config(changed, **changes), alone, changed)
    assert outcome.status == "finished"
    for a, b in zip(weights(first), weights(second), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_many_numbers_of_processes_differ_in_the_statistics_of_batch_norm_alone(tmp_path):
    """In float64 the weights are equal to rounding, and so is the error with equal statistics."""
    changes = {
        **CHANGES,
        "model__carry": 0.0,
        "hardware__precision": "fp64",
        "batch__global_size": 24,  # twelve micro-batches
        "evaluation__every": "20 steps",
    }
    constant, changing = tmp_path / "constant", tmp_path / "changing"
    run_world(2, to_the_end, str(constant), changes)
    for world, step in ((4, 4), (2, 8), (1, 13)):
        run_world(world, stop_after, str(changing), changes, step)
    run_world(3, to_the_end, str(changing), changes)
    alone = Group(0, 1, torch.device("cpu"))
    one, other = (
        make_trainer(toy_config(folder, **changes), alone, folder)
        for folder in (constant, changing)
    )
    for trainer in (one, other):
        restore_run(trainer)
    # Batch norm removes this bias: its gradient is rounding errors, which NovoGrad normalises.
    without_effect = dict(one.module.named_parameters())["first.bias"].detach()
    for (name, a), b in zip(one.module.named_parameters(), weights(other), strict=True):
        if name != "first.bias":
            torch.testing.assert_close(a.detach(), b, rtol=0, atol=1e-12)
    assert one.final["valid/error"] != other.final["valid/error"]
    same = {**dict(one.module.named_buffers()), "first.bias": without_effect}
    other.module.load_state_dict(same, strict=False)
    errors = []
    for trainer in (one, other):
        found = evaluate(trainer.task, trainer.module, "valid", alone, "fp64")
        assert found is not None
        errors.append(found["error"])
    assert errors[0] == pytest.approx(errors[1], rel=0, abs=1e-12)


def to_the_end(group: Group, folder: str, changes: dict[str, Any]) -> None:
    assert fit(toy_config(Path(folder), **changes), group, Path(folder))[1].status == "finished"


def stop_after(group: Group, folder: str, changes: dict[str, Any], step: int) -> None:
    trainer = make_trainer(toy_config(Path(folder), **changes), group, Path(folder))
    original = trainer.stepper._update

    def update() -> bool:
        if trainer.at.step == step:
            trainer.request_stop()
        return original()

    trainer.stepper._update = update  # type: ignore[method-assign]
    assert trainer.fit().status == "preempted"


@pytest.mark.parametrize(("batch", "step"), [(8, 10), (20, 20)])
def test_stopped_in_an_evaluation_the_evaluation_is_made_up_for(tmp_path, monkeypatch, batch, step):
    """And the best checkpoint is saved, in the middle of a run and at its end."""
    alone = Group(0, 1, torch.device("cpu"))
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    reference, _ = fit(toy_config(straight, **CHANGES), alone, straight)
    trainer = make_trainer(toy_config(stopped, **CHANGES), alone, stopped)
    count, seen = trainer.task.count, 0

    def counting(*arguments: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen == batch:  # an evaluation has six
            trainer.request_stop()
        return count(*arguments)

    monkeypatch.setattr(trainer.task, "count", counting)
    outcome = trainer.fit()
    assert (outcome.status, outcome.step) == ("preempted", step)
    again, outcome = fit(toy_config(stopped, **CHANGES), alone, stopped)
    assert outcome.status == "finished"
    assert rows(straight) == rows(stopped)
    best = [trainer.store.load_best() for trainer in (reference, again)]
    assert best[0] is not None
    assert best[1] is not None
    assert best[0].step == best[1].step == reference.at.best_step == step_of_best(reference)
    for a, b in zip(weights(reference), weights(again), strict=True):
        assert torch.equal(a, b)


def step_of_best(trainer: Trainer) -> int:
    """The evaluation with the lowest error."""
    found = [row for row in rows(trainer.folder) if "valid/error" in row]
    return int(min(found, key=lambda row: row["valid/error"])["step"])


@pytest.mark.parametrize("damage", ["missing", "changed"])
def test_rows_that_were_lost_or_changed_are_restored_when_a_run_resumes(tmp_path, damage):
    alone = Group(0, 1, torch.device("cpu"))
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    fit(toy_config(straight, **CHANGES), alone, straight)
    stop_after(alone, str(stopped), CHANGES, 11)
    file = stopped / "metrics.jsonl"
    if damage == "missing":
        file.unlink()
    else:
        file.write_text(file.read_text().replace('"train/loss": 1', '"train/loss": 7'))
    fit(toy_config(stopped, **CHANGES), alone, stopped)
    assert rows(straight) == rows(stopped)


def diverge(group: Group, folder: str) -> None:
    config = toy_config(Path(folder), model__explode_at=55, checkpoint__every="1 steps")
    trainer, outcome = fit(config, group, Path(folder))
    assert outcome.status == "diverged"
    assert all(p.isfinite().all() for p in trainer.module.parameters())
    loaded = trainer.store.load_latest()
    assert loaded is None or loaded.step == outcome.step  # the step before the bad one
    assert len(set(group.gather(outcome.step))) == 1


@pytest.mark.parametrize("world", [1, 2])
def test_a_non_finite_loss_stops_all_before_the_step(world, tmp_path):
    run_world(world, diverge, str(tmp_path))
