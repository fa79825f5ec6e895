"""Whether a disturbed run ended as an undisturbed one: weights to the bit, records, leftovers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from engine.records import RecordError, read_record, read_status
from engine.rows import ROWS_FILE, read_rows

TIMED = ("wall_s", "speed/units_per_s", "speed/data_wait")  # what a clock says


TRAINED = ("at", "final", "best", "last", "model", "optimizer", "scaler", "carry", "buffers")


class Reference:
    """A run that nobody has disturbed, and how many seconds its command took."""

    def __init__(self, run: Path, seconds: float) -> None:
        self.folder, self.seconds = run, seconds
        self._checkpoints = {name: digest(run / "checkpoints" / name) for name in finals(run)}
        self._rows, self._record = clean_rows(run), read_record(run / "record.json")

    def differences(self, run: Path, *, rows: bool = True) -> list[str]:
        """What differs in the folder of a run that should have ended in the same way."""
        problems = [f"left behind: {path.name}" for path in leftovers(run)]
        if (kind := read_status(run).kind) != "finished":
            problems.append(f"the status is {kind!r} instead of 'finished'")
        for name, wanted in self._checkpoints.items():
            path = run / "checkpoints" / name
            if not path.exists():
                problems.append(f"{name} is missing")
            elif digest(path) != wanted:
                problems.append(f"{name} has other weights than that of the undisturbed run")
        try:
            record = read_record(run / "record.json")
            for what in ("final", "best", "last", "status"):
                if getattr(record, what) != getattr(self._record, what):
                    problems.append(f"the record has another {what}")
        except RecordError as problem:
            problems.append(str(problem))
        if rows and clean_rows(run) != self._rows:
            problems.append(f"{ROWS_FILE} has other rows")
        return problems


def finals(run: Path) -> list[str]:
    """The last checkpoint and the best one."""
    last = max((run / "checkpoints").glob("step-*.pt"))
    return [last.name, "best.pt"]


def digest(path: Path) -> str:
    """Of all in a checkpoint that the training depends on; times and rows are left out."""
    state = torch.load(path, map_location="cpu", weights_only=True)
    state = {key: value for key, value in state.items() if key in TRAINED}
    state["at"].pop("wall_s", None)
    sha256 = hashlib.sha256()
    for part in _parts(state):
        sha256.update(part)
    return sha256.hexdigest()


def _parts(value: Any) -> Iterator[bytes]:
    if isinstance(value, torch.Tensor):
        yield f"{value.dtype}{tuple(value.shape)}".encode()
        yield value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            yield str(key).encode()
            yield from _parts(value[key])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _parts(item)
    else:
        yield repr(value).encode()


def clean_rows(run: Path) -> list[dict[str, float]]:
    """Rows without what a clock says; none where the file is damaged."""
    try:
        found = read_rows(run / ROWS_FILE)
    except (OSError, RecordError):
        return []
    return [{key: value for key, value in row.items() if key not in TIMED} for row in found]


def leftovers(folder: Path) -> list[Path]:
    """Temporary files."""
    return sorted(path for path in folder.rglob("*.tmp"))


def finite(path: Path) -> bool:
    """Whether all weights of a checkpoint are."""
    model = torch.load(path, map_location="cpu", weights_only=True)["model"]
    return all(bool(torch.isfinite(t).all()) for t in model.values() if t.is_floating_point())


def is_json(path: Path) -> bool:
    try:
        json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return True
