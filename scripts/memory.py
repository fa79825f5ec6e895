"""Measures the memory of the paper's models with each optimizer: results/bench/memory.json."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from analysis.folders import BENCH
from benchmarks.memory import measure_all


def main(arguments: Sequence[str] | None = None) -> int:
    """Some minutes; needs up to 6 GB of memory and no data."""
    parser = argparse.ArgumentParser(prog="python -m scripts.memory", description=__doc__)
    parser.add_argument("--output", type=Path, default=BENCH / "memory.json", metavar="FILE")
    measure_all(parser.parse_args(arguments).output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
