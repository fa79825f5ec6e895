"""`python -m tests.faults`: see `tests.faults.attack`, which the processes of a pool import."""

from __future__ import annotations

import sys

from tests.faults.attack import main

if __name__ == "__main__":
    sys.exit(main())
