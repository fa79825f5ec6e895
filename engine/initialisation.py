"""The weights that a run begins with: a model's own, larger or smaller ones, or trained ones."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from engine.checkpoint import CheckpointError
from engine.config import RunConfig
from engine.loading import ModelProblem, TrainedModel, load_trained, load_weights
from engine.records import RUN_FILE, write_json

INITIAL_FILE = "initial_model.json"  # in the folder of a run: whose weights it began with


def scale_weights(module: nn.Module, gain: float) -> None:
    """Multiplies every weight of two or more dimensions; biases and normalisations stay.

    Weights that are shared are multiplied once. A gain of exactly 1 touches nothing.
    """
    if gain == 1.0:
        return
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.dim() >= 2 and not name.endswith("bias"):
                parameter.mul_(gain)


def initial_model(init_from: str, task: str) -> TrainedModel:
    """The export or checkpoint that a run of a task begins with; strict."""
    path = Path(init_from)
    if (path / RUN_FILE).is_file():
        best = path / "checkpoints" / "best.pt"
        raise ModelProblem(f"init_from={path}: is a run; name one of its checkpoints, as {best}")
    try:
        trained = load_trained(path)
    except ModelProblem as problem:
        raise ModelProblem(f"init_from: {problem}") from None
    if trained.task != task:
        raise ModelProblem(f"init_from={path}: is a model of {trained.task}, and the run of {task}")
    if not trained.files:
        raise ModelProblem(
            f"init_from={path}: its run did not keep the classes or the vocabulary that it was "
            "trained with; `python -m scripts.export` adds them where the run's data is"
        )
    return trained


def load_initial_weights(module: nn.Module, config: RunConfig, folder: Path, keep: bool) -> None:
    """Loads init_from's weights; `keep` says in the run's folder whose they are."""
    assert config.init_from is not None
    try:
        trained = initial_model(config.init_from, config.task.name)
        if trained.sha256 != config.init_sha256:
            raise ModelProblem(
                f"init_from={config.init_from}: its weights have the SHA-256 {trained.sha256}, not "
                f"init_sha256={config.init_sha256}: the file was replaced"
            )
        load_weights(module, trained.weights, f"init_from={config.init_from}")
    except ModelProblem as problem:
        raise CheckpointError(str(problem)) from None
    if keep:
        origin = {"run_id": trained.name, "step": trained.step, "sha256": trained.sha256}
        write_json(folder / INITIAL_FILE, origin)
