"""A trained model ready for use: its weights, its configuration with overrides, and its task."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import nn

from engine import precision
from engine.config import ConfigProblem, HardwareConfig, RunConfig, read_config
from engine.finite import NonFinite
from engine.loading import ModelProblem, TrainedModel, load_trained, load_weights, place_model
from engine.schema import did_you_mean
from launch.compose import apply_overrides
from launch.hardware import resolve_hardware
from launch.run_spec import check_packages, make_task
from launch.torchrun import PARENT
from tasks.base import DataProblem, Task
from tasks.catalog import TASKS

# What an override may change of a trained model's configuration: the rest belongs to the training.
CHANGEABLE = ("hardware.", "paths.data", "data.", "evaluation.batch")
MIRRORS = ("wandb", "tensorboard")  # keys of `tracking` by which rows are mirrored
# Of the user's input: exit status 2.
PROBLEMS = (ConfigProblem, DataProblem, ModelProblem, NonFinite)


@dataclass(frozen=True)
class OpenModel:
    """What evaluations, predictions and exports begin with."""

    trained: TrainedModel
    config: RunConfig
    task: Task

    def build(self, device: torch.device) -> nn.Module:
        """On its device, in evaluation mode."""
        module = place_model(self.task.build_model(), self.config.hardware, device)
        load_weights(module, self.trained.weights, str(self.trained.folder))
        return module.eval()

    def configure(self, device: torch.device) -> None:
        """Threads and number formats of this process."""
        hardware = self.config.hardware
        threads = hardware.threads if isinstance(hardware.threads, int) else None
        precision.configure(hardware, device, threads)


def open_model(
    path: Path, checkpoint: str, average: int, overrides: Sequence[str], *, tracked: bool = False
) -> OpenModel:
    """One of PROBLEMS is raised where that is not possible; data is not looked at.

    Nothing is mirrored to W&B unless what is done may be `tracked` and an override asks for it.
    """
    check_packages()
    trained = load_trained(path, checkpoint, average)
    if trained.task not in TASKS:
        raise ModelProblem(
            f"{path}: is a model of {trained.task!r}{did_you_mean(trained.task, TASKS)}"
        )
    changed = _keys(overrides, (*CHANGEABLE, *(["tracking"] if tracked else [])))
    whole = asdict(read_config(trained.config)) | {"init_from": None, "init_sha256": None}
    whole["tracking"] |= {"wandb": "off", "tensorboard": False}
    config = read_config(apply_overrides(whole, overrides, {"tracking": MIRRORS}))
    data = str(Path(config.paths.data).absolute())
    config = replace(
        config,
        hardware=_hardware(config.hardware, changed),
        paths=replace(config.paths, data=data),
    )
    task = make_task(config, max(1, config.batch.global_size // config.batch.micro))
    if trained.files:  # the classes or the vocabulary that the model was trained with
        task.use_model_files(trained.files)
    return OpenModel(trained, config, task)


def _keys(overrides: Sequence[str], changeable: tuple[str, ...]) -> set[str]:
    keys = {text.partition("=")[0].lstrip("+~") for text in overrides}
    fixed = sorted(key for key in keys if not key.startswith(changeable))
    if fixed:
        raise ConfigProblem(
            [
                f"{key} belongs to the training; an override may change {', '.join(changeable)}"
                for key in fixed
            ]
        )
    return keys


def _hardware(frozen: HardwareConfig, changed: set[str]) -> HardwareConfig:
    """That of the training as far as this machine has it, so that the numbers are the same."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    hardware = replace(frozen, nodes=1)
    if frozen.device == "cuda" and not gpus and "hardware.device" not in changed:
        number_format = "fp32" if frozen.precision == "fp16" else frozen.precision
        if PARENT not in os.environ:
            print(f"no GPU is visible: on the CPU, in {number_format}", file=sys.stderr)
        hardware = replace(hardware, device="cpu", precision=number_format)
    if "hardware.processes" not in changed:
        on_gpus = hardware.device == "cuda" or (hardware.device == "auto" and gpus > 0)
        hardware = replace(hardware, processes=max(1, gpus) if on_gpus else 1)
    number = hardware.processes
    return resolve_hardware(hardware, number if isinstance(number, int) else 1)
