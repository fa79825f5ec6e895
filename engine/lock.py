"""One process at a time in a run's folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import Timeout, UnixFileLock


class RunFolderBusy(Exception):
    """Another process works in the folder; the message is for the user."""


@contextmanager
def hold_run_folder(folder: Path) -> Iterator[None]:
    """Keeps every other process out of the folder, which is made if it is missing.

    The kernel holds the lock, not the file `.lock`, which is empty and stays: whatever ends the
    process, a SIGKILL too, frees the folder. Child processes do not inherit it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = UnixFileLock(folder / ".lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise RunFolderBusy(
            f"{folder} is in use by another process: wait for it or end it, "
            "or give this run another folder"
        ) from None
    try:
        yield
    finally:
        lock.release()
