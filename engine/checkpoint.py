"""Checkpoints that survive kills, full disks and damaged files.

A checkpoint is `step-00001234.pt`, written by torch.save, and its manifest `step-00001234.json`
with size and SHA-256, because torch.load reads a file with a flipped byte without complaint.
Both are written under a temporary name, synchronised to the disk and renamed, the manifest last:
a checkpoint without a manifest does not exist. `best.pt` is a hard link to the best, or a copy.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.checkpoint_files import DamagedError, Manifest, bytes_needed, read_state, write_state
from tasks.files import rename, sync, write_atomically

PAUSES = (0.1, 0.5, 2.0)  # seconds before each further attempt to save
LISTED = 20  # lines of differing settings in a message
DATA = re.compile(r"(step-\d{8,}|best)\.pt")
NOTE = re.compile(r"step-\d{8,}\.json")
TEMPORARY = re.compile(r"(step-\d{8,}|best)\.(pt|json)\.tmp|\.(step-\d{8,}|best)\.json\.\d+\.tmp")


class CheckpointError(Exception):
    """A run can't save, or can't resume from what is there; the message is for the user."""


class CannotSaveError(CheckpointError):
    """A full disk or a broken one; what was saved before is there."""


@dataclass(frozen=True)
class Loaded:
    """A checkpoint that was found whole, its tensors in the CPU's memory."""

    step: int
    state: dict[str, Any]
    path: Path


class CheckpointStore:
    """The checkpoints of one run: the last `keep`, and the best.

    `settings` are what `fingerprint` was computed from, as flat keys and values; they serve to show
    what differs. One process saves; any number may load.
    """

    def __init__(
        self,
        folder: Path,
        fingerprint: str,
        settings: Mapping[str, Any],
        keep: int = 2,
        log: Callable[[str], None] = print,
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep must be at least 1, not {keep}")
        self._folder, self._fingerprint, self._keep, self._log = folder, fingerprint, keep, log
        # As a manifest gives them back: a tuple is a list.
        self._settings: dict[str, Any] = json.loads(json.dumps(dict(settings), default=str))
        self._damaged: set[str] = set()

    def save(self, step: int, state: dict[str, Any], *, best: bool = False) -> Path:
        """Writes a checkpoint that is there whole, or raises CannotSaveError and leaves nothing."""
        needed = bytes_needed(state)
        for pause in PAUSES:
            try:
                return self._save_once(step, state, needed, best)
            except OSError as error:
                self._log(f"warning: {self._failure(step, needed, error)}; next try in {pause} s")
                time.sleep(pause)
        try:
            return self._save_once(step, state, needed, best)
        except OSError as error:
            what = f"{self._failure(step, needed, error)}; earlier checkpoints are kept"
            raise CannotSaveError(what) from error

    def load_latest(self) -> Loaded | None:
        """The newest whole checkpoint; the best is the last resort. None: there never was one."""
        names, problems = self._names(), []
        for note in [*_manifests(names), *({"best.json"} & names)]:
            try:
                return self._load(note)
            except DamagedError as error:
                data = Path(note).with_suffix(".pt").name
                problems.append(f"{data}: {error}")
                self._damaged.add(note)
                self._log(f"warning: {self._folder / data} is not used: {error}")
        # A kill during the very first save leaves one file alone; more have lost their manifests.
        alone = _without_manifest(names)
        if len(alone) > 1:
            problems += [f"{name}: its manifest is missing" for name in alone]
        if problems:
            what = f"all checkpoints in {self._folder} are damaged: {'; '.join(problems)}"
            raise CheckpointError(f"{what}; move the folder away to start from zero")
        for name in alone:
            self._log(f"warning: {self._folder / name} is not used: its save was interrupted")
        return None

    def load_best(self) -> Loaded | None:
        """The best checkpoint; None if no step was the best yet."""
        try:
            return self._load("best.json") if "best.json" in self._names() else None
        except DamagedError as error:
            raise CheckpointError(f"{self._folder / 'best.pt'} is damaged: {error}") from None

    def _save_once(self, step: int, state: dict[str, Any], needed: int, best: bool) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        sync(self._folder.parent)
        self._remove_leftovers()
        if shutil.disk_usage(self._folder).free < needed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        temporary = self._folder / f"{_stem(step)}.pt.tmp"
        try:
            size, digest = write_state(temporary, state)
            manifest = Manifest(step, size, digest, self._fingerprint, self._settings)
            # First the best: a run that is killed in between comes to this step and saves it again.
            if best:
                self._publish(_link(temporary, self._folder / "best.pt.tmp"), "best", manifest)
            path = self._publish(temporary, _stem(step), manifest)
        except BaseException:
            with suppress(OSError):
                self._remove_leftovers()
            raise
        self._damaged.discard(f"{_stem(step)}.json")
        self._prune(saved=f"{_stem(step)}.json")
        return path

    def _publish(self, temporary: Path, stem: str, manifest: Manifest) -> Path:
        """Gives a written file its name and its manifest."""
        data, note = self._folder / f"{stem}.pt", self._folder / f"{stem}.json"
        with suppress(DamagedError):
            older = Manifest.read(note).described()
            write_atomically(note, replace(manifest, replaces=older).encode())
        rename(temporary, data)
        sync(self._folder)
        write_atomically(note, manifest.encode())
        return data

    def _prune(self, saved: str) -> None:
        """Removes what is older than the newest `keep` that are whole as far as known."""
        whole = 0
        for note in _manifests(self._names()):
            path = self._folder / note
            if whole < self._keep or note == saved:
                whole += self._seems_whole(path)
                continue
            try:
                path.unlink()  # first the manifest: what is left without one does not count
                path.with_suffix(".pt").unlink(missing_ok=True)
            except OSError as error:
                self._log(f"warning: could not remove the old checkpoint {path}: {error}")

    def _seems_whole(self, note: Path) -> bool:
        try:
            size = note.with_suffix(".pt").stat().st_size
            return note.name not in self._damaged and size == Manifest.read(note).size
        except (OSError, DamagedError):
            return False

    def _remove_leftovers(self) -> None:
        """What killed and failed saves left: temporaries, and data without a manifest."""
        names = self._names()
        for name in [*filter(TEMPORARY.fullmatch, names), *_without_manifest(names)]:
            (self._folder / name).unlink(missing_ok=True)

    def _failure(self, step: int, needed: int, error: OSError) -> str:
        free = "unknown"
        with suppress(OSError):
            free = f"{shutil.disk_usage(self._folder).free:,} bytes"
        path = self._folder / f"{_stem(step)}.pt"
        return f"cannot save {path}: {error}; needed {needed:,} bytes, free {free}"

    def _load(self, note: str) -> Loaded:
        manifest = Manifest.read(self._folder / note)
        path = (self._folder / note).with_suffix(".pt")
        if manifest.fingerprint != self._fingerprint:
            raise CheckpointError(self._other_configuration(path, manifest))
        if path.stem not in ("best", _stem(manifest.step)):
            raise DamagedError(f"its manifest {note} is of step {manifest.step}")
        try:
            with path.open("rb") as file:
                step = manifest.step_of(file)
                file.seek(0)
                return Loaded(step, read_state(file), path)
        except OSError as error:
            raise DamagedError(f"it can't be read ({error.strerror})") from None

    def _names(self) -> set[str]:
        """All names in the folder. Not by glob, to which a folder it may not read is empty."""
        try:
            return {path.name for path in self._folder.iterdir()}
        except FileNotFoundError:
            return set()
        except OSError as error:
            raise CheckpointError(f"cannot read the folder {self._folder}: {error}") from error

    def _other_configuration(self, path: Path, manifest: Manifest) -> str:
        both = manifest.settings, self._settings
        theirs, ours = ({key: json.dumps(value) for key, value in one.items()} for one in both)
        lines = [
            f"  {key}: {theirs.get(key, '(absent)')} → {ours.get(key, '(absent)')}"
            for key in sorted(theirs.keys() | ours.keys())
            if theirs.get(key) != ours.get(key)
        ]
        if len(lines) > LISTED:
            lines[LISTED - 1 :] = [f"  … and {len(lines) - LISTED + 1} more"]
        prints = f"{manifest.fingerprint} → {self._fingerprint}"
        head = f"{path} is of another configuration (checkpoint → this run; {prints}):"
        return "\n".join([head, *(lines or ["  no setting that is known here differs"])])


def _link(source: Path, target: Path) -> Path:
    try:
        target.hardlink_to(source)
    except OSError:  # the file system has none
        shutil.copyfile(source, target)
        sync(target)
    return target


def _manifests(names: set[str]) -> list[str]:
    """Of steps, the newest first."""
    return sorted(filter(NOTE.fullmatch, names), key=lambda name: int(name[5:-5]), reverse=True)


def _without_manifest(names: set[str]) -> list[str]:
    found = [DATA.fullmatch(name) for name in sorted(names)]
    return [data[0] for data in found if data and f"{data[1]}.json" not in names]


def _stem(step: int) -> str:
    return f"step-{step:08d}"
