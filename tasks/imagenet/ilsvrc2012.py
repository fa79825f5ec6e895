"""What ImageNet's three official archives hold, checked member by member while it is read."""

from __future__ import annotations

import io
import os
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from tasks.base import DataProblem
from tasks.tars import open_tar

SYNSETS = "ILSVRC2012_devkit_t12/data/meta.mat"
GROUND_TRUTH = "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt"
KIT_LIMIT = 1 << 22  # bytes of a file of the development kit; the real ones have 0.5 MB

WNID = re.compile(r"n[0-9]{8}")
CLASS_ARCHIVE = re.compile(r"(n[0-9]{8})\.tar")
VAL_IMAGE = re.compile(r"ILSVRC2012_val_([0-9]{8})\.JPEG")


@dataclass(frozen=True)
class Archive:
    """A file, and how to know that it is the right one."""

    name: str
    md5: str
    bytes: int | None = None


@dataclass(frozen=True)
class ArchiveSet:
    """The three files and what must come out of them."""

    train: Archive
    val: Archive
    devkit: Archive
    classes: int
    train_images: int
    val_images: int

    @property
    def archives(self) -> tuple[Archive, ...]:
        return self.devkit, self.val, self.train


ILSVRC2012 = ArchiveSet(
    train=Archive("ILSVRC2012_img_train.tar", "1d675b47d978889d74fa0da5fadfb00e", 147_897_477_120),
    val=Archive("ILSVRC2012_img_val.tar", "29b22e2961454d5413ddabcf34fc5622", 6_744_924_160),
    devkit=Archive("ILSVRC2012_devkit_t12.tar.gz", "fa75699e90414af021442c21a62c3abf"),
    classes=1000,
    train_images=1_281_167,
    val_images=50_000,
)


def members(
    stream: IO[bytes], archive: str, pattern: re.Pattern[str]
) -> Iterator[tuple[re.Match[str], tarfile.TarInfo]]:
    """The files of a tar in their order; each has a name of the pattern, or it is a problem.

    The name is matched as a whole, so none leads out of the folder that it is written into.
    """
    length = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    try:
        with open_tar(stream, "r:") as tar:
            while (member := tar.next()) is not None:
                if member.isdir() and member.name == ".":
                    continue
                match = pattern.fullmatch(member.name.removeprefix("./"))
                if match is None or member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
                    raise DataProblem(
                        f"{archive}: unexpected member {member.name!r} ({_kind(member)}); only"
                        f" files with names as {pattern.pattern} belong there"
                    )
                if member.size < 1:
                    raise DataProblem(f"{archive}: damaged: {member.name!r} is empty")
                if member.offset_data + member.size > length:
                    raise DataProblem(
                        f"{archive}: cut off: {member.name!r} should have {member.size:,} bytes"
                        f" from byte {member.offset_data:,} on, but the archive has {length:,}"
                    )
                yield match, member
            stream.seek(tar.offset)
            # tarfile takes a header that it can't read for the end; the end is a block of zeros
            if stream.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise DataProblem(
                    f"{archive}: cut off or damaged at byte {tar.offset:,} of {length:,}: neither"
                    " a file nor the archive's end begins there"
                )
    except (tarfile.TarError, ValueError, OverflowError) as error:
        raise DataProblem(f"{archive}: not a whole tar archive: {error}") from error


def _kind(member: tarfile.TarInfo) -> str:
    if member.issym() or member.islnk():
        return f"a link to {member.linkname!r}"
    if member.isdir():
        return "a folder"
    return "a file" if member.isreg() else "a device or the like"


def class_archives(path: Path, expected: ArchiveSet) -> dict[str, tarfile.TarInfo]:
    """Where each class's tar lies in the tar of train, in the order of the file."""
    found: dict[str, tarfile.TarInfo] = {}
    with path.open("rb") as stream:
        for match, member in members(stream, str(path), CLASS_ARCHIVE):
            if match[1] in found:
                raise DataProblem(f"{path}: {member.name!r} is in it twice")
            found[match[1]] = member
    if len(found) != expected.classes:
        raise DataProblem(
            f"{path}: {len(found):,} archives of classes in it, but there must be"
            f" {expected.classes:,}"
        )
    return found


@contextmanager
def class_streams(path: Path) -> Iterator[Callable[[tarfile.TarInfo], IO[bytes]]]:
    """Opens the tars in the tar as files of their own."""

    def stream(member: tarfile.TarInfo) -> IO[bytes]:
        found = outer.extractfile(member)
        assert found is not None, "a regular file"
        return found

    with open_tar(path, "r:") as outer:
        yield stream


def class_images(
    path: Path, wnid: str, stream: IO[bytes]
) -> Iterator[tuple[re.Match[str], tarfile.TarInfo]]:
    """The images of one class's tar."""
    return members(stream, f"{path}, {wnid}.tar", re.compile(rf"{wnid}_[0-9]+\.JPEG"))


def val_classes(path: Path, wnids: set[str], expected: ArchiveSet) -> list[str]:
    """The class of each validation image, in the order of their numbers.

    `path` is the development kit, packed or as a folder.
    """
    kit = _read_kit_folder(path) if path.is_dir() else _read_kit(path)
    names = _class_of_id(f"{path}, {SYNSETS}", kit[SYNSETS], expected)
    if set(names.values()) != wnids:
        wnid = min(set(names.values()) ^ wnids)
        here, there = f"{path}, {SYNSETS}", expected.train.name
        here, there = (there, here) if wnid in wnids else (here, there)
        raise DataProblem(f"class {wnid} is in {here}, but not in {there}; it must be in both")
    lines = kit[GROUND_TRUTH].decode("ascii", errors="replace").split()
    if len(lines) != expected.val_images:
        raise DataProblem(
            f"{path}, {GROUND_TRUTH}: {len(lines):,} lines, but there are"
            f" {expected.val_images:,} validation images"
        )
    known = {str(number): wnid for number, wnid in names.items()}
    for i, line in enumerate(lines, 1):
        if line not in known:
            raise DataProblem(
                f"{path}, {GROUND_TRUTH}: line {i:,} must be the number of a class,"
                f" 1 to {expected.classes:,}, not {line!r}"
            )
    return [known[line] for line in lines]


def _read_kit(path: Path) -> dict[str, bytes]:
    """The two files that matter, in memory."""
    found: dict[str, bytes] = {}
    try:
        with open_tar(path, "r:gz") as tar:
            for member in tar:
                name = member.name.removeprefix("./")
                if member.size > KIT_LIMIT:
                    raise DataProblem(f"{path}: {member.name!r} declares {member.size:,} bytes")
                if name in (SYNSETS, GROUND_TRUTH) and member.isreg() and member.size < KIT_LIMIT:
                    file = tar.extractfile(member)
                    found[name] = file.read() if file else b""
    except (tarfile.TarError, ValueError, EOFError, zlib.error, OSError) as error:
        raise DataProblem(f"{path}: not a whole tar.gz archive: {error}") from error
    missing = {SYNSETS, GROUND_TRUTH} - set(found)
    if missing:
        raise DataProblem(f"{path}: no file {' and no file '.join(sorted(missing))} in it")
    return found


def _read_kit_folder(path: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name in (SYNSETS, GROUND_TRUTH):
        file = path / name.partition("/")[2]
        if not file.is_file():
            raise DataProblem(f"{file}: missing, so {path} is not the whole development kit")
        if file.stat().st_size >= KIT_LIMIT:
            raise DataProblem(f"{file}: {file.stat().st_size:,} bytes; not the development kit's")
        found[name] = file.read_bytes()
    return found


def _class_of_id(name: str, data: bytes, expected: ArchiveSet) -> dict[int, str]:
    """WordNet's name of each class number; nodes with children are no classes."""
    from scipy.io import loadmat  # type: ignore[import-untyped]

    try:
        synsets = np.atleast_1d(loadmat(io.BytesIO(data), squeeze_me=True)["synsets"])
        leaves = [s for s in synsets if int(s["num_children"]) == 0]
        found = {int(s["ILSVRC2012_ID"]): str(s["WNID"]) for s in leaves}
    except Exception as error:  # whatever scipy makes of damaged bytes
        raise DataProblem(f"{name}: not the table of ImageNet's classes: {error!r}") from error
    whole = sorted(found) == list(range(1, expected.classes + 1))
    if (
        not whole
        or len(leaves) != len(set(found.values()))
        or not all(map(WNID.fullmatch, found.values()))
    ):
        raise DataProblem(
            f"{name}: {len(leaves):,} classes, but there must be {expected.classes:,}, with"
            f" numbers from 1 to {expected.classes:,} and names as n01440764"
        )
    return found
