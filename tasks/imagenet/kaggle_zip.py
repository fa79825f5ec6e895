"""ImageNet as Kaggle's competition offers it: one zip of images, annotations and tables."""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

from tasks.base import DataProblem
from tasks.imagenet.folders import SOLUTION, parse_solution
from tasks.imagenet.packed import LARGEST_IMAGE, Entry, PackedImages
from tasks.sources import Survey, copy_bytes

LARGEST_TABLE = 1 << 26  # bytes of the table of labels; it has 2 MB


class KaggleZip(PackedImages):
    """One zip with ILSVRC/Data/CLS-LOC/{train,val} and the table of val's labels."""

    form = "Kaggle's zip"
    wanted = f"a zip with ILSVRC/Data/CLS-LOC/ and {SOLUTION} in it or beside it"
    MEMBER = re.compile(
        r"(?:.*/)?ILSVRC/Data/CLS-LOC/(?:train/(?P<wnid>n[0-9]{8})/(?P<train>(?P=wnid)_[0-9]+\.JPEG)"
        r"|val/(?P<val>ILSVRC2012_val_[0-9]{8}\.JPEG))"
    )

    def __init__(self, path: Path, table: Path | None) -> None:
        self.path, self.table = path, table
        self._members: dict[str, list[zipfile.ZipInfo]] = {}
        self._labels: dict[str, str] = {}
        self._read()

    @classmethod
    def recognise(cls, found: Survey) -> Self | None:
        for path in found.ending(".zip"):
            if not zipfile.is_zipfile(path):
                if "imagenet" in path.name.lower():
                    raise DataProblem(f"{path}: not a whole zip archive; copy or download it again")
                continue
            with zipfile.ZipFile(path) as packed:
                if any("ILSVRC/Data/CLS-LOC/" in name for name in packed.namelist()):
                    return cls(path, next(iter(found.named(SOLUTION)), None))
        return None

    def _read(self) -> None:
        table = ""
        with zipfile.ZipFile(self.path) as packed:
            for info in packed.infolist():
                match = self.MEMBER.fullmatch(info.filename)
                if match:
                    if not 0 < info.file_size <= LARGEST_IMAGE:
                        raise DataProblem(
                            f"{self.path}: {info.filename} declares {info.file_size:,} bytes, which"
                            " is no image's size"
                        )
                    unit = f"train/{match['wnid']}" if match["wnid"] else "val"
                    self._members.setdefault(unit, []).append(info)
                elif info.filename.rpartition("/")[2] == SOLUTION and self.table is None:
                    table = self._read_table(packed, info)
        if self.table is not None:
            table = self.table.read_text(encoding="utf-8", errors="replace")
        if not table:
            raise DataProblem(
                f"{self.path}: no {SOLUTION} in it; name that file too: --from ZIP CSV"
            )
        wnids = {unit.partition("/")[2] for unit in self._members if unit != "val"}
        self._labels = parse_solution(f"{self.path}, {SOLUTION}", table, wnids)

    def _read_table(self, packed: zipfile.ZipFile, info: zipfile.ZipInfo) -> str:
        if info.file_size > LARGEST_TABLE:
            raise DataProblem(f"{self.path}: {info.filename} declares {info.file_size:,} bytes")
        try:
            with packed.open(info) as file:
                return file.read(LARGEST_TABLE).decode("utf-8", errors="replace")
        except (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError) as error:
            raise DataProblem(f"{self.path}: {info.filename}: {error}") from error

    def describe(self) -> str:
        return f"{self.path}: {self.form}; {self.bytes_needed() / 1e9:,.1f} GB are unpacked"

    def inputs(self) -> list[Path]:
        return [self.path, *([self.table] if self.table else [])]

    def bytes_needed(self) -> int:
        return sum(info.file_size for some in self._members.values() for info in some)

    def units(self) -> list[str]:
        return sorted(self._members)

    def entries(self, unit: str) -> list[Entry]:
        found = []
        for info in self._members[unit]:
            name = info.filename.rpartition("/")[2]
            if unit == "val" and name not in self._labels:
                raise DataProblem(f"{self.path}: {SOLUTION} has no label for {name}")
            label = self._labels[name] if unit == "val" else unit.partition("/")[2]
            found.append(Entry(unit.partition("/")[0], label, name, info.file_size))
        return found

    def extract(self, unit: str, targets: Sequence[Path]) -> Iterator[int]:
        with zipfile.ZipFile(self.path) as packed:
            for info, target in zip(self._members[unit], targets, strict=True):
                try:
                    with packed.open(info) as source:
                        origin = f"{self.path}, {info.filename}"
                        copy_bytes(source, target, info.file_size, origin)
                        if source.read(1):
                            raise zipfile.BadZipFile(f"{info.filename} is longer than it declares")
                except (
                    zipfile.BadZipFile,
                    zlib.error,
                    EOFError,
                    RuntimeError,
                    NotImplementedError,
                ) as error:
                    raise DataProblem(
                        f"{self.path}: cannot be unpacked: {error}; get it again"
                    ) from error
                yield info.file_size
