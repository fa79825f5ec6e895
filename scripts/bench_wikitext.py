"""`python -m scripts.bench_wikitext`: see `benchmarks.wikitext`."""

from __future__ import annotations

import sys

from benchmarks.wikitext import main

if __name__ == "__main__":
    sys.exit(main())
