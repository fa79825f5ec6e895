"""Files that are either the old one or the new one, never half of it, and records in JSON."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def write_atomically(path: Path, data: bytes, durable: bool = True) -> None:
    """Temporary file, rename, and an fsync of both the file and its folder.

    `durable=False` leaves the fsyncs out: safe against a kill, not against a power failure.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def to_json(value: Any) -> Any:
    """The value with NaN and infinities as strings, for which strict JSON has no number."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return value


def from_json(value: Any) -> Any:
    """The inverse of `to_json`."""
    if isinstance(value, str):
        return _FLOATS.get(value, value)
    if isinstance(value, dict):
        return {key: from_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [from_json(item) for item in value]
    return value


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Pretty strict JSON with the keys in the given order, written atomically."""
    text = json.dumps(to_json(record), indent=2, ensure_ascii=False, allow_nan=False)
    write_atomically(path, (text + "\n").encode())


def read_record(path: Path) -> dict[str, Any]:
    """What `write_record` wrote, with its NaNs and infinities."""
    record = from_json(json.loads(path.read_text(encoding="utf-8")))
    if not isinstance(record, dict):
        raise ValueError(f"{path}: a record is a JSON object, not {type(record).__name__}")
    return record
