"""Is one worker of a run, started by torchrun.

    python -m scripts.train outputs/imagenet/RUN

The launcher (`python -m scripts.launch`) starts the workers; there is no need to call this by hand.
"""

from __future__ import annotations

import sys
from pathlib import Path

from launch.command_line import CommandLine
from launch.worker import run_worker


def main() -> int:
    """0 for an orderly end, also of a failed run; 1 for a crash."""
    parser = CommandLine("train", __doc__)
    parser.add_argument("folder", type=Path, help="of a run, with its run.yaml")
    return run_worker(parser.read().folder)


if __name__ == "__main__":
    sys.exit(main())
