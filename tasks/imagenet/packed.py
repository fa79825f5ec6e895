"""ImageNet inside other files: Kaggle's zip, Hugging Face's parquet, webdataset's shards.

Each is read twice: once for names and labels, which are checked before anything is written, and
once for the images. Names become those of the official set where they contain them, so the order
of the images, and with it a run, is the same from every form.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Self

from tasks.base import DataProblem
from tasks.download import Report
from tasks.imagenet.folders import ImageNetSource, image_part
from tasks.making import Say
from tasks.manifests import Part
from tasks.parquet import ParquetFile, by_split, parquet_files, read_rows
from tasks.sources import StagedSource, Survey, Units

LARGEST_IMAGE = 1 << 28  # bytes of one file; ImageNet's largest has 15 MB
OFFICIAL_NAME = re.compile(
    r"(?P<name>(?:(?P<train>n[0-9]{8})_[0-9]+|ILSVRC2012_val_[0-9]{8}))(?:_(?P<wnid>n[0-9]{8}))?"
    r"\.jpe?g",
    re.IGNORECASE,
)
PLAIN_NAME = re.compile(r"\w[\w.-]{0,200}\.(jpe?g|png)", re.IGNORECASE | re.ASCII)


class Entry(NamedTuple):
    """An image before its place is decided."""

    split: str  # train or val
    label: int | str  # a number, or the name of the class
    given: str  # its name in the source
    size: int  # bytes, 0 if not known yet


class PackedImages(ImageNetSource, StagedSource):
    """Images that are written to train/<class>/ and val/<class>/ unit by unit."""

    action = "unpacked"

    @abstractmethod
    def units(self) -> list[str]:
        """What is unpacked as one, in order."""

    @abstractmethod
    def entries(self, unit: str) -> list[Entry]:
        """The images of a unit."""

    @abstractmethod
    def extract(self, unit: str, targets: Sequence[Path]) -> Iterator[int]:
        """Writes the images of a unit to their places, in the order of `entries`; their sizes."""

    @cached_property
    def _entries(self) -> dict[str, list[Entry]]:
        return {unit: self.entries(unit) for unit in self.units()}

    def write(self, folder: Path, units: Units, report: Report, say: Say) -> dict[str, Part]:
        places = place_images(self._entries, self.form)
        total, done = self.bytes_needed(), 0
        for class_folder in {path.parent for some in places.values() for path in some}:
            (folder / class_folder).mkdir(parents=True, exist_ok=True)
        report("unpacking images", 0, max(total, 1))
        for unit, paths in places.items():
            targets = [folder / path for path in paths]
            if unit in units:
                done += sum(target.stat().st_size for target in targets)
                continue
            for size in self.extract(unit, targets):
                done += size
                report("unpacking images", min(done, total), max(total, 1))
            units.finish(unit)
        report("unpacking images", max(total, 1), max(total, 1))
        return self._parts(folder, places)

    def _parts(self, folder: Path, places: dict[str, list[Path]]) -> dict[str, Part]:
        parts = {}
        for split in ("train", "val"):
            paths = [p for some in places.values() for p in some if p.parts[0] == split]
            size = sum((folder / path).stat().st_size for path in paths)
            counts = {"images": len(paths), "classes": len({p.parts[1] for p in paths})}
            parts[split] = image_part(self.form, self.action, split, counts, size, self.expected)
            if any(not OFFICIAL_NAME.fullmatch(path.name) for path in paths):
                parts[split].remarks.append(
                    "images do not have the official names, so they are in another order"
                )
        return parts


def place_images(entries: dict[str, list[Entry]], form: str) -> dict[str, list[Path]]:
    """<split>/<class>/<name> for every image of every unit."""
    every = [entry for some in entries.values() for entry in some]
    for split in ("train", "val"):
        if not any(entry.split == split for entry in every):
            raise DataProblem(f"{form}: no images of {split} in it")
    classes = _class_names(every)
    keep = _names_are_usable(every)
    places: dict[str, list[Path]] = {}
    number = 0
    for unit, some in entries.items():
        places[unit] = []
        for entry in some:
            number += 1
            name = _clean(entry.given) if keep else f"{number:08}.JPEG"
            places[unit].append(Path(entry.split, classes[entry.label], name))
    repeated = [p for p, n in Counter(p for some in places.values() for p in some).items() if n > 1]
    if repeated:
        raise DataProblem(f"{form}: {repeated[0]} is in it twice")
    train, val = (
        {p.parts[1] for some in places.values() for p in some if p.parts[0] == split}
        for split in ("train", "val")
    )
    if train != val:
        raise DataProblem(
            f"{form}: {len(train):,} classes in train and {len(val):,} in val; class"
            f" {min(train ^ val)} is in one only (is a copy incomplete?)"
        )
    return places


def _class_names(entries: Sequence[Entry]) -> dict[int | str, str]:
    """WordNet's name of each label where the images' names have it, otherwise its number."""
    named: dict[int | str, str] = {}
    for entry in entries:
        match = OFFICIAL_NAME.fullmatch(entry.given)
        wnid = (match["wnid"] or match["train"]) if match else None
        if isinstance(entry.label, str):
            wnid = entry.label
        if wnid and named.setdefault(entry.label, wnid) != wnid:
            raise DataProblem(
                f"{entry.given}: label {entry.label} is of {named[entry.label]} elsewhere; the"
                " labels do not fit the names"
            )
    labels = {entry.label for entry in entries}
    if set(named) == labels and len(set(named.values())) == len(labels):
        return named
    return {label: f"{int(label):04}" for label in labels}


def _names_are_usable(entries: Sequence[Entry]) -> bool:
    """Whether all are plain names of images, and different within a split and class."""
    seen = set()
    for entry in entries:
        if not PLAIN_NAME.fullmatch(entry.given):
            return False
        seen.add((entry.split, entry.label, _clean(entry.given)))
    return len(seen) == len(entries)


def _clean(given: str) -> str:
    match = OFFICIAL_NAME.fullmatch(given)
    return f"{match['name']}.JPEG" if match else given


def check_label(value: object, origin: str) -> int:
    """A class's number; DataProblem if it is none."""
    if not isinstance(value, int) or not 0 <= value < 100_000:
        raise DataProblem(f"{origin}: a label must be a number from 0 on, not {value!r}")
    return value


class ParquetImages(PackedImages):
    """Columns `image` (bytes and path) and `label`, as Hugging Face's imagenet-1k has them."""

    form = "Hugging Face parquet"
    wanted = "*.parquet of train and validation with the columns image and label"

    def __init__(self, splits: dict[str, list[ParquetFile]]) -> None:
        self.splits = splits
        self._files = {
            str(file.path): (name, file) for name, some in splits.items() for file in some
        }

    @classmethod
    def recognise(cls, found: Survey) -> Self | None:
        files = parquet_files(found.ending(".parquet"))
        files = [f for f in files if {"image.bytes", "label"} <= set(f.columns)]
        if not files:
            return None
        splits = by_split(files, ("train", "valid"))
        return cls({"train": splits["train"], "val": splits["valid"]})

    def describe(self) -> str:
        files = len(self._files)
        return (
            f"{self.inputs()[0].parent}: {files:,} parquet files of images;"
            f" {self.bytes_needed() / 1e9:,.1f} GB are unpacked"
        )

    def inputs(self) -> list[Path]:
        return [file.path for _, file in self._files.values()]

    def bytes_needed(self) -> int:
        return sum(file.uncompressed for _, file in self._files.values())

    def units(self) -> list[str]:
        return list(self._files)

    def entries(self, unit: str) -> list[Entry]:
        split, file = self._files[unit]
        columns = ["label", *(["image.path"] if "image.path" in file.columns else [])]
        found = []
        for row in read_rows(file, columns):
            given = Path((row.get("image") or {}).get("path") or "").name
            found.append(Entry(split, check_label(row["label"], unit), given, 0))
        return found

    def extract(self, unit: str, targets: Sequence[Path]) -> Iterator[int]:
        _, file = self._files[unit]
        for row, target in zip(read_rows(file, ["image.bytes"]), targets, strict=True):
            data = (row["image"] or {}).get("bytes")
            if not data:
                raise DataProblem(f"{unit}: a row has no bytes of its image, perhaps only a path")
            target.write_bytes(data)
            yield len(data)
