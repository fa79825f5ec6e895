"""Parquet files as Hugging Face has them: which split each belongs to, and their rows.

Files may lie in any folder, a Hugging Face cache too (`datasets--owner--name/snapshots/…`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.base import DataProblem
from tasks.sources import split_of

ROWS_AT_ONCE = 64
MOST_ROW_BYTES = 1 << 31  # uncompressed bytes of a group of rows, by the file's own footer


@dataclass(frozen=True)
class ParquetFile:
    """An opened footer: names of columns, and how many rows and bytes there are."""

    path: Path
    columns: tuple[str, ...]  # dotted, e.g. image.bytes
    rows: int
    uncompressed: int  # bytes of all columns

    @property
    def name(self) -> str:
        return self.path.name


def parquet_files(files: Sequence[Path]) -> list[ParquetFile]:
    """Footers of the parquet files among some files; DataProblem if one is damaged."""
    return [_open(path) for path in files if path.suffix == ".parquet"]


def _open(path: Path) -> ParquetFile:
    parquet, arrow = _libraries()
    try:
        with parquet.ParquetFile(path) as file:
            metadata = file.metadata
            groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
            sizes = [int(group.total_byte_size) for group in groups]
            columns = tuple(metadata.schema.column(i).path for i in range(metadata.num_columns))
            rows = int(metadata.num_rows)
    except (OSError, arrow.ArrowException) as error:
        raise DataProblem(
            f"{path}: cannot be read as parquet: {_first_line(error)}; get it again"
        ) from error
    if any(not 0 <= size <= MOST_ROW_BYTES for size in sizes):
        raise DataProblem(
            f"{path}: a group of rows declares {max(sizes):,} bytes, more than the"
            f" {MOST_ROW_BYTES:,} that are read at once"
        )
    return ParquetFile(path, columns, rows, sum(sizes))


def read_rows(file: ParquetFile, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Rows as dicts of the chosen columns; nested ones stay dicts."""
    parquet, arrow = _libraries()
    try:
        with parquet.ParquetFile(file.path) as opened:
            for batch in opened.iter_batches(ROWS_AT_ONCE, columns=list(columns)):
                yield from batch.to_pylist()
    except (OSError, arrow.ArrowException) as error:
        raise DataProblem(
            f"{file.path}: cannot be read to its end: {_first_line(error)}; get it again"
        ) from error


def by_split(files: Sequence[ParquetFile], needed: Sequence[str]) -> dict[str, list[ParquetFile]]:
    """The files of each split in the order of their names; DataProblem if a split has none."""
    found: dict[str, list[ParquetFile]] = {split: [] for split in needed}
    for file in sorted(files, key=lambda f: f.path):
        split = split_of(file.path)
        if split is None:
            raise DataProblem(
                f"{file.path}: neither its name nor its folder's says train, validation or test"
            )
        if split in found:
            found[split].append(file)
    missing = [split for split, some in found.items() if not some]
    if missing:
        folder = files[0].path.parent
        raise DataProblem(f"{folder}: no parquet files of {' and '.join(missing)}")
    for some in found.values():
        check_numbering(some)
    return found


NUMBERED = re.compile(r"(?P<before>.*?)(?P<n>\d+)-of-(?P<total>\d+)(?P<after>.*)")


def check_numbering(files: Sequence[ParquetFile]) -> None:
    """Of files named as train-00000-of-00004.parquet all must be there."""
    sets: dict[tuple[str, str, int], set[int]] = {}
    for file in files:
        match = NUMBERED.fullmatch(file.path.name)
        if match:
            key = (match["before"], match["after"], int(match["total"]))
            sets.setdefault(key, set()).add(int(match["n"]))
    for (before, after, total), numbers in sets.items():
        first = 1 if total in numbers else 0
        missing = sorted(set(range(first, first + total)) - numbers)
        if missing:
            raise DataProblem(
                f"{files[0].path.parent}: {len(numbers):,} of {total:,} files {before}…{after}; the"
                f" first missing one has the number {missing[0]}"
            )
    if len({key[2] for key in sets}) > 1 and len({key[:2] for key in sets}) == 1:
        raise DataProblem(f"{files[0].path.parent}: parquet files of two different downloads")


def _libraries() -> tuple[Any, Any]:
    try:
        import pyarrow  # type: ignore[import-untyped]
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ImportError:
        raise DataProblem(
            "parquet files are read by pyarrow, which is not installed: pip install pyarrow"
        ) from None
    return pyarrow.parquet, pyarrow


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
