"""Checks this machine's GPU against its CPU, and times every task on it.

    python -m scripts.gpu_check --steps 50

Writes results/bench/gpu-<name>.json and a page next to it.

Exit status: 0 the numbers agree · 1 the GPU's numbers differ from the CPU's · 2 no usable GPU.
"""

from __future__ import annotations

import sys
from pathlib import Path

from analysis.folders import BENCH
from engine.config import ConfigProblem
from launch.command_line import CommandLine, reports


@reports(ConfigProblem)
def main() -> int:
    """Exit status."""
    parser = CommandLine("gpu_check", __doc__)
    parser.add_argument("--steps", type=int, default=50, help="timed steps per task (default: 50)")
    what = "where the record is written (default: results/bench)"
    parser.add_argument("--folder", type=Path, default=BENCH, help=what)
    options = parser.read()
    import torch

    from launch.device_check import check_devices

    check_devices("cuda")
    if not torch.cuda.is_available():
        print("gpu-check: this machine has no NVIDIA GPU", file=sys.stderr)
        return 2
    from launch.gpu_check import check_gpu, write_record

    record = check_gpu(options.steps)
    print(f"record: {write_record(record, options.folder)}")
    return 0 if record["agrees_with_cpu"] else 1


if __name__ == "__main__":
    sys.exit(main())
