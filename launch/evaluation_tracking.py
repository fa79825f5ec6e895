"""An evaluation in W&B, with `tracking=wandb`: in its run's group, with its true outcome.

It has no curve: metrics are the summary. The same evaluation of the same checkpoint is the same run
in W&B, so repeating it adds nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Any

from engine.config import read_config, recipe_fingerprint
from engine.records import wandb_id
from engine.run_info import evaluation_info, prediction_table
from engine.tracking import Artifact, Ending, RunAbout, make_mirrors
from launch.paper_row import paper_row
from launch.trained import OpenModel


@dataclass
class Outcome:
    """What an evaluation has found and written."""

    metrics: dict[str, float] = field(default_factory=dict)  # by split/name
    predictions: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # by split
    files: list[Path] = field(default_factory=list)


@contextmanager
def tracked(
    model: OpenModel, name: str, about: Mapping[str, Any], notes: str, folder: Path
) -> Iterator[Outcome]:
    """Tells W&B, if asked to, what happens inside, where the outcome is filled in.

    `name` is unique among the evaluations of a run; `about` says what is evaluated; `folder` is for
    W&B's own files.
    """
    outcome = Outcome()
    tracking, trained = model.config.tracking, model.trained
    if tracking.wandb == "off":
        yield outcome
        return
    folder.mkdir(parents=True, exist_ok=True)
    known = RunAbout(
        fingerprint=recipe_fingerprint(read_config(trained.config)),
        notes=notes,
        paper=paper_row(model.config.experiment),
    )
    evaluated = {"run_id": trained.name, "wandb_id": wandb_id(trained.name), **about}
    info = evaluation_info(model.config, model.task, f"{trained.name}-{name}", known, evaluated)
    mirrors = make_mirrors(folder, tracking, info, lambda line: print(line, flush=True))
    start = monotonic()
    try:
        yield outcome
        tables = tuple(prediction_table(*found) for found in outcome.predictions.items())
        record = Artifact(f"{wandb_id(info.run_id)}-record", "record", tuple(outcome.files))
        kept = () if tracking.artifacts == "none" else (record,)
        ending = Ending("finished", "", outcome.metrics, kept, tables)
    except BaseException as error:
        ending = Ending("failed", f"{type(error).__name__}: {error}".removesuffix(": "))
        raise
    finally:
        summary = {**ending.summary, "message": ending.message, "wall_s": monotonic() - start}
        for mirror in mirrors:
            mirror.finish(replace(ending, summary=summary))
