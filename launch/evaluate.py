"""Evaluates a trained model, on one or many processes with the same numbers.

`python -m launch.evaluate FOLDER` is one of several workers, started by torchrun: it reads
`spec.json` in the folder, and the first one leaves `result.json` there.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from engine.config import read_config
from engine.distributed import Group, joined
from engine.evaluation import evaluate
from engine.loading import LAST, ModelProblem, load_trained
from engine.predictions import write_predictions
from engine.provenance import describe_environment
from engine.records import read_json, to_json, write_json
from engine.schema import did_you_mean
from launch.config_files import ROOT
from launch.entry import make_streams_safe
from launch.evaluation_tracking import tracked
from launch.trained import PROBLEMS, OpenModel, open_model, task_of
from tasks.base import Predictions, Task

LONGEST_NAME = 100  # characters of an evaluation's file


@dataclass(frozen=True)
class Evaluation:
    """What is asked for."""

    path: Path
    checkpoint: str = LAST
    average: int = 1
    splits: Sequence[str] = ()  # none: those of the run's final evaluation
    predictions: int | None = None  # how many of each split are kept; 0: all
    overrides: Sequence[str] = ()
    output: Path | None = None  # beside the run


@dataclass
class Result:
    """Metrics by split, and predictions by split."""

    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    predictions: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def flat_metrics(self) -> dict[str, float]:
        """By split/name."""
        return {
            f"{split}/{name}": value
            for split, found in self.metrics.items()
            for name, value in found.items()
        }


def run_evaluation(asked: Evaluation) -> int:
    """Prints metrics and writes them beside the run; the exit status."""
    try:
        model = open_model(
            asked.path, asked.checkpoint, asked.average, asked.overrides, tracked=True
        )
        splits = choose_splits(model, asked.splits)
        output = asked.output or model.trained.folder / f"{_name(model, asked)}.json"
        if not output.parent.is_dir():
            raise ModelProblem(f"--output {output}: {output.parent} is not a folder")
        if model.config.tracking.tensorboard:
            raise ModelProblem("tracking.tensorboard: an evaluation has no curves; use W&B")
        model.task.prepare_evaluation(splits)
        about = _describe(model, asked, splits)
        notes = "\n".join(f"{split}: {text}" for split, text in about["protocols"].items() if text)
        place = output.with_name(f"{output.stem}-wandb")
        with tracked(model, _name(model, asked), about, notes, place) as outcome:
            result = _evaluate(model, asked, splits)
            files = _write(output, model, about, result)
            outcome.finish(result.flat_metrics(), result.predictions, files)
    except PROBLEMS as problem:
        print(problem, file=sys.stderr)
        return 2
    except WorkersFailed as failure:
        print(failure, file=sys.stderr)
        return 1
    return 0


def _evaluate(model: OpenModel, asked: Evaluation, splits: Sequence[str]) -> Result:
    hardware = model.config.hardware
    if int(hardware.processes) > 1:
        return _on_processes(model, asked, splits)
    with joined(hardware.device, hardware.timeout_s) as group:
        return evaluate_splits(model, splits, asked.predictions, group)


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
) -> Result:
    """This process's part; all have the same result."""
    model.configure(group.device)
    module = model.build(group.device)
    result = Result()
    for split in splits:
        kept = None if keep is None else Predictions(keep or None)
        found = evaluate(
            model.task, module, split, group, model.config.hardware.precision, predictions=kept
        )
        assert found is not None  # nobody asks it to stop
        result.metrics[split] = found
        if kept is not None:
            result.predictions[split] = kept.in_order()
        if group.is_first:
            _print(model.task, split, found)
    return result


def _print(task: Task, split: str, metrics: dict[str, float]) -> None:
    shown = "  ".join(f"{name} {value:.6g}" for name, value in metrics.items())
    protocol = task.protocol(split)
    print(f"{split}: {shown}" + (f"\n    {protocol}" if protocol else ""), flush=True)


def _describe(model: OpenModel, asked: Evaluation, splits: Sequence[str]) -> dict[str, Any]:
    """What is evaluated, and how."""
    trained, hardware = model.trained, model.config.hardware
    return {
        "weights": {"from": trained.label, "step": trained.step, "sha256": trained.sha256},
        "data": model.config.data["name"],
        "protocols": {split: model.task.protocol(split) for split in splits},
        "overrides": [o for o in asked.overrides if not o.startswith(("paths.", "tracking"))],
        "processes": hardware.processes,
        "precision": hardware.precision,
    }


def _write(output: Path, model: OpenModel, about: dict[str, Any], result: Result) -> list[Path]:
    """The files. Predictions first: where the evaluation is, all of it is."""
    kept = {split: output.with_name(f"{output.stem}-{split}.jsonl") for split in result.predictions}
    for split, path in kept.items():
        write_predictions(path, result.predictions[split])
    write_json(
        output,
        {
            "run_id": model.trained.name,
            "task": model.trained.task,
            **about,
            "metrics": result.flat_metrics(),
            "predictions": {split: path.name for split, path in kept.items()},
            "environment": describe_environment(),
            "date": datetime.now(UTC).date().isoformat(),
        },
    )
    print(f"written: {output}", flush=True)
    for path in kept.values():
        print(f"predictions: {path}", flush=True)
    return [output, *kept.values()]


def _name(model: OpenModel, asked: Evaluation) -> str:
    """evaluation-<which weights>, and what was chosen: splits and overrides."""
    apart = ("paths.", "hardware.", "tracking")
    chosen = [o for o in asked.overrides if not o.startswith(apart)]
    parts = ["evaluation", model.trained.label, *asked.splits, *chosen]
    name = re.sub(r"[^\w.=-]+", "_", "-".join(parts))
    if len(name) > LONGEST_NAME:
        digest = sha256(name.encode()).hexdigest()[:8]
        name = f"evaluation-{model.trained.label}-{digest}"
    return name


# Several processes.


class WorkersFailed(Exception):
    """The message says where to look."""


def _on_processes(model: OpenModel, asked: Evaluation, splits: Sequence[str]) -> Result:
    hardware = model.config.hardware
    with tempfile.TemporaryDirectory(prefix="evaluation-") as name:
        folder = Path(name)
        spec = {
            "path": str(asked.path.absolute() if asked.path.exists() else asked.path),
            "checkpoint": asked.checkpoint,
            "average": asked.average,
            "sha256": model.trained.sha256,
            "config": asdict(model.config),
            "splits": list(splits),
            "predictions": asked.predictions,
        }
        (folder / "spec.json").write_text(json.dumps(spec))
        status = start_workers(folder, int(hardware.processes), hardware.threads)
        problems = sorted(folder.glob("problem-*.txt"))
        if problems:
            raise ModelProblem(problems[0].read_text())
        if status or not (folder / "result.json").exists():
            raise WorkersFailed(f"a process of the evaluation failed, with status {status}")
        return Result(**read_json(folder / "result.json"))


def start_workers(folder: Path, processes: int, threads: int | str) -> int:
    """Torchrun's exit status."""
    command = [sys.executable, "-m", "launch.torchrun", "--max-restarts=0", "--standalone"]
    command += [f"--nproc-per-node={processes}", "-m", "launch.evaluate", str(folder)]
    environment = os.environ | {
        "OMP_NUM_THREADS": str(threads),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    return subprocess.run(command, env=environment, check=False).returncode


def work(folder: Path) -> int:
    """One of several workers."""
    spec = read_json(folder / "spec.json")
    config = read_config(spec["config"])
    try:
        trained = load_trained(Path(spec["path"]), spec["checkpoint"], spec["average"])
        if trained.sha256 != spec["sha256"]:
            raise ModelProblem(f"{spec['path']}: was replaced meanwhile; evaluate it again")
        model = OpenModel(trained, config, task_of(trained, config))
        with joined(config.hardware.device, config.hardware.timeout_s) as group:
            result = evaluate_splits(model, spec["splits"], spec["predictions"], group)
            if group.is_first:
                (folder / "result.json").write_text(json.dumps(to_json(asdict(result))))
    except PROBLEMS as problem:
        (folder / f"problem-{os.environ.get('RANK', 0)}.txt").write_text(str(problem))
        return 1
    return 0


if __name__ == "__main__":
    make_streams_safe()
    sys.exit(work(Path(sys.argv[1])))
