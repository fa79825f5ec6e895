"""The record of a run: written by its first worker, or again from what the run has left."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from engine.checkpoint import CheckpointError
from engine.config import RunConfig
from engine.initialisation import INITIAL_FILE
from engine.plan import Plan
from engine.provenance import describe_environment
from engine.records import (
    DIVERGED,
    FINISHED,
    PLACES,
    RECORD_FILE,
    STATUS_FILE,
    RecordError,
    RunFile,
    RunRecord,
    read_json,
    read_record,
    read_run_file,
    write_record,
)
from engine.rows import (
    ROWS_FILE,
    RowArchive,
    mean_update_ratios,
    read_rows,
    restore_rows,
    sort_rows,
    thin_curves,
)
from engine.saving import as_bytes, open_store
from engine.training_state import FitResult
from launch.run_spec import complete_run_spec
from tasks.base import Task

if TYPE_CHECKING:
    from engine.trainer import Trainer


def keep_record(folder: Path, frozen: RunFile, result: FitResult, trainer: Trainer) -> None:
    """What a run leaves beside its checkpoints when it has finished or diverged."""
    if result.status not in (FINISHED, DIVERGED):
        return
    today = datetime.now(UTC)
    about = (trainer.plan, trainer.task, trainer.module)
    _write_record(folder, frozen, result, *about, trainer.environment, today)


def restore_record(folder: Path, config: RunConfig) -> str:
    """Writes a finished run's record again if it is lost or damaged; what was done, or "".

    RecordError if the checkpoint of the last step, which has all that the record needs, is lost.
    """
    try:
        read_record(folder / RECORD_FILE)
        return ""
    except RecordError as problem:
        why = problem
    lost = f"{why}; it can't be written again"
    try:
        loaded = open_store(config, folder, lambda _: None).load_latest()
    except CheckpointError as problem:
        raise RecordError(f"{lost}: {problem}") from problem
    spec = complete_run_spec(config)
    if loaded is None or loaded.step != spec.plan.steps:
        raise RecordError(
            f"{lost}: there is no checkpoint of the last step; move {folder} away to run it again"
        )
    state = loaded.state
    notes: list[str] = []
    if "rows" in state:
        rows = RowArchive.unpack(as_bytes(state["rows"])).rows()
        restore_rows(folder / ROWS_FILE, rows, notes.append)
    at = state["at"]
    result = FitResult(
        FINISHED,
        loaded.step,
        "",
        state["final"],
        state["best"],
        state.get("last", {}),
        round(at["wall_s"], 3),
        at["skipped"],
        state.get("meters", {}),
    )
    unknown = describe_environment() | {"commit": None, "dirty": None}
    ended = datetime.fromtimestamp((folder / STATUS_FILE).stat().st_mtime, UTC)
    with torch.device("meta"):
        model = spec.task.build_model()
    about = (spec.plan, spec.task, model)
    environment = state.get("environment", unknown)
    _write_record(folder, read_run_file(folder), result, *about, environment, ended)
    return "; ".join([f"{why}; it was written again from the last checkpoint", *notes])


def _write_record(
    folder: Path,
    frozen: RunFile,
    result: FitResult,
    plan: Plan,
    task: Task,
    model: nn.Module,
    environment: dict[str, Any],
    ended: datetime,
) -> None:
    config, file, initial = frozen.config, folder / ROWS_FILE, folder / INITIAL_FILE
    rows = sort_rows(read_rows(file)) if file.exists() else []
    if initial.exists():  # whose weights the run began with, if not with random ones
        environment = environment | {"initial_model": read_json(initial)}
    if frozen.user_configs:  # the text of configs that the checkout does not have
        environment = environment | {"user_configs": frozen.user_configs}
    record = RunRecord(
        run_id=frozen.run_id,
        experiment=config["experiment"],
        scale=config["scale"],
        seed=config["seed"],
        fingerprint=frozen.fingerprint,
        final=result.final if result.status == FINISHED else {},
        best=result.best,
        wall_s=result.wall_s,
        plan={k: v for k, v in asdict(plan).items() if k != "schedule"},
        environment=environment,
        config={k: v for k, v in config.items() if k not in PLACES},
        date=ended.date().isoformat(),
        status=result.status,
        last=result.last,
        skipped_steps=result.skipped,
        meters=result.meters | mean_update_ratios(rows),
        signature=task.signature(),
        curves=thin_curves(rows),
        parameters=sum(p.numel() for p in model.parameters()),
        data_manifest=task.data_manifest(),
    )
    write_record(folder / RECORD_FILE, record)
