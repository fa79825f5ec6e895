"""What trackers are told about a run: its identity at the start, its result at the end."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from engine.config import RunConfig
from engine.plan import Plan
from engine.predictions import predictions_file, read_predictions
from engine.provenance import describe_environment
from engine.records import EVALUATED, RECORD_FILE, RUN_FILE, to_json, wandb_id
from engine.tracking import Artifact, Ending, RunAbout, RunInfo, Table
from tasks.base import Task

if TYPE_CHECKING:
    from engine.trainer import FitResult, Trainer

MOST_ROWS = 10_000  # of a table in W&B


def run_info(
    config: RunConfig, plan: Plan, task: Task, module: nn.Module, run_id: str, about: RunAbout
) -> RunInfo:
    """The resolved configuration with what follows from it, and how the run is to be found."""
    derived = {
        "plan": {key: value for key, value in asdict(plan).items() if key != "schedule"},
        "parameters": sum(p.numel() for p in module.parameters()),
    }
    job_type = "sweep" if config.tracking.sweep else "train"
    return _describe(config, task, run_id, about, job_type, derived)


def evaluation_info(
    config: RunConfig, task: Task, name: str, about: RunAbout, evaluated: dict[str, Any]
) -> RunInfo:
    """An evaluation beside its run: in its group, with its configuration and what was evaluated."""
    return _describe(config, task, name, about, "evaluate", {EVALUATED: evaluated})


def _describe(
    config: RunConfig,
    task: Task,
    run_id: str,
    about: RunAbout,
    job_type: str,
    derived: dict[str, Any],
) -> RunInfo:
    tracking = config.tracking
    table = about.paper.get("table")
    tags = [config.task.name, str(config.optimizer["name"]), config.scale, *tracking.tags]
    tags += [f"table {table}"] if table else []
    tags += [tracking.sweep] if tracking.sweep else []
    derived |= {
        "signature": task.signature(),
        "fingerprint": about.fingerprint,
        "paper_row": about.paper,
        "provenance": describe_environment(),
    }
    return RunInfo(
        run_id=run_id,
        group=tracking.sweep or config.experiment,
        job_type=job_type,
        tags=tuple(dict.fromkeys(tags)),
        notes=about.notes,
        config=asdict(config) | derived,
        headline=task.headline.name,
        higher_is_better=task.headline.higher_is_better,
    )


def make_ending(trainer: Trainer, result: FitResult) -> Ending:
    """The summary that a reader of many runs needs; last values alone mislead."""
    at, headline = trainer.at, trainer.task.headline.name
    summary: dict[str, Any] = {
        "message": result.message,
        "wall_s": result.wall_s,
        "peak_memory_gb": peak_memory_gb(trainer.device),
    }
    if at.best_step >= 0:
        summary |= {
            f"best/{headline}": at.best_value,
            "best/step": at.best_step,
            "best/epoch": round(at.best_step / trainer.plan.steps_per_epoch, 6),
        }
    if result.status == "finished":
        summary |= {f"final/{name}": value for name, value in result.final.items()}
        summary |= trainer.about.compare_with_paper(result.final)
    if trainer.device.type == "cuda":
        summary["gpu_hours"] = round(result.wall_s * trainer.group.world / 3600, 3)
    tables = _prediction_tables(trainer.folder) if result.status == "finished" else ()
    return Ending(result.status, result.message, summary, _artifacts(trainer), tables)


def peak_memory_gb(device: torch.device) -> float:
    """Of this process: of the GPU's allocator, or resident on a CPU."""
    if device.type == "cuda":
        return round(torch.cuda.max_memory_allocated(device) / 1e9, 3)
    unit = 1 if sys.platform == "darwin" else 1024
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9, 3)


def _artifacts(trainer: Trainer) -> tuple[Artifact, ...]:
    """`tracking.artifacts`: none, the best checkpoint and the record, or all checkpoints."""
    kind, name = trainer.config.tracking.artifacts, wandb_id(trainer.run_id)
    if kind == "none":
        return ()
    folder = trainer.folder
    files = tuple(folder / file for file in (RUN_FILE, RECORD_FILE))
    predictions = tuple(sorted(folder.glob(predictions_file(folder, "*").name)))
    checkpoints = sorted((folder / "checkpoints").glob("*" if kind == "all" else "best*"))
    return (
        Artifact(f"{name}-record", "record", files + predictions),
        Artifact(f"{name}-model", "model", tuple(path for path in checkpoints if path.is_file())),
    )


def _prediction_tables(folder: Path) -> tuple[Table, ...]:
    """The predictions of the final evaluation, a table for each split."""
    begin = predictions_file(folder, "").stem
    files = sorted(folder.glob(predictions_file(folder, "*").name))
    return tuple(
        prediction_table(path.stem.removeprefix(begin), read_predictions(path)) for path in files
    )


def prediction_table(split: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Predictions of a split, as many as a W&B table may have."""
    rows = rows[:MOST_ROWS]
    columns = tuple(dict.fromkeys(name for row in rows for name in row))
    cells = tuple(tuple(_cell(to_json(row.get(name))) for name in columns) for row in rows)
    return Table(f"predictions/{split}", columns, cells)


def _cell(value: Any) -> Any:
    """Lists, such as the five likeliest classes, as text."""
    plain = value is None or isinstance(value, str | int | float)
    return value if plain else json.dumps(value, ensure_ascii=False)
