"""Files that were worked out of data, kept in the user's cache and verified whenever they are used.

A cache is a folder with `made.json`, which names the version of the code, what the files were made
from, and the size and SHA-256 of each. It appears complete or not at all (fsync, then rename). One
that does not fit is made again, with one line of notice.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tasks.files import parse_json, rename, sync, write_atomically
from tasks.making import Say, alone

MADE = "made.json"


class _Unfit(Exception):
    """Why a cache can't be used, in a few words."""


def open_cache(
    place: Path,
    made_from: Mapping[str, Any],
    make: Callable[[Path], Mapping[str, Any] | None],
    say: Say,
) -> dict[str, Any]:
    """Has `place` hold what `make(folder)` writes; returns its `made.json`.

    `made_from` is JSON that identifies the code's version and the sources: if the cache has another
    one it is made again. What `make` returns is kept under "about". OSError where the cache can't
    be written.
    """
    wanted = json.loads(json.dumps(made_from))
    with suppress(FileNotFoundError, _Unfit):
        return _verified(place, wanted)
    with alone(place, say) as temporary:
        try:
            return _verified(place, wanted)  # another process was quicker
        except FileNotFoundError:
            pass
        except _Unfit as reason:
            say(f"{place}: {reason}; it is made again")
        folder = temporary / "made"
        folder.mkdir()
        about = make(folder)
        made = {"made_from": wanted, "about": dict(about or {}), "files": _describe(folder)}
        write_atomically(folder / MADE, json.dumps(made, indent=1).encode())
        for inner in (p for p in folder.rglob("*") if p.is_dir()):
            sync(inner)
        if place.exists():
            shutil.rmtree(place)
        rename(folder, place)
        sync(place.parent)
        return made


def _verified(place: Path, made_from: Mapping[str, Any]) -> dict[str, Any]:
    """FileNotFoundError if there is no such cache at all."""
    if not place.exists():
        raise FileNotFoundError(place)
    try:
        made: dict[str, Any] = parse_json((place / MADE).read_text())
        if made["made_from"] != made_from:
            raise _Unfit("made from other data or by another version")
        for name, entry in made["files"].items():
            size = (place / name).stat().st_size
            if size != entry["bytes"]:
                raise _Unfit(f"{name} has {size:,} bytes instead of {entry['bytes']:,}")
        for name, entry in made["files"].items():
            if checksum(place / name) != entry["sha256"]:
                raise _Unfit(f"the checksum of {name} is wrong")
    except FileNotFoundError as error:
        raise _Unfit(f"{Path(error.filename).name} is missing") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise _Unfit(f"{MADE} cannot be read") from None
    return made


def _describe(folder: Path) -> dict[str, dict[str, Any]]:
    files = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        sync(path)
        entry = {"bytes": path.stat().st_size, "sha256": checksum(path)}
        files[str(path.relative_to(folder))] = entry
    return files


def checksum(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def state_of(*files: Path) -> list[list[Any]]:
    """Paths, sizes and times of files: another state is another source."""
    found = []
    for file in files:
        status = file.stat()
        found.append([str(file.absolute()), status.st_size, status.st_mtime_ns])
    return found
