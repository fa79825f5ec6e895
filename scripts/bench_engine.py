"""`python -m scripts.bench_engine`: see `benchmarks.engine`."""

from __future__ import annotations

import sys

from benchmarks.engine import main

if __name__ == "__main__":
    sys.exit(main())
