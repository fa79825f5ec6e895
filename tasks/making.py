"""A folder of data that appears complete or not at all, made by one process at a time."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import Timeout, UnixFileLock

Say = Callable[[str], None]


@contextmanager
def alone(root: Path, say: Say) -> Iterator[Path]:
    """An empty folder beside `root`, on the same disk, which is gone afterwards.

    The kernel holds the lock and the empty lock file stays. Whoever has the lock may remove what a
    killed process has left.
    """
    root.parent.mkdir(parents=True, exist_ok=True)
    lock = UnixFileLock(root.with_name(f".{root.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"{root}: waiting for another process that is making it")
        lock.acquire()
    temporary = root.with_name(f".{root.name}.making")
    try:
        if temporary.exists():
            shutil.rmtree(temporary)
        temporary.mkdir()
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        lock.release()
