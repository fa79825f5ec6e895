"""One prediction per task, for the end of a demonstration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.predictions import predictions_file, read_predictions
from engine.records import RUN_FILE, read_run_file
from tasks.catalog import task_class

WIDTH = 96  # characters of a line


def show_examples(folders: Sequence[Path]) -> str:
    """The first prediction of each run's headline split; runs without any are left out."""
    blocks = []
    for folder in folders:
        if not (folder / RUN_FILE).exists():
            continue
        run = read_run_file(folder)
        split = task_class(run.config["task"]["name"]).headline.split
        rows = read_predictions(predictions_file(folder, split))
        if rows:
            blocks.append(_block(f"{run.run_id}, {split}, {rows[0]['id']}", rows[0]))
    return "\n\n".join(blocks)


def _block(head: str, row: dict[str, Any]) -> str:
    lines = {
        "input": row.get("input", row.get("file", "")),
        "reference": row["reference"],
        "prediction": row["hypothesis"] or "(nothing)",
    }
    shown = [f"  {name:10}  {_cut(str(text))}" for name, text in lines.items()]
    return "\n".join([head, *shown])


def _cut(text: str) -> str:
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"
