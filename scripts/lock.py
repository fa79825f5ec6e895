"""Resolves pyproject.toml into requirements.lock.

    python -m scripts.lock --upgrade

Exit status: 0 written · 1 dependencies can't be resolved, or the package index can't be reached.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from launch.command_line import CommandLine
from launch.lockfile import LOCK, LockError, make_lock, read_lock


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the lock only when it is complete."""
    parser = CommandLine("lock", __doc__)
    parser.add_argument("--upgrade", action="store_true", help="do not keep the locked versions")
    options = parser.read(arguments)
    try:
        text = make_lock(upgrade=options.upgrade)
    except LockError as error:
        print(error, file=sys.stderr)
        return 1
    LOCK.write_text(text)
    packages = read_lock(text)
    hashes = sum(len(digests) for _, digests in packages.values())
    print(f"{LOCK.name}: {len(packages)} packages, {hashes} checksums")
    return 0


if __name__ == "__main__":
    sys.exit(main())
