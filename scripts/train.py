"""`python -m scripts.train RUN_FOLDER`: one worker of a run, started by torchrun.

The launcher (`python -m scripts.launch`) starts the workers; there is no need to call this by hand.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from launch.worker import run_worker


def main() -> int:
    """0 for an orderly end, also of a failed run; 1 for a crash."""
    parser = argparse.ArgumentParser(prog="python -m scripts.train", description=__doc__)
    parser.add_argument("folder", type=Path, help="of a run, with its run.yaml")
    return run_worker(parser.parse_args().folder)


if __name__ == "__main__":
    sys.exit(main())
