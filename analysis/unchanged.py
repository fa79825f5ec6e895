"""Which pages were stale when they were last rendered, while they and their sources are unchanged.

Rendering composes every published recipe and draws every chart; comparing a digest takes no time.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from analysis.folders import ROOT
from tasks.files import write_atomically

CODE = ("analysis", "benchmarks", "configs", "engine", "launch", "optim", "scripts", "tasks")
LIBRARIES = "requirements.lock"
DATA = ("results", "docs", "README.md")  # records and pages
STAMP = Path("outputs", ".report.sha256")  # of a checkout; git ignores it


def digest(root: Path) -> str:
    """Of names and contents: the code, its libraries, and the records and pages below a root."""
    found = hashlib.sha256(sys.version.encode())
    for base, names in ((ROOT, (*CODE, LIBRARIES)), (root, DATA)):
        for path in (path for name in names for path in _files(base / name)):
            content = path.read_bytes()
            found.update(f"\0{path.relative_to(base)}\0{len(content)}\0".encode() + content)
    return found.hexdigest()


def remembered(root: Path) -> list[str] | None:
    """Names of stale pages as `remember` was told; None if anything has changed since."""
    stamp = root / STAMP
    if not stamp.is_file():
        return None
    known, *stale = stamp.read_text().splitlines() or [""]
    return stale if known == digest(root) else None


def remember(root: Path, stale: Sequence[str] = ()) -> None:
    """That the other pages are up to date; where that can't be noted they are rendered again."""
    try:
        text = "\n".join([digest(root), *stale])
        write_atomically(root / STAMP, text.encode(), durable=False)
    except OSError:
        return


def _files(path: Path) -> Iterator[Path]:
    if path.is_dir():
        found = (file for file in sorted(path.rglob("*")) if "__pycache__" not in file.parts)
        yield from (file for file in found if file.is_file())
    elif path.exists():
        yield path
