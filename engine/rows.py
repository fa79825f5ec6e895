"""metrics.jsonl: one row per logged step and per evaluation, and the thinned curves of a record."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from engine.records import RecordError, as_number, to_json
from tasks.files import parse_json, write_atomically

ROWS_FILE = "metrics.jsonl"
LINE_END = b"\n"
CURVE_POINTS = 60  # of a record's curves
TELEMETRY = "optimizer/"  # what columns of optimizer telemetry begin with
UPDATE_RATIO = f"{TELEMETRY}update_ratio/"

Row = dict[str, float]


def encode_row(row: Mapping[str, float]) -> bytes:
    """A line of metrics.jsonl."""
    row["step"]  # a row without one could not be dropped at a resume
    return json.dumps(to_json(row), allow_nan=False).encode() + b"\n"


def decode_row(line: bytes) -> Row:
    """ValueError for anything but a JSON object of numbers with a step."""
    raw = parse_json(line)
    if not isinstance(raw, dict) or "step" not in raw:
        raise ValueError("a row is a JSON object with a step")
    return {key: as_number(key, value) for key, value in raw.items()}


def read_intact_rows(path: Path) -> tuple[list[tuple[bytes, Row]], bool]:
    """Lines and their rows up to the first damaged line, and whether others follow that one.

    A damaged last line is what a kill leaves and counts as none.
    """
    raw = path.read_bytes().split(b"\n")
    if raw[-1] == b"":
        raw.pop()
    found: list[tuple[bytes, Row]] = []
    for line in raw:
        try:
            found.append((line, decode_row(line)))
        except ValueError:
            break
    return found, len(found) < len(raw) - 1


def read_rows(path: Path) -> list[Row]:
    """The rows of a metrics.jsonl as logged, also while it is being written or after a kill."""
    lines, damaged = read_intact_rows(path)
    if damaged:
        raise RecordError(f"{path}: line {len(lines) + 1} is not a row")
    return [row for _, row in lines]


def sort_rows(rows: Iterable[Mapping[str, float]]) -> list[Row]:
    """Rows by step, a training row before an evaluation of its step; of equals the last one.

    A run that resumes, and its W&B mirror, may log the same step again.
    """

    def is_evaluation(row: Mapping[str, float]) -> bool:
        return not any(key.startswith("train/") for key in row)

    latest = {(row["step"], is_evaluation(row)): dict(row) for row in rows}
    return [latest[key] for key in sorted(latest)]


class RowArchive:
    """All rows of a run so far, compressed: what a checkpoint holds to restore them from."""

    def __init__(self, rows: bytes = b"") -> None:
        self._compressor = zlib.compressobj()
        self._parts: list[bytes] = []
        self.size = 0  # of the rows, not compressed
        self.add(rows)

    @classmethod
    def unpack(cls, content: bytes) -> RowArchive:
        """The archive that `content` is of."""
        return cls(zlib.decompress(content))

    def add(self, lines: bytes) -> None:
        self._parts.append(self._compressor.compress(lines))
        self.size += len(lines)

    def content(self) -> bytes:
        """For a checkpoint; more rows may be added afterwards."""
        self._parts = [b"".join(self._parts)]
        return self._parts[0] + self._compressor.copy().flush()

    def rows(self) -> bytes:
        """The lines of metrics.jsonl."""
        return zlib.decompress(self.content())


def restore_rows(path: Path, rows: bytes, log: Callable[[str], None]) -> None:
    """Has a metrics.jsonl hold these rows alone; names what was missing or changed in it."""
    found = path.read_bytes() if path.exists() else None
    if found == rows:
        return
    if not (found or b"").startswith(rows):
        log(f"{path.name} {_damage(found, rows)}: restored, no row is lost")
    write_atomically(path, rows)


def _damage(found: bytes | None, rows: bytes) -> str:
    if found is None:
        return "is missing"
    saved = rows.splitlines(keepends=True)
    pairs = enumerate(zip(found.splitlines(keepends=True), saved, strict=False), start=1)
    first = next((number for number, (ours, line) in pairs if ours != line), None)
    if first is None:
        return f"lacks rows: it has {found.count(LINE_END)} of {len(saved)} lines"
    return f"is not what was logged, from line {first} of {len(saved)} on"


def keep_rows_until(path: Path, step: int, log: Callable[[str], None]) -> bytes:
    """The lines of a metrics.jsonl up to a step, which then holds no others; names damaged ones.

    For a run whose checkpoint does not hold its rows. Nothing is kept before the first step.
    """
    if not path.exists():
        if step > 0:
            log(f"{path.name} is missing: the rows up to step {step} are lost")
        return b""
    before = path.read_bytes()
    *lines, torn = before.split(b"\n")
    kept, damaged = [], []
    for number, line in enumerate([*lines, torn] if torn else lines, start=1):
        try:
            if decode_row(line)["step"] <= step > 0:
                kept.append(line + b"\n")
        except ValueError:
            if number <= len(lines):  # a kill leaves a torn last line
                damaged.append(str(number))
    if damaged and step > 0:
        log(f"{path.name}: damaged rows are left out, in lines {', '.join(damaged)}")
    rows = b"".join(kept)
    if rows != before:
        write_atomically(path, rows)
    return rows


class RowTail:
    """The newest values of a growing metrics.jsonl; each call reads only what is new."""

    AT_FIRST = 1 << 16  # bytes from the end

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode, self._offset = 0, 0  # the inode changes where a resumed run drops rows
        self._merged: Row = {}

    def read(self) -> Row:
        """The newest value of every key seen so far."""
        with suppress(OSError), self._path.open("rb") as file:
            found = os.fstat(file.fileno())
            if found.st_ino != self._inode or found.st_size < self._offset:
                self._inode, self._merged = found.st_ino, {}
                self._offset = max(0, found.st_size - self.AT_FIRST)
            file.seek(self._offset)
            *whole, torn = file.read().split(b"\n")
            for line in whole:
                with suppress(ValueError):  # the first may begin in the middle of a row
                    self._merged |= decode_row(line)
            self._offset = file.tell() - len(torn)
        return self._merged


def mean_update_ratios(rows: Sequence[Row]) -> dict[str, float]:
    """What a record keeps of optimizer telemetry: the mean of each layer group's column."""
    names = {name for row in rows for name in row if name.startswith(UPDATE_RATIO)}
    return {
        name: _six_digits(float(np.mean([row[name] for row in rows if name in row])))
        for name in sorted(names)
    }


def thin_curves(
    rows: Sequence[Row], points: int = CURVE_POINTS
) -> dict[str, dict[str, list[float]]]:
    """A record's curves: training loss and all evaluations by step and epoch, six digits each.

    Which steps are kept depends on the rows' steps alone, so that all seeds have the same. What is
    measured on a few batches is averaged between the kept points; evaluations stay as they are.
    """
    names = {name for row in rows for name in row if "/" in name}
    apart = ("train/", "speed/", TELEMETRY)
    kept = sorted(n for n in names if n == "train/loss" or not n.startswith(apart))
    found = {}
    for metric in kept:
        own = [row for row in rows if metric in row]
        parts = [part for part in np.array_split(np.arange(len(own)), points) if len(part)]
        found[metric] = {
            "step": [own[part[-1]]["step"] for part in parts],
            "epoch": [_six_digits(own[part[-1]]["epoch"]) for part in parts],
            "value": [
                _six_digits(
                    float(np.mean([own[i][metric] for i in part]))
                    if is_averaged(metric)
                    else own[part[-1]][metric]
                )
                for part in parts
            ],
        }
    return found


def is_averaged(metric: str) -> bool:
    """Whether single values are noise around the quantity of interest; never an evaluation's."""
    return metric in ("train/loss", "train/grad_norm") or metric.startswith("speed/")


def _six_digits(value: float) -> float:
    return float(f"{value:.6g}")
