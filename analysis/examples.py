"""What the models say: predictions that runs kept, a handful for each task.

A run's own are in its folder (engine/predictions.py). A published record has a few beside it, in
`<record>.predictions.jsonl`: of the split that its table shows, with long texts cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.paper import read_paper
from engine.predictions import predictions_file, read_predictions, write_predictions
from engine.records import RECORD_FILE, RunRecord

SHOWN = 5  # of a task
WIDTH = 240  # characters of a text
NOTHING = "(nothing)"

Prediction = Mapping[str, Any]


@dataclass(frozen=True)
class ExampleView:
    """Examples of a task's data set, predicted by the first run of every optimizer."""

    task: str
    data: str
    scale: str
    split: str
    is_own: bool
    labels: tuple[str, ...]  # of the runs
    examples: tuple[tuple[str, ...], ...]  # input or its file, reference, what each run predicts


def published_file(record: Path) -> Path:
    """Where the predictions of a published record are."""
    return record.with_suffix(".predictions.jsonl")


def publish_predictions(record: RunRecord, path: Path) -> bool:
    """Writes a few of a run's predictions beside its published record; False where it has none."""
    rows = read_kept(record)[:SHOWN]
    if rows:
        write_predictions(published_file(path), [_short(row) for row in rows])
    return bool(rows)


def read_kept(record: RunRecord) -> list[Prediction]:
    """The predictions of the split that the paper's table shows, each with its `split`."""
    if record.path is None:
        return []
    if record.path.name != RECORD_FILE:
        return list(read_predictions(published_file(record.path)))
    folder = record.path.parent
    for split in _splits(record):
        rows = read_predictions(predictions_file(folder, split))
        if rows:
            return [{"split": split, **row} for row in rows]
    return []


def example_view(
    task: str, runs: Sequence[tuple[str, RunRecord]], is_own: bool
) -> ExampleView | None:
    """The examples that all runs of some data set predicted; `runs` are labels and records.

    None where no run kept any.
    """
    kept = [(label, record, read_kept(record)) for label, record in runs]
    kept = [one for one in kept if one[2]]
    if not kept:
        return None
    split = kept[0][2][0]["split"]
    by_id = [{row["id"]: row for row in rows if row["split"] == split} for *_, rows in kept]
    common = [row for row in kept[0][2] if all(row["id"] in found for found in by_id)]
    examples = [
        (
            _cut(row.get("input", row.get("file", row["id"]))),
            _cut(row["reference"]),
            *(_cut(found[row["id"]]["hypothesis"]) or NOTHING for found in by_id),
        )
        for row in common[:SHOWN]
    ]
    first = kept[0][1]
    labels = tuple(label for label, *_ in kept)
    return ExampleView(task, first.data, first.scale, split, is_own, labels, tuple(examples))


def _splits(record: RunRecord) -> Iterable[str]:
    """Of the paper's table first, then the others that the run evaluated."""
    tables = [table for table in read_paper() if table.task == record.task]
    shown = [metric for table in tables for metric in table.tolerance]
    return dict.fromkeys(metric.rpartition("/")[0] for metric in (*shown, *record.final))


def _short(row: Prediction) -> dict[str, Any]:
    return {key: _cut(value) if isinstance(value, str) else value for key, value in row.items()}


def _cut(text: Any) -> str:
    text = str(text).strip()
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"
