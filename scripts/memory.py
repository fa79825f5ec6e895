"""Measures the memory of the paper's models with each optimizer: results/bench/memory.json.

    python -m scripts.memory --output memory.json

Exit status: 0 measured.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from analysis.folders import BENCH
from benchmarks.memory import measure_all
from launch.command_line import CommandLine


def main(arguments: Sequence[str] | None = None) -> int:
    """Some minutes; needs up to 6 GB of memory and no data."""
    parser = CommandLine("memory", __doc__)
    parser.add_argument("--output", type=Path, default=BENCH / "memory.json", metavar="FILE")
    measure_all(parser.read(arguments).output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
