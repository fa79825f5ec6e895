"""`python -m scripts.bench_wmt`: see `benchmarks.wmt`."""

from __future__ import annotations

import sys

from benchmarks.wmt import main

if __name__ == "__main__":
    sys.exit(main())
