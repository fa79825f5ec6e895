"""What a run saves and how it resumes: the whole state, from all processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from engine.checkpoint import CheckpointError, CheckpointStore
from engine.clock import Clock
from engine.config import NOT_SCIENCE, RunConfig, recipe_fingerprint
from engine.initialisation import load_initial_weights
from engine.snapshot import gather_carries, map_tensors, on_host
from engine.tracking import Tracker
from engine.training_state import TrainingState

if TYPE_CHECKING:
    from engine.trainer import Trainer

CHECKPOINTS = "checkpoints"  # folder of a run


def open_store(config: RunConfig, folder: Path, log: Callable[[str], None]) -> CheckpointStore:
    """The checkpoints of a run."""
    settings = {
        key: value
        for key, value in _flat(asdict(config)).items()
        if not any(key == name or key.startswith(f"{name}.") for name in NOT_SCIENCE)
    }
    fingerprint = recipe_fingerprint(config, leave_out=())
    return CheckpointStore(folder / CHECKPOINTS, fingerprint, settings, config.checkpoint.keep, log)


def save_run(trainer: Trainer, tracker: Tracker | None, clock: Clock) -> None:
    """On a GPU the state is copied to the host, and written while the training continues."""
    trainer.stepper.check_last()
    trainer.finite.check()
    at, group, module = trainer.at, trainer.group, trainer.module
    # Statistics of batch norm are each process's own between evaluations: all are saved.
    buffers = group.gather_to_first({name: b.cpu() for name, b in module.named_buffers()})
    carry = gather_carries(group, trainer.stepper.carry)
    at.wall_s = clock.wall_s()
    at.window_total, at.window_weight = trainer.window.tolist()
    if tracker is not None:  # on the first process
        tracker.sync()
        state = {
            "at": asdict(at),
            "final": trainer.final,
            "best": trainer.best,
            "last": trainer.last,
            "model": module.state_dict(),
            "optimizer": trainer.optimizer.state_dict(),
            "scaler": trainer.scaler.state_dict(),
            "carry": carry,
            "buffers": buffers,
            "rows": as_tensor(tracker.archive.content()),
            "meters": clock.medians(),
            "environment": trainer.environment,
        }
        step, best = at.step, at.best_step == at.step
        if trainer.device.type == "cpu":
            trainer.store.save(step, state, best=best)
        else:
            changing = {name: state[name] for name in ("model", "optimizer", "scaler")}
            copied = state | on_host(changing)
            trainer.writer.start(lambda: trainer.store.save(step, copied, best=best))
    # Where the first process raises here the launcher ends the others, which wait.
    group.wait_for_all()
    clock.pause()


def restore_run(trainer: Trainer) -> bytes | None:
    """Has the trainer resume at the newest checkpoint; the rows that were logged until then.

    None where there is no checkpoint, or one of an earlier version, which does not hold the rows.
    """
    loaded = trainer.store.load_latest()
    steps = set(trainer.group.gather(None if loaded is None else loaded.step))
    if len(steps) > 1:
        raise CheckpointError(f"the processes see different checkpoints: steps {steps}")
    if loaded is None:
        if trainer.config.init_from is not None:
            is_first = trainer.group.is_first
            load_initial_weights(trainer.module, trainer.config, trainer.folder, is_first)
        return None
    state = loaded.state
    at = trainer.at = TrainingState(**state["at"])
    trainer.final, trainer.best = state["final"], state["best"]
    trainer.last = state.get("last", {})  # checkpoints of earlier versions have none
    trainer.module.load_state_dict(state["model"])
    trainer.optimizer.load_state_dict(state["optimizer"])
    _restore_buffers(trainer, state["buffers"])
    if trainer.scaler.is_enabled():
        trainer.scaler.load_state_dict(state["scaler"])
    window = [at.window_total, at.window_weight]
    trainer.window.copy_(torch.tensor(window, dtype=torch.float64))
    own = trainer.plan.accumulation
    first = trainer.group.rank * own
    carries = state["carry"][first : first + own]
    trainer.stepper.carry = map_tensors(lambda t: t.to(trainer.device), carries)
    trainer.log(f"resuming {trainer.run_id} at step {at.step} of {trainer.plan.steps}")
    return as_bytes(state["rows"]) if "rows" in state else None


def _restore_buffers(trainer: Trainer, saved: list[dict[str, Tensor]]) -> None:
    """This process's own, or the mean of all where the number of processes has changed."""
    for name, buffer in trainer.module.named_buffers():
        if len(saved) == trainer.group.world:
            buffer.copy_(saved[trainer.group.rank][name])
        elif buffer.is_floating_point():
            whole = torch.stack([part[name].double() for part in saved])
            buffer.copy_(whole.mean(dim=0))


def as_tensor(data: bytes) -> Tensor:
    """Bytes as a tensor, which a checkpoint holds without pickling them."""
    return torch.from_numpy(np.frombuffer(data, dtype=np.uint8).copy())


def as_bytes(tensor: Tensor) -> bytes:
    """The inverse of `as_tensor`."""
    return tensor.numpy().tobytes()


def _flat(nested: dict[str, Any], where: str = "") -> dict[str, Any]:
    """Dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        name = f"{where}.{key}" if where else key
        flat |= _flat(value, name) if isinstance(value, dict) else {name: value}
    return flat
