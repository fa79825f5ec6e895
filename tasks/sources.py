"""Data as people have it: recognise a form of a data set, say what is done, and make it ready.

A task lists its forms, subclasses of `Source`. `recognise` asks each of them what it can do with
the paths that a user gave. Sources are only read. What a `StagedSource` makes is written beside its
place and renamed when it is complete; where that takes long it is done in units, so that a second
call resumes after the last finished one.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import IO, ClassVar, Self

from tasks.base import DataProblem
from tasks.download import Report, check_space
from tasks.files import rename, sync
from tasks.making import Say, locked
from tasks.manifests import Manifest, Part, read_manifest, write_manifest

DEPTH = 7  # of folders below a given path; a Hugging Face cache has six
MOST_SUBFOLDERS = 300  # of a folder whose subfolders are looked into
MOST_ENTRIES = 2_000_000
CHUNK = 1 << 22  # bytes copied at once
MARGIN = 1.05  # the last block of each file, and the folders
PACKED = (".zip", ".tar", ".gz", ".tgz", ".parquet")
DOCS = "docs/data.md"
SPLIT = re.compile(r"(?:^|[^a-z])(train|validation|valid|val|dev|test)(?:[^a-z]|$)", re.IGNORECASE)
SPLITS = {"validation": "valid", "val": "valid", "dev": "valid"}  # other names of splits


@dataclass(frozen=True)
class Survey:
    """The files and folders below the given paths, sorted; large folders are not looked into."""

    paths: tuple[Path, ...]
    files: tuple[Path, ...]
    folders: tuple[Path, ...]

    def named(self, *names: str) -> list[Path]:
        return [path for path in self.files if path.name in names]

    def ending(self, *suffixes: str) -> list[Path]:
        return [path for path in self.files if path.name.lower().endswith(suffixes)]


def survey(paths: Sequence[Path]) -> Survey:
    """Looks at what is there; DataProblem names a path that is missing or can't be read."""
    files: dict[Path, None] = {}
    folders: dict[Path, None] = {}
    entries = 0
    for path in paths:
        if not path.exists():
            raise DataProblem(f"{path}: no such file or folder")
        pending = [(path.absolute(), 0)]
        while pending:
            place, depth = pending.pop()
            if place.is_file():
                files[place] = None
                continue
            folders[place] = None
            inner, found = _entries(place)
            entries += len(inner) + len(found)
            if entries > MOST_ENTRIES:
                raise DataProblem(f"{path}: too many files in it; name the data's own folder")
            files |= dict.fromkeys(found)
            if depth < DEPTH and len(inner) <= MOST_SUBFOLDERS:
                pending += [(folder, depth + 1) for folder in reversed(inner)]
            else:
                folders |= dict.fromkeys(inner)
    for file in files:
        if file.name.lower().endswith(PACKED) and not os.access(file, os.R_OK):
            raise DataProblem(f"{file}: cannot be read: Permission denied")
    return Survey(tuple(paths), tuple(sorted(files)), tuple(sorted(folders)))


def _entries(folder: Path) -> tuple[list[Path], list[Path]]:
    """Subfolders and files, without hidden ones."""
    try:
        with os.scandir(folder) as entries:
            shown = [e for e in islice(entries, MOST_ENTRIES + 1) if not e.name.startswith(".")]
            inner = sorted(Path(e.path) for e in shown if e.is_dir())
            return inner, sorted(Path(e.path) for e in shown if not e.is_dir())
    except OSError as error:
        raise DataProblem(f"{folder}: cannot be read: {error.strerror or error}") from error


class Units:
    """Which units of the work are done; a finished one is on the disk and is not done again."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._done = set(file.read_text(errors="replace").splitlines()) if file.exists() else set()

    def __contains__(self, unit: str) -> bool:
        return unit in self._done

    def finish(self, unit: str) -> None:
        os.sync()  # thousands of files: one call for all of them
        with self._file.open("a") as file:
            file.write(f"{unit}\n")
            file.flush()
            os.fsync(file.fileno())
        self._done.add(unit)


class Source(ABC):
    """One form in which a data set may be had."""

    form: str  # e.g. "Kaggle's zip"
    wanted: ClassVar[str]  # what must be there, for who has something else
    action: ClassVar[str]  # "linked" or "unpacked"

    @classmethod
    @abstractmethod
    def recognise(cls, found: Survey) -> Self | None:
        """None if it is another form; DataProblem if it is this one and something is missing."""

    @abstractmethod
    def describe(self) -> str:
        """What was found, and what will be done: a line for the user."""

    @abstractmethod
    def prepare(self, root: Path, data: str, report: Report, say: Say) -> tuple[Manifest, bool]:
        """Makes `root`; (manifest, False) if that was done before."""

    def part_names(self) -> list[str] | None:
        """Where a prepared folder can be added to: the parts that this source would make."""
        return None


class StagedSource(Source):
    """A form whose set is written beside its place and renamed when it is complete."""

    @abstractmethod
    def inputs(self) -> list[Path]:
        """Files and folders that identify the source."""

    @abstractmethod
    def bytes_needed(self) -> int:
        """That `write` adds to the disk."""

    @abstractmethod
    def write(self, folder: Path, units: Units, report: Report, say: Say) -> dict[str, Part]:
        """Makes the set in a folder, which may have units of an earlier call; its parts by name."""

    def prepare(self, root: Path, data: str, report: Report, say: Say) -> tuple[Manifest, bool]:
        return prepare_from(self, root, data, report, say)


def split_of(path: Path, folders: int = 3) -> str | None:
    """train, valid or test by a file's name, or else by the names of its nearest folders."""
    for name in (path.stem, *(p.name for p in list(path.parents)[:folders])):
        found = SPLIT.search(name)
        if found:
            split = found[1].lower()
            return SPLITS.get(split, split)
    return None


def recognise(
    forms: Sequence[type[Source]], paths: Sequence[Path], data: str
) -> tuple[Source, Survey]:
    """The first form that fits; DataProblem lists what was found and what would be accepted."""
    found = survey(paths)
    for form in forms:
        source = form.recognise(found)
        if source is not None:
            return source, found
    some = [p.name for p in (*found.files, *found.folders[len(found.paths) :])][:5]
    shown = ", ".join(some) + (" …" if len(found.files) + len(found.folders) > 6 else "")
    accepted = "; ".join(f"{form.form} ({form.wanted})" for form in forms)
    raise DataProblem(
        f"{', '.join(map(str, paths))}: not recognised as {data}; found "
        f"{shown or 'nothing'}. Accepted: {accepted}. {DOCS} has examples"
    )


def prepare_from(
    source: StagedSource, root: Path, data: str, report: Report, say: Say
) -> tuple[Manifest, bool]:
    """Makes `root` from a source; (manifest, False) if that was done before."""
    identity = _identity(source)
    if all(path.absolute().is_relative_to(root.absolute()) for path in source.inputs()):
        return _prepare_in_place(source, root, data, report, say)
    with locked(root, say):
        before = read_manifest(root)
        if before is not None and _is_there(source, before, identity, root):
            return before, False
        _check_free(source, root, before)
        staging = _staging(root, identity)
        made = staging / "made"
        made.mkdir(parents=True, exist_ok=True)
        check_space(staging, max(0, round(source.bytes_needed() * MARGIN) - _bytes_in(made)))
        say(source.describe())
        parts = source.write(made, Units(staging / "units"), report, say)
        origin = [str(path) for path in _outermost(source.inputs())]
        manifest = Manifest(data, parts, origin, identity)
        if before is not None:
            manifest = before.merged(manifest)
        _install(made, root, manifest, staging)
    return manifest, True


def _prepare_in_place(
    source: StagedSource, root: Path, data: str, report: Report, say: Say
) -> tuple[Manifest, bool]:
    """The data lies where it is read: counted and compared, nothing is written into it."""
    if source.action != "linked":
        raise DataProblem(
            f"{root}: {source.form} in the folder that would be made of it; name another one with"
            " --data"
        )
    say(f"{root}: {source.form}, used in place")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        parts = source.write(folder, Units(folder / "units"), report, say)
    parts = {name: replace(part, action="in place") for name, part in parts.items()}
    manifest = Manifest(data, parts, [str(root)])
    write_manifest(root, manifest, in_place=True)
    return manifest, False


def _identity(source: StagedSource) -> str:
    states = []
    for path in source.inputs():
        status = path.stat()
        size = status.st_size if path.is_file() else 0
        states.append((str(path.absolute()), size, status.st_mtime_ns))
    return hashlib.sha256(repr((source.form, states)).encode()).hexdigest()[:16]


def _is_there(source: Source, before: Manifest, identity: str, root: Path) -> bool:
    names = source.part_names()
    if names is not None:
        return all(name in before.parts and (root / name).exists() for name in names)
    if before.identity == identity:
        check_links(root)
        return True
    made = ", ".join(dict.fromkeys(f"{p.form} ({p.action})" for p in before.parts.values()))
    raise DataProblem(
        f"{root}: prepared before from another source, {made}, and is left as it is; name another"
        " folder with --data"
    )


def check_links(root: Path) -> None:
    """DataProblem if a linked source is gone."""
    for path in root.iterdir():
        if path.is_symlink() and not path.exists():
            raise DataProblem(
                f"{path}: its source {path.readlink()} is not there any more; mount or restore it,"
                " or prepare another folder with --data"
            )


def _check_free(source: Source, root: Path, before: Manifest | None) -> None:
    """The place must be free, or a prepared folder that parts are added to."""
    if not root.exists():
        return
    there = {p.name for p in root.iterdir() if not p.name.startswith(".")}
    names = source.part_names()
    if names is not None:
        taken = sorted(set(names) & there - set(before.parts if before else ()))
        if taken:
            raise DataProblem(
                f"{root / taken[0]}: is there already and was not prepared from this source; name"
                " another folder with --data"
            )
    elif there:
        raise DataProblem(
            f"{root}: is there already ({', '.join(sorted(there)[:3])} …) and was not prepared from"
            " this source; name another folder with --data"
        )


def _staging(root: Path, identity: str) -> Path:
    """Of this source: it is resumed. What was begun from another one is removed."""
    staging = root.with_name(f".{root.name}.partial-{identity}")
    for other in root.parent.glob(f".{root.name}.partial-*"):
        if other != staging:
            shutil.rmtree(other)
    return staging


def _install(made: Path, root: Path, manifest: Manifest, staging: Path) -> None:
    os.sync()  # the data is on the disk before it has its name
    if not root.exists() or not any(root.iterdir()):
        write_manifest(made, manifest)
        if root.exists():
            root.rmdir()
        rename(made, root)
    else:
        for path in sorted(made.iterdir()):
            rename(path, root / path.name)
        write_manifest(root, manifest)
    sync(root.parent)
    shutil.rmtree(staging)


def _bytes_in(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file() and not p.is_symlink())


def _outermost(paths: Sequence[Path]) -> list[Path]:
    """Files as their folders."""
    return [*dict.fromkeys(path.parent if path.is_file() else path for path in paths)]


# Writing what was read.


def copy_bytes(source: IO[bytes], target: Path, size: int, origin: str) -> None:
    """Exactly `size` bytes; an older file of an unfinished unit is overwritten."""
    left = size
    with target.open("wb") as file:
        while left:
            chunk = source.read(min(left, CHUNK))
            if not chunk:
                raise DataProblem(f"{origin}: ended {left:,} bytes too early; it is damaged")
            file.write(chunk)
            left -= len(chunk)


def link(target: Path, place: Path) -> None:
    """A symbolic link with the absolute, resolved path of what is there."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_symlink():
        place.unlink()
    place.symlink_to(target.resolve())
