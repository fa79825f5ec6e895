"""`python -m scripts.bench_optim`: see `benchmarks.optim`."""

from __future__ import annotations

import sys

from benchmarks.optim import main

if __name__ == "__main__":
    sys.exit(main())
