"""Uploads offline W&B runs.

    python -m scripts.wandb_sync --outputs outputs --dry-run

Every start of a run leaves a segment, `wandb/offline-run-<time>-<id>` in the run's folder. They are
uploaded oldest first; what W&B already has is not uploaded again, and runs in progress are skipped.

Exit status: 0 all uploaded · 1 some failed · 2 bad arguments, no login, or W&B can't be reached.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from engine.wandb_runs import WandbProblem
from engine.wandb_sync import upload_all
from launch.command_line import CommandLine, reports


@reports(WandbProblem)
def main(arguments: Sequence[str] | None = None) -> int:
    """Parses, uploads."""
    parser = CommandLine("wandb_sync", __doc__)
    parser.add_argument("--outputs", type=Path, default=Path("outputs"))
    parser.add_argument("--dry-run", action="store_true", help="only list what would be uploaded")
    parser.add_argument(
        "--timeout", type=float, default=900.0, help="seconds per segment; default: 900"
    )
    options = parser.read(arguments)
    if not options.outputs.is_dir():
        parser.error(f"--outputs {options.outputs} is not a folder")
    if not options.timeout > 0:
        parser.error(f"--timeout must be more than 0 seconds, not {options.timeout:g}")
    return upload_all(options.outputs, options.timeout, dry_run=options.dry_run)


if __name__ == "__main__":
    sys.exit(main())
