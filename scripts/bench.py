"""Times the hot paths against their competitors.

    python -m scripts.bench optim --full

Writes results/bench/<machine>/<name>.json; `make report` renders docs/performance.md from them.
Exit status: 0 measured, whatever the ratios · 1 a benchmark failed · 2 bad arguments.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from analysis.folders import BENCH
from analysis.performance import read_contests
from launch.command_line import CommandLine


def main(arguments: Sequence[str] | None = None) -> int:
    """All benches in processes of their own, or one in this process."""
    benches = list(read_contests())
    parser = CommandLine("bench", __doc__)
    known = ", ".join(benches)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {known} (default: all)")
    parser.add_argument("--full", action="store_true", help="four times as many rounds")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 … (default: cuda where there is one)")
    parser.add_argument(
        "--folder", type=Path, default=BENCH, help="for records (default: results/bench)"
    )
    options = parser.read(arguments)
    for name in options.names:
        if name not in benches:
            parser.error(f"there is no bench {name!r}: use some of {known}")
    names = options.names or benches
    from benchmarks.bench import choose_device, run_bench, run_each  # with torch

    try:
        device = choose_device(options.device)
    except ValueError as problem:
        parser.error(str(problem))
    if len(names) == 1:
        from benchmarks.contest import BenchOptions

        run_bench(names[0], BenchOptions(device, options.full), options.folder)
        return 0
    passed = ["--device", str(device), "--folder", str(options.folder)]
    return run_each(names, [*passed, *(["--full"] if options.full else [])])


if __name__ == "__main__":
    sys.exit(main())
