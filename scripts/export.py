"""Exports a trained model, so that it can be used without its run.

    python -m scripts.export outputs/imagenet/RUN --to exports/resnet50

The folder has model.safetensors, config.json, the classes or the vocabulary, and README.md, a model
card. `scripts.predict`, `scripts.evaluate` and `init_from=FOLDER` accept it.

Exit status: 0 exported · 2 bad input.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from launch.command_line import CommandLine


def main(arguments: Sequence[str] | None = None) -> int:
    """Parses, exports."""
    parser = CommandLine("export", __doc__)
    parser.add_model("a run's folder or a checkpoint")
    parser.add_argument("--to", type=Path, required=True, metavar="FOLDER", help="a new folder")
    given = parser.read(arguments)
    from launch.export import run_export  # torch: after the command line

    return run_export(given.path, given.to, given.checkpoint, given.average)


if __name__ == "__main__":
    sys.exit(main())
