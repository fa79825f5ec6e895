"""Predictions of an evaluation as JSON lines: one example a line, in the order of the split.

    index       the example's place in the split
    id          its name there
    input       what the model reads, or `file`, relative to the data set's folder
    reference   what would be right
    hypothesis  what the model predicts
    …           scores of this example: word errors, sentence BLEU, loss, the five likeliest classes

A score that is no finite number is the text "NaN", "Infinity" or "-Infinity". The first `KEPT`
of each split of a run's final evaluation are in `predictions-<split>.jsonl` in the run's folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from engine.records import to_json
from tasks.files import parse_json, write_atomically

KEPT = 50  # of each split of a final evaluation


def predictions_file(folder: Path, split: str) -> Path:
    """Where a run keeps those of its final evaluation."""
    return folder / f"predictions-{split}.jsonl"


def write_predictions(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Whole or not at all."""
    lines = [json.dumps(to_json(row), ensure_ascii=False, allow_nan=False) for row in rows]
    write_atomically(path, "".join(f"{line}\n" for line in lines).encode(), durable=False)


def read_predictions(path: Path) -> list[dict[str, Any]]:
    """What `write_predictions` wrote; an empty list where that is not there, or damaged."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
        return [dict(parse_json(line)) for line in lines if line]
    except (FileNotFoundError, TypeError, ValueError):
        return []
