"""Evaluates a trained model, on one or many processes with the same numbers.

On many, torchrun starts the same command for each: they evaluate together, the first one writes.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from engine.distributed import Group, joined
from engine.evaluation import SHARED, evaluate, shared
from engine.loading import ModelProblem
from engine.predictions import write_predictions
from engine.provenance import describe_environment
from engine.records import write_json
from engine.schema import did_you_mean
from launch.command_line import reports
from launch.evaluation_tracking import Outcome, tracked
from launch.exit_status import BAD_INPUT
from launch.standby import worker_environment
from launch.torchrun import PARENT
from launch.trained import PROBLEMS, OpenModel, open_model
from tasks.base import Predictions, Task

LONGEST_NAME = 100  # characters of an evaluation's file


@reports(*PROBLEMS)
def run_evaluation(
    path: Path,
    checkpoint: str,
    average: int,
    split: Sequence[str],
    predictions: int | None,
    overrides: Sequence[str],
    output: Path | None,
    *,
    command: Sequence[str],
) -> int:
    """Prints metrics and writes them to `output`, by default beside the run; the exit status.

    Without a `split` those of the run's final evaluation are evaluated. `predictions` of each are
    kept, all if it is 0. `command` has the arguments that ask for it, for further processes.
    """
    model = open_model(path, checkpoint, average, overrides, tracked=True)
    splits = choose_splits(model, split)
    name = _name(model, split, overrides)
    output = output or model.trained.folder / f"{name}.json"
    if not output.parent.is_dir():
        raise ModelProblem(f"--output {output}: {output.parent} is not a folder")
    if model.config.tracking.tensorboard:
        raise ModelProblem("tracking.tensorboard: an evaluation has no curves; use W&B")
    model.task.prepare_evaluation(splits)
    hardware = model.config.hardware
    if int(hardware.processes) > 1 and PARENT not in os.environ:
        return start_workers(command, int(hardware.processes), hardware.threads)
    if PARENT in os.environ:  # torchrun ends those that wait for one that failed: W&B is told
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    about = _describe(model, overrides, splits)
    notes = "\n".join(f"{split}: {text}" for split, text in about["protocols"].items() if text)
    place = output.with_name(f"{output.stem}-wandb")
    with joined(hardware.device, hardware.timeout_s) as group:
        try:
            if len(set(group.gather(model.trained.sha256))) > 1:
                replaced = f"{path}: was replaced meanwhile; evaluate it again"
                raise shared(ModelProblem(replaced))
            in_wandb = tracked(model, name, about, notes, place)
            with in_wandb if group.is_first else nullcontext(Outcome()) as outcome:
                found = evaluate_splits(model, splits, predictions, group)
                if group.is_first:
                    outcome.metrics, outcome.predictions = found
                    outcome.files = _write(output, model, about, *found)
        except PROBLEMS as problem:
            if not group.is_first and SHARED in getattr(problem, "__notes__", ()):
                return BAD_INPUT  # the first process reports it
            raise
    return 0


def start_workers(command: Sequence[str], processes: int, threads: int | str) -> int:
    """The same command in several processes; the largest exit status of them."""
    torchrun = [sys.executable, "-m", "launch.torchrun", "--max-restarts=0", "--standalone"]
    worker = [f"--nproc-per-node={processes}", "-m", "scripts.evaluate", *command]
    done = subprocess.run([*torchrun, *worker], env=worker_environment(threads), check=False)
    return done.returncode


def choose_splits(model: OpenModel, wanted: Sequence[str]) -> tuple[str, ...]:
    """Those of a run's final evaluation, or the wanted ones."""
    task = model.task
    known = (*task.splits, *task.final_splits)
    for split in wanted:
        if split not in known:
            raise ModelProblem(f"--split {split}: no such split{did_you_mean(split, known)}")
    if wanted:
        return tuple(dict.fromkeys(wanted))
    return known if model.config.evaluation.final else task.splits


def evaluate_splits(
    model: OpenModel, splits: Sequence[str], keep: int | None, group: Group
) -> tuple[dict[str, float], dict[str, list[dict[str, Any]]]]:
    """Metrics by split/name and predictions by split; all processes have the same."""
    model.configure(group.device)
    module = model.build(group.device)
    metrics: dict[str, float] = {}
    predictions: dict[str, list[dict[str, Any]]] = {}
    for split in splits:
        kept = None if keep is None else Predictions(keep or None)
        found = evaluate(
            model.task, module, split, group, model.config.hardware.precision, predictions=kept
        )
        assert found is not None  # nobody asks it to stop
        metrics |= {f"{split}/{name}": value for name, value in found.items()}
        if kept is not None:
            predictions[split] = kept.in_order()
        if group.is_first:
            _print(model.task, split, found)
    return metrics, predictions


def _print(task: Task, split: str, metrics: dict[str, float]) -> None:
    shown = "  ".join(f"{name} {value:.6g}" for name, value in metrics.items())
    protocol = task.protocol(split)
    print(f"{split}: {shown}" + (f"\n    {protocol}" if protocol else ""), flush=True)


def _describe(model: OpenModel, overrides: Sequence[str], splits: Sequence[str]) -> dict[str, Any]:
    """What is evaluated, and how."""
    trained, hardware = model.trained, model.config.hardware
    return {
        "weights": {"from": trained.label, "step": trained.step, "sha256": trained.sha256},
        "data": model.config.data["name"],
        "protocols": {split: model.task.protocol(split) for split in splits},
        "overrides": [o for o in overrides if not o.startswith(("paths.", "tracking"))],
        "processes": hardware.processes,
        "precision": hardware.precision,
    }


def _write(
    output: Path,
    model: OpenModel,
    about: dict[str, Any],
    metrics: dict[str, float],
    predictions: dict[str, list[dict[str, Any]]],
) -> list[Path]:
    """The files. Predictions first: where the evaluation is, all of it is."""
    kept = {split: output.with_name(f"{output.stem}-{split}.jsonl") for split in predictions}
    for split, path in kept.items():
        write_predictions(path, predictions[split])
    write_json(
        output,
        {
            "run_id": model.trained.name,
            "task": model.trained.task,
            **about,
            "metrics": metrics,
            "predictions": {split: path.name for split, path in kept.items()},
            "environment": describe_environment(),
            "date": datetime.now(UTC).date().isoformat(),
        },
    )
    print(f"written: {output}", flush=True)
    for path in kept.values():
        print(f"predictions: {path}", flush=True)
    return [output, *kept.values()]


def _name(model: OpenModel, split: Sequence[str], overrides: Sequence[str]) -> str:
    """evaluation-<which weights>, and what was chosen: splits and overrides."""
    apart = ("paths.", "hardware.", "tracking")
    chosen = [o for o in overrides if not o.startswith(apart)]
    parts = ["evaluation", model.trained.label, *split, *chosen]
    name = re.sub(r"[^\w.=-]+", "_", "-".join(parts))
    if len(name) > LONGEST_NAME:
        digest = sha256(name.encode()).hexdigest()[:8]
        name = f"evaluation-{model.trained.label}-{digest}"
    return name
