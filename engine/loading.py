"""Trained models: weights and all that is needed to use them, from a run's folder or an export.

Loading is strict: checksums are compared, nothing that a file asks for is run, and weights must
have the names and shapes of the model, all of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from engine.checkpoint import Loaded
from engine.checkpoint_files import DamagedError, Manifest, read_state
from engine.config import ConfigProblem, HardwareConfig, read_config, recipe_fingerprint
from engine.export import CONFIG_FILE, WEIGHTS_FILE, DamagedExport, read_export
from engine.precision import parameter_dtype
from engine.records import RUN_FILE, RecordError, read_run_file
from tasks.base import DataProblem, Task
from tasks.files import write_atomically

LAST, BEST, EXPORT = "last", "best", "export"
MODEL_FILES = "model_files"  # folder of a run: its classes or vocabulary, see Task.model_files
LISTED = 5  # names of weights in a message


class ModelProblem(Exception):
    """A model that can't be loaded or does not fit; the message is for the user."""


@dataclass(frozen=True)
class TrainedModel:
    """Weights, with what they belong to. `label` is which of a run's checkpoints they are."""

    name: str  # the run's id
    label: str
    folder: Path  # of the run or of the export
    config: dict[str, Any]  # the frozen configuration of the run
    step: int
    weights: dict[str, Tensor]
    sha256: str  # of the weights, whatever file they are in
    files: dict[str, bytes]  # see Task.model_files
    metrics: dict[str, float] = field(default_factory=dict)  # that the run found for these weights
    facts: dict[str, Any] = field(default_factory=dict)  # what an export says of its training

    @property
    def task(self) -> str:
        return str(self.config["task"]["name"])

    @property
    def is_export(self) -> bool:
        return self.label == EXPORT


def load_trained(path: Path, checkpoint: str = LAST, average: int = 1) -> TrainedModel:
    """From a run's folder, one of its checkpoints or an export.

    Of a run: the `last` or `best` checkpoint or the one of a step, or the mean of the last few.
    """
    path = _find(path)
    if path.suffix == ".pt" or (path / RUN_FILE).is_file():
        is_run = path.is_dir()
        if not is_run and (checkpoint != LAST or average != 1):
            raise ModelProblem(f"{path}: is one checkpoint; give the run's folder to choose others")
        return _load_run(path if is_run else path.parent.parent, path, checkpoint, average)
    if (path / WEIGHTS_FILE).exists() or (path / CONFIG_FILE).exists():
        if checkpoint != LAST or average != 1:
            raise ModelProblem(f"{path}: is an export, which has one set of weights")
        return _load_export(path)
    raise ModelProblem(
        f"{path}: is neither a run's folder (it has no {RUN_FILE}) nor a checkpoint (step-….pt) "
        f"nor an export (it has no {WEIGHTS_FILE})"
    )


def _find(path: Path) -> Path:
    """The path, or that of a run with this id below outputs/."""
    found = next((p for p in (path, Path("outputs") / path) if p.exists()), None)
    if found is None:
        raise ModelProblem(f"{path}: no such file or folder")
    return found.parent if found.name == WEIGHTS_FILE else found


def _load_run(folder: Path, path: Path, checkpoint: str, average: int) -> TrainedModel:
    if not (folder / RUN_FILE).is_file():
        raise ModelProblem(f"{path}: its run is not there: {folder / RUN_FILE} does not exist")
    try:
        frozen = read_run_file(folder)
        config = read_config(frozen.config)
    except (OSError, RecordError, ConfigProblem) as problem:
        raise ModelProblem(f"{folder}: {problem}") from problem
    fingerprint = recipe_fingerprint(config, leave_out=())
    files = [path] if path.is_file() else _choose(folder, checkpoint, average)
    if len(files) == 1:
        loaded = read_checkpoint(files[0], fingerprint)
        weights, at, label = _weights(loaded), loaded.state["at"], files[0].stem
        metrics = loaded.state["final"] if at["evaluated"] == at["step"] else {}
    else:
        weights, metrics, label = _mean(files, fingerprint), {}, f"average-{average}"
    return TrainedModel(
        name=frozen.run_id,
        label=label,
        folder=folder,
        config=frozen.config,
        step=_step_of(files[0]),
        weights=weights,
        sha256=weights_sha256(weights),
        files=read_model_files(folder),
        metrics=dict(metrics),
    )


def _choose(folder: Path, checkpoint: str, average: int) -> list[Path]:
    """The newest first."""
    stored = folder / "checkpoints"
    found = sorted(stored.glob("step-*.pt"), reverse=True, key=lambda p: int(p.stem[5:]))
    if not found and not (stored / "best.pt").exists():
        raise ModelProblem(f"{folder}: has no checkpoints")
    there = ", ".join([*(path.stem[5:].lstrip("0") or "0" for path in found)]) or "none"
    if average < 1:
        raise ModelProblem(f"--average must be at least 1, not {average}")
    if average > 1:
        if checkpoint != LAST:
            raise ModelProblem("--average takes the last checkpoints: leave --checkpoint out")
        if len(found) < average:
            raise ModelProblem(
                f"{folder}: has {len(found)} checkpoints (steps {there}), not {average}; a run "
                f"keeps more with checkpoint.keep={average}"
            )
        return found[:average]
    if checkpoint == BEST:
        if not (stored / "best.pt").exists():
            raise ModelProblem(f"{folder}: has no best checkpoint: it was not evaluated yet")
        return [stored / "best.pt"]
    if checkpoint == LAST and found:
        return found[:1]
    step = int(checkpoint) if checkpoint.isdecimal() else None
    chosen = [path for path in found if _step_of(path) == step]
    if not chosen:
        raise ModelProblem(
            f"{folder}: has no checkpoint {checkpoint!r}; there are last, best and steps {there}"
        )
    return chosen


def read_checkpoint(path: Path, fingerprint: str) -> Loaded:
    """One that is whole and belongs to a configuration."""
    try:
        manifest = Manifest.read(path.with_suffix(".json"))
        if manifest.fingerprint != fingerprint:
            task = manifest.settings.get("task.name")
            raise ModelProblem(
                f"{path}: is a checkpoint of another run (task {task}, fingerprint "
                f"{manifest.fingerprint}; this run has {fingerprint})"
            )
        with path.open("rb") as file:
            step = manifest.step_of(file)
            file.seek(0)
            return Loaded(step, read_state(file), path)
    except (DamagedError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ModelProblem(f"{path}: is damaged: {reason}") from None


def _weights(loaded: Loaded) -> dict[str, Tensor]:
    """What an evaluation at this step sees: statistics of batch norm are the processes' mean."""
    weights: dict[str, Tensor] = dict(loaded.state["model"])
    of_processes: list[dict[str, Tensor]] = loaded.state["buffers"]
    for name, buffer in of_processes[0].items():
        if name in weights and buffer.is_floating_point():
            whole = torch.stack([part[name].double() for part in of_processes])
            weights[name] = whole.mean(dim=0).to(buffer.dtype)
    return weights


def _mean(files: Sequence[Path], fingerprint: str) -> dict[str, Tensor]:
    """In float64; counters are those of the newest."""
    newest = _weights(read_checkpoint(files[0], fingerprint))
    total = {name: w.double() for name, w in newest.items() if w.is_floating_point()}
    for file in files[1:]:
        others = _weights(read_checkpoint(file, fingerprint))
        for name in total:
            total[name] += others[name]
    mean = {name: (w / len(files)).to(newest[name].dtype) for name, w in total.items()}
    return newest | mean


def _step_of(path: Path) -> int:
    if path.stem != BEST:
        return int(path.stem.removeprefix("step-"))
    try:
        return Manifest.read(path.with_suffix(".json")).step
    except DamagedError as error:
        raise ModelProblem(f"{path}: is damaged: {error}") from None


def _load_export(folder: Path) -> TrainedModel:
    try:
        export = read_export(folder)
    except DamagedExport as problem:
        raise ModelProblem(str(problem)) from None
    if weights_sha256(export.weights) != export.config["weights_sha256"]:
        raise ModelProblem(f"{folder / WEIGHTS_FILE}: its weights are not the exported ones")
    facts = export.config["training"]
    return TrainedModel(
        name=facts["run_id"],
        label=EXPORT,
        folder=folder,
        config=export.config["recipe"],
        step=facts["step"],
        weights=export.weights,
        sha256=export.config["weights_sha256"],
        files=export.files,
        facts=facts,
    )


# Classes and vocabularies in a run's folder.


def read_model_files(folder: Path) -> dict[str, bytes]:
    """Of a run; none where it was made before they were kept."""
    place = folder / MODEL_FILES
    if not place.is_dir():
        return {}
    return {p.name: p.read_bytes() for p in sorted(place.iterdir()) if p.name[0] != "."}


def keep_model_files(folder: Path, task: Task) -> None:
    """Writes a task's files into a run's folder; a resumed run must still have the same ones."""
    kept, found = read_model_files(folder), task.model_files()
    for name, content in found.items():
        if name not in kept:
            write_atomically(folder / MODEL_FILES / name, content, durable=False)
        elif kept[name] != content:
            raise DataProblem(
                f"{folder / MODEL_FILES / name}: the data has another vocabulary now than when the "
                "run began; a model can't be trained on with it"
            )


# Into a model.


def place_model(module: nn.Module, hardware: HardwareConfig, device: torch.device) -> nn.Module:
    """On its device, in the number format and the memory layout that the hardware config names."""
    module = module.to(device, parameter_dtype(hardware.precision))
    if hardware.channels_last:
        module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return module


def load_weights(module: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """All of them, by name and shape."""
    check_fit(module, weights, source)
    module.load_state_dict(dict(weights), strict=True)


def check_fit(module: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """ModelProblem unless names and shapes are the module's, which may be on `meta`."""
    wanted = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    there = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    problems = [
        *_some("missing", [name for name in wanted if name not in there]),
        *_some("not in the model", [name for name in there if name not in wanted]),
        *_some(
            "of another shape",
            [
                f"{name} {there[name]} instead of {wanted[name]}"
                for name in wanted
                if name in there and there[name] != wanted[name]
            ],
        ),
    ]
    if problems:
        raise ModelProblem(f"{source}: its weights do not fit the model: {'; '.join(problems)}")


def _some(what: str, names: list[str]) -> list[str]:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return [f"{what}: {', '.join(names[:LISTED])}{more}"] if names else []


def weights_sha256(weights: Mapping[str, Tensor]) -> str:
    """Of names, types, shapes and values: the same in a checkpoint and in its export."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
