"""Tar archives from outside: opened so that a header can't claim memory without bound."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import IO, Any

LARGEST_HEADER = 1 << 16  # bytes of a long name, a long link or a set of pax fields
EXTENSIONS = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)


class _Bounded(tarfile.TarInfo):
    """tarfile reads a header that extends another one as a whole into memory."""

    def _proc_member(self, tar: tarfile.TarFile) -> Any:
        if self.type in EXTENSIONS and not 0 <= self.size <= LARGEST_HEADER:
            raise tarfile.ReadError(f"a header declares {self.size:,} bytes")
        return super()._proc_member(tar)  # type: ignore[misc]


def open_tar(source: Path | IO[bytes], mode: Any) -> tarfile.TarFile:
    """As tarfile.open, for a path or an open file."""
    if isinstance(source, Path):
        return tarfile.open(source, mode, tarinfo=_Bounded)
    return tarfile.open(fileobj=source, mode=mode, tarinfo=_Bounded)
