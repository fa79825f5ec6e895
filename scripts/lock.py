"""`python -m scripts.lock [--upgrade]`: resolves pyproject.toml into requirements.lock.

Exit status: 0 written · 1 no resolution, or the package index can't be reached.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from launch.lockfile import LOCK, LockError, make_lock, read_lock


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the lock only when it is complete."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.lock", description="Resolves pyproject.toml into requirements.lock."
    )
    parser.add_argument("--upgrade", action="store_true", help="do not keep the locked versions")
    options = parser.parse_args(arguments)
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
