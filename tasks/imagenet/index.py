"""Where the images lie: class folders, and the list of files, scanned once.

Expected under the data set's root, as torchvision's ImageFolder does:

    train/<class>/*.JPEG
    val/<class>/*.JPEG

A class's label is its place in the sorted names of train's folders.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from copy import copy
from hashlib import sha256
from pathlib import Path

import numpy as np

from tasks.base import DataProblem
from tasks.caches import open_cache
from tasks.making import cache_folder

SPLITS = ("train", "val")
SUFFIXES = (".jpeg", ".jpg", ".png")
SECONDS_BETWEEN_LINES = 10
WORTH_KEEPING = 5_000  # files
VERSION = 2  # of the cached lists


def class_names(folder: Path) -> list[str]:
    """Names of the class folders, sorted: the order of the labels."""
    with os.scandir(folder) as entries:
        return sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))


def check_folders(root: Path, classes: int) -> None:
    """Raises DataProblem unless both splits have a folder for each of the model's classes."""
    for split in SPLITS:
        if not (root / split).is_dir():
            raise DataProblem(f"{root / split}: no such folder. {_expected(root)}")
        found = class_names(root / split)
        if not found:
            raise DataProblem(f"{root / split}: no class folders in it. {_expected(root)}")
        if len(found) != classes:
            raise DataProblem(
                f"{root / split}: {len(found):,} class folders, but the model has {classes:,}"
                " classes; they must be equal"
            )
    train, val = (set(class_names(root / split)) for split in SPLITS)
    if train != val:
        name = min(train ^ val)
        here, there = SPLITS if name in train else SPLITS[::-1]
        raise DataProblem(f"{root}: class {name!r} is in {here}/ but not in {there}/")


def check_classes(folder: Path, classes: list[str]) -> None:
    """Raises DataProblem unless a split has a folder for each of a trained model's classes."""
    if not folder.is_dir():
        raise DataProblem(f"{folder}: no such folder. Expected {folder}/<class>/*.JPEG")
    different = {*class_names(folder)} ^ {*classes}
    if different:
        name = min(different)
        what = "is missing" if name in classes else "is not a class of the model"
        raise DataProblem(f"{folder / name}: {what}; its {len(classes):,} classes are needed")


def _expected(root: Path) -> str:
    return (
        f"Expected {root}/train/<class>/*.JPEG and {root}/val/<class>/*.JPEG."
        " `python -m scripts.prepare imagenet --from PATH` makes these of what you have; ImageNet"
        " (ILSVRC2012) itself has to be obtained from https://image-net.org after registration."
    )


class ImageIndex:
    """Files and labels of one split, sorted by class and name.

    Names are kept in one array of bytes: Python's strings would be copied into every loading
    process as their reference counts change.
    """

    def __init__(self, root: Path, split: str, classes: list[str] | None = None) -> None:
        """With the labels of train's folders, or of `classes`."""
        self.folder = root / split
        self.classes = classes or class_names(root / SPLITS[0])
        self.names, self.labels = self._cached(root, split)

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, index: int) -> str:
        """A text: making a Path takes as long as reading a small file."""
        name = os.fsdecode(self.names[index])
        return f"{self.folder}/{self.classes[self.labels[index]]}/{name}"

    def subset(self, indices: np.ndarray) -> ImageIndex:
        """Only some of the files, in the order of their indices."""
        chosen = copy(self)
        chosen.names, chosen.labels = self.names[indices], self.labels[indices]
        return chosen

    def digest(self) -> str:
        """SHA-256 of names and labels in their order."""
        hashed = sha256(b"\0".join(self.names.tolist()))
        hashed.update(self.labels.tobytes())
        return hashed.hexdigest()

    def _cached(self, root: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
        """From the cache; large lists are kept there, and where that can't be, scanned again."""
        mark = sha256(os.fsencode(root.absolute()) + "\0".join(self.classes).encode())
        place = cache_folder("index") / f"{mark.hexdigest()[:16]}-{split}"
        made_from = {"version": VERSION, "state": self._state()}
        if not place.exists():
            scanned = self._scan()
            if len(scanned[0]) < WORTH_KEEPING:
                return scanned
        else:
            scanned = None

        def make(folder: Path) -> None:
            names, labels = scanned or self._scan()
            np.save(folder / "names.npy", names, allow_pickle=False)
            np.save(folder / "labels.npy", labels, allow_pickle=False)

        try:
            open_cache(place, made_from, make, lambda text: print(text, flush=True))
            return (
                np.load(place / "names.npy", allow_pickle=False),
                np.load(place / "labels.npy", allow_pickle=False),
            )
        except (OSError, ValueError, NotImplementedError):
            return scanned or self._scan()

    def _state(self) -> str:
        """Changes when a file comes, goes or is renamed: then its folder's time changes."""
        hashed = sha256()
        for name in self.classes:
            try:
                changed = (self.folder / name).stat().st_mtime_ns
            except FileNotFoundError:
                raise DataProblem(f"{self.folder / name}: no such folder") from None
            hashed.update(f"{name}\0{changed}\0".encode())
        return hashed.hexdigest()

    def _scan(self) -> tuple[np.ndarray, np.ndarray]:
        names: list[bytes] = []
        labels: list[int] = []
        told = time.monotonic()
        for label, name in enumerate(self.classes):
            if time.monotonic() - told > SECONDS_BETWEEN_LINES:
                told = time.monotonic()
                print(
                    f"{self.folder}: {len(names):,} files in {label:,} classes so far", flush=True
                )
            files = sorted(_image_names(self.folder / name))
            if not files:
                raise DataProblem(f"{self.folder / name}: no images ({', '.join(SUFFIXES)}) in it")
            names += files
            labels += [label] * len(files)
        return np.array(names, dtype=np.bytes_), np.array(labels, dtype=np.int32)


def _image_names(folder: Path) -> Iterator[bytes]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.lower().endswith(SUFFIXES) and not entry.name.startswith("."):
                yield os.fsencode(entry.name)
