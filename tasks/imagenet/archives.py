"""From ImageNet's official archives to the folders that `tasks.imagenet.data` reads.

Three files as https://image-net.org gives them: the training images, a tar of one tar for each
class; the validation images, flat in one tar; the development kit, which knows the classes of the
validation images. They are only read, and in place: no tar is copied to the disk.

A class of train, and val as a whole, is unpacked into a hidden folder beside its place and renamed
when it is complete. So a folder with the final name is complete, and a second call resumes where
a killed one stopped. What is left beside the folders are `complete.json` in the root, and
next to the root the archives' checksums that were found right, so that they are not read a second
time.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from filelock import Timeout, UnixFileLock

from tasks.base import DataProblem
from tasks.files import parse_json, rename
from tasks.imagenet.ilsvrc2012 import (
    ILSVRC2012,
    VAL_IMAGE,
    ArchiveSet,
    class_archives,
    class_images,
    class_streams,
    members,
    val_classes,
)
from tasks.imagenet.index import SPLITS, class_names

SOURCE = "https://image-net.org"
COMPLETE = "complete.json"
PARTIAL = ".partial"  # the end of a hidden folder's name


CHUNK = 1 << 22  # bytes read at once
MARGIN = 0.05  # the last block of each file, 4 KiB at most for 110 kB, and the folders

Report = Callable[[str, int, int], None]  # what is done, bytes done, bytes in all


def unpack(
    archives: Path, root: Path, report: Report, *, expected: ArchiveSet = ILSVRC2012
) -> bool:
    """Makes `root`/train and `root`/val of the archives; False if they were complete before.

    Everything that can be known beforehand is checked before the first image is written.
    """
    if is_complete(root, expected):
        return False
    _check_there(archives, expected)
    train, val, devkit = (
        archives / a.name for a in (expected.train, expected.val, expected.devkit)
    )
    root.parent.mkdir(parents=True, exist_ok=True)
    with _alone(root):
        classes = class_archives(train, expected)
        _remove_partial(root)
        _check_target(root, set(classes))
        _check_space(root, classes, val.stat().st_size)
        _check_sums(archives, root, report, expected)
        labels = val_classes(devkit, set(classes), expected)
        _unpack_val(val, root, list(classes), labels, report)
        _unpack_train(train, root, classes, report)
        _check_images(train, root, classes, labels, report, expected)
        os.sync()  # the images are on the disk before the stamp says so
        _write_json(root / COMPLETE, asdict(expected))
    return True


def is_complete(root: Path, expected: ArchiveSet = ILSVRC2012) -> bool:
    """Whether `root` was unpacked to its end, and has its class folders still."""
    if _read_json(root / COMPLETE) != asdict(expected):
        return False
    folders = [root / split for split in SPLITS]
    return all(f.is_dir() and len(class_names(f)) == expected.classes for f in folders)


# Before anything is written.


def _check_there(folder: Path, expected: ArchiveSet) -> None:
    missing = [a.name for a in expected.archives if not (folder / a.name).is_file()]
    if missing:
        where = str(folder) if folder.is_dir() else f"{folder} (no such folder)"
        raise DataProblem(
            f"{where}: missing {', '.join(missing)}. ImageNet's archives have to be downloaded from"
            f" {SOURCE}, after registration, into one folder"
        )
    wrong = []
    for archive in expected.archives:
        size = (folder / archive.name).stat().st_size
        if archive.bytes is not None and size != archive.bytes:
            wrong.append(f"{archive.name} has {size:,} bytes, but must have {archive.bytes:,}")
    if wrong:
        raise DataProblem(
            f"{folder}: {'; '.join(wrong)}. Download again from {SOURCE} what is not whole"
        )


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Two processes would remove each other's unfinished folders."""
    lock = UnixFileLock(root.parent / f".{root.name}.lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise DataProblem(
            f"{root}: another process is unpacking into it: wait for it or end it"
        ) from None
    try:
        yield
    finally:
        lock.release()


def _remove_partial(root: Path) -> None:
    for found in [*root.glob(f".*{PARTIAL}"), *root.glob(f"train/.*{PARTIAL}")]:
        if found.is_dir() and not found.is_symlink():
            shutil.rmtree(found)
        else:
            found.unlink()


def _check_target(root: Path, wnids: set[str]) -> None:
    """What lies there already must be of use: folders of classes, of val all."""
    for split in SPLITS:
        found = _names(root / split)
        strange = found - wnids
        if strange:
            raise DataProblem(
                f"{root / split / min(strange)}: not one of the {len(wnids):,} classes, which are"
                f" named as {min(wnids)}; unpack into another folder with --data"
            )
        if split == "val" and found and found != wnids:
            raise DataProblem(
                f"{root / split}: {len(found):,} of {len(wnids):,} class folders; move"
                " the folder elsewhere to have it unpacked again, or unpack with --data"
            )


def _check_space(root: Path, classes: Mapping[str, tarfile.TarInfo], val_bytes: int) -> None:
    left = [c.size for wnid, c in classes.items() if not _names(root / "train" / wnid)]
    train, val = sum(left), 0 if _names(root / "val") else val_bytes
    needed = round((train + val) * (1 + MARGIN))
    there = next(p for p in [root, *root.absolute().parents] if p.exists())
    free = shutil.disk_usage(there).free
    if free < needed:
        raise DataProblem(
            f"{root}: not enough space. Left to unpack: {_gb(train)} of train ({len(left):,} of"
            f" {len(classes):,} classes) + {_gb(val)} of val + {MARGIN:.0%} for the file system"
            f" = {_gb(needed)}; free: {_gb(free)}; missing: {_gb(needed - free)}"
        )


def _check_sums(folder: Path, root: Path, report: Report, expected: ArchiveSet) -> None:
    """MD5 of each archive, unless this file (by name, size and time) was right before."""
    stamp = root.parent / f".{root.name}-checksums.json"
    known = _read_json(stamp)
    for archive in expected.archives:
        path = folder / archive.name
        status = path.stat()
        entry = {"bytes": status.st_size, "mtime_ns": status.st_mtime_ns, "md5": archive.md5}
        if known.get(archive.name) == entry:
            continue
        found = _md5(path, status.st_size, report)
        if found != archive.md5:
            raise DataProblem(
                f"{path}: its MD5 is {found}, but must be {archive.md5}: it is damaged, or another"
                f" file; download it again from {SOURCE}"
            )
        known[archive.name] = entry
        _write_json(stamp, known)


def _md5(path: Path, size: int, report: Report) -> str:
    digest, done = hashlib.md5(usedforsecurity=False), 0
    with path.open("rb", buffering=0) as file:
        buffer = memoryview(bytearray(CHUNK))
        report(f"checking {path.name}", 0, size)
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
            done += count
            report(f"checking {path.name}", done, size)
    return digest.hexdigest()


# Writing.


@contextmanager
def _appearing(folder: Path) -> Iterator[Path]:
    """A hidden folder to write into, which becomes `folder` at the end or is removed."""
    hidden = folder.with_name(f".{folder.name}{PARTIAL}")
    hidden.mkdir(parents=True)
    try:
        yield hidden
        rename(hidden, folder)
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)
        raise


def _write(path: Path, stream: IO[bytes], member: tarfile.TarInfo, archive: str) -> None:
    stream.seek(member.offset_data)
    left = member.size
    try:
        file = path.open("xb")
    except FileExistsError:
        raise DataProblem(f"{archive}: {member.name!r} is in it twice") from None
    with file:
        while left:
            chunk = stream.read(min(left, CHUNK))
            if not chunk:
                raise DataProblem(f"{archive}: ended within {member.name!r}")
            file.write(chunk)
            left -= len(chunk)


def _unpack_val(
    path: Path, root: Path, wnids: list[str], labels: list[str], report: Report
) -> None:
    if _names(root / "val"):
        return
    what, total = "unpacking val", path.stat().st_size
    images = 0
    with path.open("rb") as stream, _appearing(root / "val") as hidden:
        report(what, 0, total)
        for wnid in wnids:
            (hidden / wnid).mkdir()
        for match, member in members(stream, str(path), VAL_IMAGE):
            number = int(match[1])
            if not 1 <= number <= len(labels):
                raise DataProblem(
                    f"{path}: {member.name!r}, but the numbers must be 1 to {len(labels):,}"
                )
            _write(hidden / labels[number - 1] / match[0], stream, member, str(path))
            images += 1
            report(what, member.offset_data + member.size, total)
        if images != len(labels):
            raise DataProblem(f"{path}: {images:,} images in it, not {len(labels):,}")
    report(what, total, total)


def _unpack_train(
    path: Path, root: Path, classes: Mapping[str, tarfile.TarInfo], report: Report
) -> None:
    what, total = "unpacking train", sum(c.size for c in classes.values())
    left = {wnid: c for wnid, c in classes.items() if not _names(root / "train" / wnid)}
    done = total - sum(c.size for c in left.values())
    report(what, done, total)
    with class_streams(path) as open_class:
        for wnid, class_archive in left.items():
            archive = f"{path}, {wnid}.tar"
            images = 0
            with (
                open_class(class_archive) as stream,
                _appearing(root / "train" / wnid) as hidden,
            ):
                for match, member in class_images(path, wnid, stream):
                    _write(hidden / match[0], stream, member, archive)
                    images += 1
                    report(what, done + member.offset_data + member.size, total)
                if not images:
                    raise DataProblem(f"{archive}: no images in it")
            done += class_archive.size
            report(what, done, total)


# When everything is written.


def _check_images(
    path: Path,
    root: Path,
    classes: Mapping[str, tarfile.TarInfo],
    labels: list[str],
    report: Report,
    expected: ArchiveSet,
) -> None:
    """Counts, and no empty file: what a crash of the machine leaves of a file just written."""
    total = sum(c.size for c in classes.values())
    counts: dict[tuple[str, str], int] = {}
    done = 0
    for split in SPLITS:
        for wnid in classes:
            folder = root / split / wnid
            sizes = _image_sizes(folder)
            if 0 in sizes.values():
                raise DataProblem(
                    f"{folder}: {min(n for n, size in sizes.items() if not size)} is empty;"
                    f" {_again([_unit(root, split, wnid)])}"
                )
            counts[split, wnid] = len(sizes)
            done += sum(sizes.values())
            report("counting images", min(done, total), total)
    wanted = Counter(labels)
    for wnid in classes:
        if counts["val", wnid] != wanted[wnid]:
            raise DataProblem(
                f"{root / 'val' / wnid}: {counts['val', wnid]:,} images, but there must be"
                f" {wanted[wnid]:,}; {_again([root / 'val'])}"
            )
    found = sum(n for (split, _), n in counts.items() if split == "train")
    if found != expected.train_images:
        differing = _differing(path, root, classes)
        raise DataProblem(
            f"{root / 'train'}: {found:,} images, but there must be {expected.train_images:,}; "
            + (_again(differing) if differing else f"{path} has no others")
        )
    report("counting images", total, total)


def _differing(path: Path, root: Path, classes: Mapping[str, tarfile.TarInfo]) -> list[Path]:
    """Class folders of train with other files than the archive's."""
    folders = []
    with class_streams(path) as open_class:
        for wnid, class_archive in classes.items():
            with open_class(class_archive) as stream:
                names = {match[0] for match, _ in class_images(path, wnid, stream)}
            folder = root / "train" / wnid
            if names != set(_image_sizes(folder)):
                folders.append(folder)
    return folders


def _unit(root: Path, split: str, wnid: str) -> Path:
    """What is unpacked as one: a class of train, all of val."""
    return root / split / wnid if split == "train" else root / split


def _again(folders: list[Path]) -> str:
    shown = ", ".join(map(str, folders[:5]))
    more = f" and {len(folders) - 5:,} more" if len(folders) > 5 else ""
    return f"move {shown}{more} elsewhere and call again to have it unpacked anew"


# Files and folders.


def _names(folder: Path) -> set[str]:
    """What is in a folder, which need not exist, without hidden names."""
    if not folder.is_dir():
        return set()
    with os.scandir(folder) as entries:
        return {e.name for e in entries if not e.name.startswith(".")}


def _image_sizes(folder: Path) -> dict[str, int]:
    with os.scandir(folder) as entries:
        return {
            e.name: e.stat().st_size
            for e in entries
            if e.name.endswith(".JPEG") and not e.name.startswith(".")
        }


def _read_json(path: Path) -> dict[str, Any]:
    """What a stamp says; nothing if it is not there or damaged."""
    try:
        found = parse_json(path.read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}{PARTIAL}")
    temporary.write_text(json.dumps(content, indent=2) + "\n")
    rename(temporary, path)


def _gb(count: int) -> str:
    return f"{count / 1e9:,.1f} GB"
