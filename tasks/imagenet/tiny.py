"""Tiny ImageNet (200 classes, 64 × 64) in ImageNet's layout, from tiny-imagenet-200.zip."""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from tasks.base import DataProblem
from tasks.download import Report
from tasks.sources import copy_bytes

LARGEST_MEMBER = 1 << 20  # bytes; an image has 2 kB
TRAIN = re.compile(r"(?:.*/)?train/(?P<class>n[0-9]{8})/images/(?P<name>(?P=class)_[0-9]+\.JPEG)")
VAL = re.compile(r"(?:.*/)?val/images/(?P<name>val_[0-9]+\.JPEG)")
LABELS = re.compile(r"(?:.*/)?val/val_annotations\.txt")


@dataclass(frozen=True)
class TinyImageNet:
    """The archive and what must be in it: other values for tests."""

    urls: tuple[str, ...] = (
        "https://cs231n.stanford.edu/tiny-imagenet-200.zip",
        "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
    )
    sums: Mapping[str, str] = field(
        default_factory=lambda: MappingProxyType({"md5": "90528d7ca1a48142e341f4ef8d21d0de"})
    )
    about: int = 500_000_000  # bytes unpacked: small files fill whole blocks
    train_images: int = 100_000
    val_images: int = 10_000
    classes: int = 200


def convert(archive: Path, folder: Path, report: Report, expected: TinyImageNet) -> None:
    """Writes train/<class>/ and val/<class>/; DataProblem unless the counts are right."""
    try:
        with zipfile.ZipFile(archive) as packed:
            infos = packed.infolist()
            labels = _labels(archive, packed, infos)
            done, total = 0, sum(info.file_size for info in infos)
            counts = {"train": 0, "val": 0}
            classes: set[str] = set()
            for info in infos:
                target = _target(info, labels, archive)
                if target is None:
                    continue
                if not 0 < info.file_size <= LARGEST_MEMBER:
                    raise DataProblem(
                        f"{archive}: {info.filename} declares {info.file_size:,} bytes"
                    )
                place = folder / target
                place.parent.mkdir(parents=True, exist_ok=True)
                with packed.open(info) as source:
                    copy_bytes(source, place, info.file_size, f"{archive}, {info.filename}")
                counts[target.parts[0]] += 1
                classes.add(target.parts[1])
                done += info.file_size
                report("unpacking Tiny ImageNet", done, total)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:
        raise DataProblem(f"{archive}: cannot be unpacked: {error}; get it again") from error
    found = (counts["train"], counts["val"], len(classes))
    wanted = (expected.train_images, expected.val_images, expected.classes)
    if found != wanted:
        raise DataProblem(
            f"{archive}: {found} training images, validation images and classes, not {wanted}"
        )


def _labels(archive: Path, packed: zipfile.ZipFile, infos: list[zipfile.ZipInfo]) -> dict[str, str]:
    tables = [info for info in infos if LABELS.fullmatch(info.filename)]
    if len(tables) != 1 or tables[0].file_size > LARGEST_MEMBER:
        raise DataProblem(f"{archive}: no val/val_annotations.txt in it")
    lines = packed.read(tables[0]).decode("ascii", "replace").splitlines()
    return {fields[0]: fields[1] for fields in map(str.split, lines) if len(fields) > 1}


def _target(info: zipfile.ZipInfo, labels: Mapping[str, str], archive: Path) -> Path | None:
    train, val = TRAIN.fullmatch(info.filename), VAL.fullmatch(info.filename)
    if train:
        return Path("train", train["class"], train["name"])
    if val is None:
        return None
    label = labels.get(val["name"], "")
    if not re.fullmatch(r"n[0-9]{8}", label):
        raise DataProblem(f"{archive}: val_annotations.txt has no class for {val['name']}")
    return Path("val", label, val["name"])
