"""`init_from`: a run that begins with the weights and the vocabulary of a trained model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from engine.config import ConfigProblem, RunConfig
from tasks.base import Task

if TYPE_CHECKING:
    from engine.loading import TrainedModel


@contextmanager
def _model_problems_as_config_problems() -> Iterator[None]:
    from engine.loading import ModelProblem

    try:
        yield
    except ModelProblem as problem:
        raise ConfigProblem([str(problem)]) from problem


@_model_problems_as_config_problems()
def initial_model_of(config: RunConfig) -> TrainedModel:
    """The model that a run begins with; ConfigProblem unless it is whole and of the same task."""
    path = Path(config.init_from or "").absolute()
    changed = path.stat().st_mtime_ns if path.exists() else 0
    return _load(str(path), config.task.name, changed)


@lru_cache(maxsize=4)  # plans and sweeps ask for the same model again and again
def _load(path: str, task: str, _: int) -> TrainedModel:
    from engine.initialisation import initial_model

    return initial_model(path, task)


def with_initial_model(config: RunConfig) -> RunConfig:
    """Names the weights by their sum, which is part of the fingerprint, unlike their path."""
    path, found = Path(config.init_from or "").absolute(), initial_model_of(config).sha256
    if config.init_sha256 not in (None, found):
        message = f"its weights have the SHA-256 {found}, not init_sha256={config.init_sha256}"
        raise ConfigProblem([f"init_from={path}: {message}"])
    return replace(config, init_from=str(path), init_sha256=found)


@_model_problems_as_config_problems()
def check_initial_weights(config: RunConfig, task: Task) -> None:
    """ConfigProblem unless the weights fit the task's model, all of them."""
    import torch

    from engine.loading import check_fit

    weights = initial_model_of(config).weights
    with torch.device("meta"):
        check_fit(task.build_model(), weights, f"init_from={config.init_from}")
