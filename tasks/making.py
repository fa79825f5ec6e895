"""Data that the suite makes itself, and where it keeps what it has worked out of data."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from filelock import Timeout, UnixFileLock

from tasks.base import DataProblem
from tasks.files import rename

MAKE_AGAIN = "move the folder elsewhere to have it made again"
OTHER_PYTHON = "another version of Python may have made the words"
Say = Callable[[str], None]
Makers = Mapping[str, Callable[[Path], object]]  # by the names that `data.make` may have


def make_data(make: str | None, makers: Makers, root: Path) -> None:
    """Has the data set that `data.make` names made or fetched below `root`, if it names one."""
    if make is None:
        return
    if make not in makers:
        raise DataProblem(f"data.make: must be null or one of {[*makers]}, not {make!r}")
    makers[make](root)


def cache_folder(kind: str) -> Path:
    """In the user's cache: data may lie on a read-only disk, or be other people's."""
    caches = os.environ.get("XDG_CACHE_HOME", "") or Path.home() / ".cache"
    return Path(caches) / "novograd-repro" / kind


@contextmanager
def locked(root: Path, say: Say) -> Iterator[None]:
    """One process at a time works on `root`; others wait.

    The kernel holds the lock and the empty lock file stays.
    """
    root.parent.mkdir(parents=True, exist_ok=True)
    lock = UnixFileLock(root.with_name(f".{root.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"{root}: waiting for another process that is making it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def alone(root: Path, say: Say) -> Iterator[Path]:
    """An empty folder beside `root`, on the same disk, which is gone afterwards.

    Whoever has the lock may remove what a killed process has left.
    """
    with locked(root, say):
        temporary = root.with_name(f".{root.name}.making")
        try:
            if temporary.exists():
                shutil.rmtree(temporary)
            temporary.mkdir()
            yield temporary
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def make_once(
    root: Path, name: str, check: Callable[[Path], None], make: Callable[[Path], Path], say: Say
) -> bool:
    """Makes the data set `name` at `root` unless it is there (False); complete or not at all.

    `make` gets an empty folder and returns the folder of the complete set inside it; `check`
    raises DataProblem for a set that is not complete.
    """
    if root.exists():
        check(root)
        return False
    try:
        with alone(root, say) as temporary:
            if root.exists():  # another process was quicker
                check(root)
                return False
            rename(make(temporary), root)
    except OSError as error:
        raise DataProblem(f"{root}: {name} cannot be written there: {error}") from error
    say(f"{name} is complete in {root}")
    return True


def check_sha256(root: Path, sums: Mapping[str, str], advice: str = MAKE_AGAIN) -> None:
    """Raises DataProblem for a file below `root` that is missing or has another sum."""
    for name, wanted in sums.items():
        file = root / name
        if not file.is_file():
            raise DataProblem(f"{file}: missing, so {root} is not whole; {advice}")
        found = hashlib.sha256(file.read_bytes()).hexdigest()
        if found != wanted:
            raise DataProblem(f"{file}: its SHA-256 is {found}, but must be {wanted}; {advice}")
