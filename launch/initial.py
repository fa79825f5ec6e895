"""`init_from`: a run that begins with the weights and the vocabulary of a trained model."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from engine.config import ConfigProblem, RunConfig
from tasks.base import Task

if TYPE_CHECKING:
    from engine.loading import TrainedModel


def with_initial_model(config: RunConfig) -> RunConfig:
    """Names the weights by their sum, which is part of the fingerprint, unlike their path.

    ConfigProblem unless they are whole and of the same task.
    """
    from engine.loading import ModelProblem

    assert config.init_from is not None
    path = Path(config.init_from).absolute()
    try:
        trained = _load(str(path), config.task.name, _changed(path))
        if config.init_sha256 not in (None, trained.sha256):
            raise ModelProblem(
                f"init_from={path}: its weights have the SHA-256 {trained.sha256}, not "
                f"init_sha256={config.init_sha256}"
            )
    except ModelProblem as problem:
        raise ConfigProblem([str(problem)]) from problem
    return replace(config, init_from=str(path), init_sha256=trained.sha256)


def check_initial_weights(config: RunConfig, task: Task) -> None:
    """ConfigProblem unless the weights fit the task's model, all of them."""
    import torch

    from engine.loading import ModelProblem, check_fit

    try:
        with torch.device("meta"):
            check_fit(task.build_model(), _of(config).weights, f"init_from={config.init_from}")
    except ModelProblem as problem:
        raise ConfigProblem([str(problem)]) from problem


def initial_files(config: RunConfig) -> dict[str, bytes]:
    """Classes or vocabulary of the model that a run begins with."""
    from engine.loading import ModelProblem

    try:
        return _of(config).files
    except ModelProblem as problem:
        raise ConfigProblem([str(problem)]) from problem


def _of(config: RunConfig) -> TrainedModel:
    assert config.init_from is not None
    path = Path(config.init_from)
    return _load(str(path), config.task.name, _changed(path))


def _changed(path: Path) -> int:
    """When a file or a folder was last changed; 0 where there is none."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=4)  # plans and sweeps ask for the same model again and again
def _load(path: str, task: str, _: int) -> TrainedModel:
    from engine.initialisation import initial_model

    return initial_model(path, task)
