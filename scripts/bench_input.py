"""`python -m scripts.bench_input`: see `benchmarks.input`."""

from __future__ import annotations

import sys

from benchmarks.input import main

if __name__ == "__main__":
    sys.exit(main())
