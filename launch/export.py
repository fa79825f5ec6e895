"""Exports a trained model: weights, configuration, vocabulary and model card in one folder."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from engine.export import write_export
from engine.loading import LAST, ModelProblem
from engine.model_card import CardFacts, Measured, write_card
from engine.records import RECORD_FILE, RecordError, RunRecord, read_json, read_record
from launch.trained import PROBLEMS, OpenModel, open_model

# Of the configuration: not of the recipe, or of one machine alone.
LEFT_OUT = ("hardware", "tracking", "cluster", "paths", "init_from")
# Of `hardware`: what may change the last bits of a result.
NUMBERS = ("precision", "tf32", "channels_last", "deterministic")


def run_export(path: Path, folder: Path, checkpoint: str = LAST, average: int = 1) -> int:
    """The exit status; the folder is there whole or not at all."""
    try:
        model = open_model(path, checkpoint, average, ())
        if model.trained.is_export:
            raise ModelProblem(f"{path}: is an export already; copy it")
        if not model.trained.files:  # of a run that did not keep them
            model.task.prepare_data()
        record: RunRecord | None = None
        with suppress(RecordError):
            record = read_record(model.trained.folder / RECORD_FILE)
        measured = _measured(model, record)
        card = _card(model, record, measured, folder.name)
        config, files = _config(model, record, measured), model.task.model_files()
        write_export(folder, model.trained.weights, config, files, card)
    except (*PROBLEMS, FileExistsError) as problem:
        print(problem, file=sys.stderr)
        return 2
    except OSError as problem:
        print(f"--to {folder}: can't be written: {problem.strerror}", file=sys.stderr)
        return 2
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{model.trained.name} ({model.trained.label}): {size:,} bytes in {folder}", flush=True)
    for file in sorted(folder.iterdir()):
        print(f"  {file.name}", flush=True)
    return 0


def _config(model: OpenModel, record: RunRecord | None, measured: list[Measured]) -> dict[str, Any]:
    trained = model.trained
    recipe = {k: v for k, v in trained.config.items() if k not in LEFT_OUT}
    hardware = trained.config["hardware"]
    recipe["hardware"] = {key: hardware[key] for key in NUMBERS}
    return {
        "task": trained.task,
        "model": asdict(model.task.model_options),
        "preprocessing": model.task.preprocessing(),
        "training": {
            "run_id": trained.name,
            "from": trained.label,
            "step": trained.step,
            "date": record.date if record else None,
            "environment": record.environment if record else None,
        },
        "evaluations": [asdict(one) for one in measured],
        "weights_sha256": trained.sha256,
        "recipe": recipe,
    }


def _card(model: OpenModel, record: RunRecord | None, measured: list[Measured], name: str) -> str:
    trained, config = model.trained, model.config
    environment = record.environment if record else {}
    module = model.build(torch.device("cpu"))
    facts = CardFacts(
        name=trained.name,
        experiment=config.experiment,
        scale=config.scale,
        task=trained.task,
        label=trained.label,
        step=trained.step,
        seed=config.seed,
        parameters=sum(p.numel() for p in module.parameters()),
        sha256=trained.sha256,
        recipe=trained.config,
        measured=measured,
        environment=environment,
        initial=environment.get("initial_model"),
    )
    return write_card(facts, model.task.hub, name)


def _measured(model: OpenModel, record: RunRecord | None) -> list[Measured]:
    """What the run found for these weights, and later evaluations of the very same."""
    trained, found = model.trained, []
    if trained.metrics:
        splits = dict.fromkeys(name.partition("/")[0] for name in trained.metrics)
        found.append(
            Measured(
                data=str(trained.config["data"]["name"]),
                metrics=trained.metrics,
                protocols={split: model.task.protocol(split) for split in splits},
                source=f"the run's evaluation at step {trained.step}",
                environment=record.environment if record else {},
            )
        )
    for file in sorted(trained.folder.glob("evaluation-*.json")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            raw = read_json(file)
            same = any(m.metrics.items() >= raw["metrics"].items() for m in found)
            if raw["weights"]["sha256"] == trained.sha256 and not same:
                source = ", ".join([f"scripts.evaluate on {raw['date']}", *raw["overrides"]])
                found.append(
                    Measured(
                        raw["data"], raw["metrics"], raw["protocols"], source, raw["environment"]
                    )
                )
    return found
