"""ImageNet as folders of images: linked where they lie, a flat val sorted by links."""

from __future__ import annotations

import csv
import os
import re
import time
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

from tasks.base import DataProblem
from tasks.download import Report
from tasks.imagenet.archives import SOURCE, is_complete, unpack
from tasks.imagenet.ilsvrc2012 import ILSVRC2012, VAL_IMAGE, ArchiveSet, val_classes
from tasks.imagenet.index import SECONDS_BETWEEN_LINES, SUFFIXES, class_names
from tasks.making import Say
from tasks.manifests import (
    CHECKSUMS,
    COUNTS,
    Manifest,
    Part,
    compare,
    read_manifest,
    write_manifest,
)
from tasks.sources import Source, StagedSource, Survey, Units, link

SOLUTION = "LOC_val_solution.csv"
MAPPING = "LOC_synset_mapping.txt"
DEVKIT_FOLDER = "ILSVRC2012_devkit_t12"
VAL_NAMES = ("val", "validation", "valid")


def official_counts(expected: ArchiveSet) -> dict[str, dict[str, int]]:
    """Images and classes of the official set, by split."""
    return {
        "train": {"images": expected.train_images, "classes": expected.classes},
        "val": {"images": expected.val_images, "classes": expected.classes},
    }


def image_part(
    form: str, action: str, split: str, counts: dict[str, int], size: int, expected: ArchiveSet
) -> Part:
    """A split that is compared with ILSVRC2012 by its counts."""
    differences = compare(counts, official_counts(expected)[split])
    return Part(form, action, counts, size, COUNTS, differences)


class ImageNetSource(Source):
    """`expected` is the official set: another one for tests."""

    expected: ClassVar[ArchiveSet] = ILSVRC2012


class OfficialArchives(ImageNetSource):
    """The three files of image-net.org, unpacked into their place."""

    form = "official archives"
    wanted = ", ".join(a.name for a in ILSVRC2012.archives)
    action = "unpacked"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def recognise(cls, found: Survey) -> Self | None:
        names = [a.name for a in cls.expected.archives]
        there = found.named(*names)
        if not there:
            return None
        missing = [name for name in names if name not in {p.name for p in there}]
        if missing:
            if {p.name for p in there} == {cls.expected.devkit.name}:
                return None  # labels of a flat val
            raise DataProblem(
                f"{there[0].parent}: missing {', '.join(missing)}. ImageNet's archives have to be"
                f" downloaded from {SOURCE}, after registration"
            )
        folders = {p.parent for p in there}
        if len(folders) > 1:
            raise DataProblem(
                f"{', '.join(sorted(map(str, folders)))}: ImageNet's three archives must lie in one"
                " folder (symbolic links will do)"
            )
        return cls(there[0].parent)

    def describe(self) -> str:
        return f"{self.folder}: ImageNet's three official archives; checksums, then unpacking"

    def prepare(self, root: Path, data: str, report: Report, say: Say) -> tuple[Manifest, bool]:
        before = read_manifest(root)
        if before is not None and is_complete(root, self.expected):
            return before, False
        if not is_complete(root, self.expected):
            say(self.describe())
        is_new = unpack(self.folder, root, report, expected=self.expected)
        sums = {a.name: f"md5:{a.md5}" for a in self.expected.archives}
        parts = {}
        for split, counts in official_counts(self.expected).items():
            archive = self.expected.train if split == "train" else self.expected.val
            size = (self.folder / archive.name).stat().st_size
            parts[split] = Part(self.form, self.action, counts, size, CHECKSUMS, sums=sums)
        manifest = Manifest(data, parts, [str(self.folder)])
        write_manifest(root, manifest)
        return manifest, is_new


class Measured(NamedTuple):
    """Of a folder of class folders."""

    images: int
    bytes: int
    empty: list[str]  # paths of files without content


def measure(folder: Path, say: Say) -> Measured:
    """Counts images and bytes; every file is looked at, none is opened."""
    images = size = 0
    empty: list[str] = []
    told = time.monotonic()
    for name in class_names(folder):
        with os.scandir(folder / name) as entries:
            for entry in entries:
                if not entry.name.lower().endswith(SUFFIXES) or entry.name.startswith("."):
                    continue
                images += 1
                file_size = entry.stat().st_size
                size += file_size
                if not file_size:
                    empty.append(entry.path)
        if time.monotonic() - told > SECONDS_BETWEEN_LINES:
            told = time.monotonic()
            say(f"{folder}: {images:,} images, {size / 1e9:,.1f} GB so far")
    return Measured(images, size, empty)


class Folders(ImageNetSource, StagedSource):
    """train/<class>/ and val/<class>/, or a flat val/ with a file that has its labels."""

    form = "image folders"
    wanted = f"train/<class>/ and val/<class>/, or a flat val/ with {SOLUTION} or the devkit"
    action = "linked"

    def __init__(self, train: Path, val: Path, labels: Path | None) -> None:
        self.train, self.val, self.labels = train, val, labels
        if labels is not None:
            self.form = "image folders with a flat val"
            if labels.name == SOLUTION:
                self.form = "Kaggle's folders"

    @classmethod
    def recognise(cls, found: Survey) -> Self | None:
        trains = [f for f in found.folders if f.name == "train" and _has_classes(f)]
        vals = [
            f for f in found.folders if f.name in VAL_NAMES and (_is_flat(f) or _has_classes(f))
        ]
        if not trains or not vals:
            if trains:
                raise DataProblem(
                    f"{trains[0]}: class folders of train, but no val/ with images beside it; name"
                    " its folder too: --from TRAIN VAL"
                )
            return None
        train, val = _one(trains, "train"), _one(vals, "val")
        if class_names(val):
            _check_classes(train, val)
            return cls(train, val, None)
        return cls(train, val, _labels_file(found, val))

    def describe(self) -> str:
        how = "sorted by links" if self.labels else "linked"
        labels = f" with the labels of {self.labels}" if self.labels else ""
        return f"{self.train} and {self.val}{labels}: {self.form}; linked, val {how}, no copy"

    def inputs(self) -> list[Path]:
        return [self.train, self.val, *([self.labels] if self.labels else [])]

    def bytes_needed(self) -> int:
        return 0 if self.labels is None else 1 << 26  # links

    def write(self, folder: Path, units: Units, report: Report, say: Say) -> dict[str, Part]:
        link(self.train, folder / "train")
        if self.labels is None:
            link(self.val, folder / "val")
        else:
            self._sort(folder / "val")
        parts = {}
        for split in ("train", "val"):
            found = measure(folder / split, say)
            counts = {"images": found.images, "classes": len(class_names(folder / split))}
            part = image_part(self.form, self.action, split, counts, found.bytes, self.expected)
            if found.empty:
                part.differences.append(
                    f"{len(found.empty):,} empty files, the first is {Path(found.empty[0]).name}"
                )
            parts[split] = part
        return parts

    def _sort(self, place: Path) -> None:
        classes = class_names(self.train)
        labels = read_labels(self.labels, set(classes), self.expected)  # type: ignore[arg-type]
        for name in classes:
            (place / name).mkdir(parents=True, exist_ok=True)
        source = self.val.resolve()
        with os.scandir(self.val) as entries:
            names = sorted(e.name for e in entries if VAL_IMAGE.fullmatch(e.name))
        for name in names:
            wnid = labels.get(name)
            if wnid is None:
                raise DataProblem(f"{self.val / name}: {self.labels} has no label for it")
            target = place / wnid / name
            if not target.is_symlink():
                target.symlink_to(source / name)


def _labels_file(found: Survey, val: Path) -> Path:
    for name in (SOLUTION, ILSVRC2012.devkit.name):
        files = found.named(name)
        if files:
            return files[0]
    kits = [f for f in found.folders if f.name == DEVKIT_FOLDER]
    if kits:
        return kits[0]
    raise DataProblem(
        f"{val}: images without class folders, and no labels for them: put {SOLUTION} (Kaggle) or"
        f" {ILSVRC2012.devkit.name} beside it, or name that file too: --from DIR FILE"
    )


def read_labels(file: Path, wnids: set[str], expected: ArchiveSet) -> dict[str, str]:
    """Class of each validation image, by the name of its file."""
    if file.name != SOLUTION:
        classes = val_classes(file, wnids, expected)
        return {f"ILSVRC2012_val_{i:08}.JPEG": wnid for i, wnid in enumerate(classes, 1)}
    with file.open(newline="", encoding="utf-8") as lines:
        return parse_solution(str(file), lines.read(), wnids)


def parse_solution(name: str, text: str, wnids: set[str]) -> dict[str, str]:
    """Kaggle's table: ImageId, and the class before the numbers of its box."""
    labels: dict[str, str] = {}
    rows = csv.reader(text.splitlines())
    if next(rows, [])[:2] != ["ImageId", "PredictionString"]:
        raise DataProblem(f"{name}: its first line must be ImageId,PredictionString")
    for number, row in enumerate(rows, 2):
        wnid = row[1].split()[0] if len(row) == 2 and row[1].split() else ""
        if wnid not in wnids or not re.fullmatch(r"ILSVRC2012_val_[0-9]{8}", row[0]):
            raise DataProblem(
                f"{name}: line {number:,} must be an image and one of the {len(wnids):,} classes of"
                f" train, not {','.join(row)[:80]!r}"
            )
        labels[f"{row[0]}.JPEG"] = wnid
    return labels


def _is_flat(folder: Path) -> bool:
    """Whether validation images lie in the folder itself."""
    with os.scandir(folder) as entries:
        return any(VAL_IMAGE.fullmatch(entry.name) for entry in entries)


def _has_classes(folder: Path) -> bool:
    """Whether there are folders with images; Kaggle has others with annotations."""
    for name in class_names(folder):
        with os.scandir(folder / name) as entries:
            for entry in entries:
                if entry.name.lower().endswith(SUFFIXES):
                    return True
                if entry.is_file():
                    return False
    return False


def _one(folders: list[Path], split: str) -> Path:
    """The outermost; DataProblem if there are several beside each other."""
    shallow = min(len(f.parts) for f in folders)
    outer = [f for f in folders if len(f.parts) == shallow]
    if len(outer) > 1:
        shown = ", ".join(map(str, outer[:3]))
        raise DataProblem(f"{shown}: several folders of {split}; name one of them")
    return outer[0]


def _check_classes(train: Path, val: Path) -> None:
    ours, theirs = set(class_names(train)), set(class_names(val))
    if ours != theirs:
        name = min(ours ^ theirs)
        here, there = (train, val) if name in ours else (val, train)
        raise DataProblem(
            f"{here / name}: a class of {len(ours):,} in train and {len(theirs):,} in val, but"
            f" {there} does not have it; both must have the same classes (is a copy incomplete?)"
        )
