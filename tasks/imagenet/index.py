"""Where the images lie: class folders, and the list of files, scanned once.

Expected under the data set's root, as torchvision's ImageFolder does:

    train/<class>/*.JPEG
    val/<class>/*.JPEG

A class's label is its place in the sorted names of train's folders.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from tasks.base import DataProblem
from tasks.making import cache_folder

SPLITS = ("train", "val")
SUFFIXES = (".jpeg", ".jpg", ".png")
SECONDS_BETWEEN_LINES = 10
WORTH_KEEPING = 5_000  # files


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


def _expected(root: Path) -> str:
    return (
        f"Expected {root}/train/<class>/*.JPEG and {root}/val/<class>/*.JPEG. ImageNet"
        " (ILSVRC2012) has to be obtained from https://image-net.org after registration; then"
        " `python -m scripts.prepare imagenet --archives DIR` makes these folders of its archives."
    )


class ImageIndex:
    """Files and labels of one split, sorted by class and name.

    Names are kept in one array of bytes: Python's strings would be copied into every loading
    process as their reference counts change.
    """

    def __init__(self, root: Path, split: str) -> None:
        self.folder = root / split
        self.classes = class_names(root / SPLITS[0])
        key = self._key()
        file = _cache_file(root, split)
        cached = _load(file, key)
        if cached is None:
            cached = self._scan()
            if len(cached[0]) >= WORTH_KEEPING:
                _store(file, key, *cached)
        self.names, self.labels = cached

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, index: int) -> str:
        """A text: making a Path takes as long as reading a small file."""
        name = os.fsdecode(self.names[index])
        return f"{self.folder}/{self.classes[self.labels[index]]}/{name}"

    def _key(self) -> str:
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


def _cache_file(root: Path, split: str) -> Path:
    mark = sha256(os.fsencode(root.absolute())).hexdigest()[:16]
    return cache_folder("index") / f"{mark}-{split}.npz"


def _load(file: Path, key: str) -> tuple[np.ndarray, np.ndarray] | None:
    try:
        with np.load(file, allow_pickle=False) as stored:
            return (stored["names"], stored["labels"]) if str(stored["key"]) == key else None
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        return None


def _store(file: Path, key: str, names: np.ndarray, labels: np.ndarray) -> None:
    """Where that is not possible the next start scans again."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as temporary:
            np.savez(temporary, key=np.array(key), names=names, labels=labels)
        Path(temporary.name).replace(file)
    except OSError:
        pass
