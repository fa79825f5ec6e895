"""Files that are either the old one or the new one, never half of it; JSON that others wrote."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any


def write_atomically(path: Path, data: bytes, durable: bool = True) -> None:
    """Temporary file, rename, and an fsync of both the file and its folder.

    `durable=False` leaves the fsyncs out: safe against a kill, not against a power failure.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        rename(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync(path.parent)


def rename(source: Path, target: Path) -> None:
    """Takes the target's place. NFS may report a rename as failed that has succeeded.

    That happens where the answer is lost: the client asks again, and the source is gone.
    """
    before = source.stat()
    try:
        source.replace(target)
    except FileNotFoundError:
        if not (target.exists() and os.path.samestat(before, target.stat())):
            raise


def parse_json(text: str | bytes) -> Any:
    """ValueError for all that is not JSON, deeply nested brackets included."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def remove_temporaries(folder: Path) -> None:
    """What a kill in `write_atomically` left in a folder in which nobody writes now."""
    for path in folder.glob(".*.tmp"):
        path.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Has on the disk what a file holds, or the names that were given in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems can't, for folders
            raise
    finally:
        os.close(descriptor)
