"""ImageNet as webdataset's shards, read by the standard library's tarfile."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Self

from tasks.base import DataProblem
from tasks.imagenet.packed import LARGEST_IMAGE, Entry, PackedImages, check_label
from tasks.sources import Survey, copy_bytes, split_of
from tasks.tars import open_tar

SHARD_NUMBER = re.compile(r"(?P<before>.*?)(?P<n>[0-9]+)\.tar")


class WebDataset(PackedImages):
    """Shards in tar: <key>.jpg (.jpeg, .png) and <key>.cls, the label as a number."""

    form = "webdataset shards"
    wanted = "*.tar of train and val with <key>.jpg and <key>.cls"

    def __init__(self, shards: dict[str, list[Path]]) -> None:
        self.shards = shards
        self._splits = {str(path): name for name, some in shards.items() for path in some}
        self._members: dict[str, list[tarfile.TarInfo]] = {}

    @classmethod
    def recognise(cls, found: Survey) -> Self | None:
        official = {a.name for a in cls.expected.archives}
        tars = [p for p in found.ending(".tar") if p.name not in official]
        if not tars or not _has_classes(tars[0]):
            return None
        shards: dict[str, list[Path]] = {"train": [], "val": []}
        for path in tars:
            split = split_of(path)
            if split is None:
                raise DataProblem(f"{path}: neither its name nor its folder's says train or val")
            if split != "test":
                shards["val" if split == "valid" else split].append(path)
        for split, some in shards.items():
            if not some:
                raise DataProblem(f"{tars[0].parent}: no shards of {split}")
            _check_numbers(some)
        return cls(shards)

    def describe(self) -> str:
        return (
            f"{self.inputs()[0].parent}: {len(self._splits):,} webdataset shards;"
            f" {self.bytes_needed() / 1e9:,.1f} GB are unpacked"
        )

    def inputs(self) -> list[Path]:
        return [Path(path) for path in self._splits]

    def bytes_needed(self) -> int:
        return sum(path.stat().st_size for path in self.inputs())

    def units(self) -> list[str]:
        return list(self._splits)

    def entries(self, unit: str) -> list[Entry]:
        images, labels = read_shard(Path(unit))
        lost = sorted(images.keys() ^ labels.keys())
        if lost:
            has = "no .cls" if lost[0] in images else "no image"
            raise DataProblem(f"{unit}: {lost[0]} has {has}; both must be in the same shard")
        self._members[unit] = list(images.values())
        split = self._splits[unit]
        return [
            Entry(split, labels[key], f"{key.rpartition('/')[2]}.jpg", member.size)
            for key, member in images.items()
        ]

    def extract(self, unit: str, targets: Sequence[Path]) -> Iterator[int]:
        with Path(unit).open("rb") as tar:
            for member, target in zip(self._members[unit], targets, strict=True):
                tar.seek(member.offset_data)
                copy_bytes(tar, target, member.size, f"{unit}, {member.name}")
                yield member.size


def read_shard(path: Path) -> tuple[dict[str, tarfile.TarInfo], dict[str, int]]:
    """Images and labels by key; names are never used as paths, and only plain files are read."""
    images: dict[str, tarfile.TarInfo] = {}
    labels: dict[str, int] = {}
    length = path.stat().st_size
    try:
        with path.open("rb") as raw, open_tar(raw, "r:") as tar:
            for member in tar:
                folder, _, base = member.name.rpartition("/")
                stem, _, suffix = base.partition(".")
                key, suffix = f"{folder}/{stem}", suffix.lower()
                if suffix not in ("jpg", "jpeg", "png", "cls"):
                    continue
                if not member.isreg() or member.issparse():
                    raise DataProblem(f"{path}: {member.name!r} is a link or device, not a file")
                if member.offset_data + member.size > length:
                    raise DataProblem(
                        f"{path}: cut off: {member.name!r} declares {member.size:,} bytes"
                    )
                if key in (labels if suffix == "cls" else images):
                    raise DataProblem(f"{path}: {member.name!r} is in it twice")
                if suffix != "cls":
                    if not 0 < member.size <= LARGEST_IMAGE:
                        raise DataProblem(
                            f"{path}: {member.name!r} has {member.size:,} bytes, no image's size"
                        )
                    images[key] = member
                    continue
                text = _small_text(raw, member)
                number = int(text) if text.isdecimal() else text
                labels[key] = check_label(number, f"{path}, {member.name}")
            raw.seek(tar.offset)
            if raw.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise DataProblem(
                    f"{path}: cut off or damaged at byte {tar.offset:,} of {length:,}"
                )
    except (tarfile.TarError, ValueError, OverflowError, EOFError) as error:
        raise DataProblem(f"{path}: not a whole tar archive: {error}") from error
    return images, labels


def _small_text(raw: IO[bytes], member: tarfile.TarInfo) -> str:
    """The content of a .cls file, without disturbing the tar's own position."""
    if member.size > 16:
        return f"{member.size:,} bytes"
    position = raw.tell()
    raw.seek(member.offset_data)
    data = raw.read(member.size)
    raw.seek(position)
    return data.decode("ascii", errors="replace").strip()


def _has_classes(path: Path) -> bool:
    """Whether one of the first files is a label."""
    try:
        with open_tar(path, "r:") as tar:
            return any(
                member.name.endswith(".cls") for member, _ in zip(tar, range(20), strict=False)
            )
    except (tarfile.TarError, OSError, ValueError, EOFError):
        return False


def _check_numbers(shards: Sequence[Path]) -> None:
    """Of numbered shards none may be missing in between."""
    sets: dict[str, list[int]] = {}
    for path in shards:
        match = SHARD_NUMBER.fullmatch(path.name)
        if match:
            sets.setdefault(match["before"], []).append(int(match["n"]))
    for before, numbers in sets.items():
        first = 1 if min(numbers) == 1 else 0
        missing = sorted(set(range(first, max(numbers))) - set(numbers))
        if missing:
            raise DataProblem(
                f"{shards[0].parent}: shard {missing[0]} of {before}… is missing, of"
                f" {first} to {max(numbers)}"
            )
