"""Runs one worker of a run; started by the launcher.

    python -m scripts.train outputs/imagenet/RUN

The launcher (`python -m scripts.launch`) starts the workers; there is no need to call this by hand.
"""

from __future__ import annotations

import sys
from pathlib import Path

from engine.records import RUN_FILE
from launch.command_line import CommandLine
from launch.worker import run_worker
from tasks.catalog import TASKS


def main() -> int:
    """0 for an orderly end, also of a failed run; 1 for a crash."""
    parser = CommandLine("train", __doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="the run's folder, with its run.yaml")
    what = "import what a worker of this task needs, then read the folder from standard input"
    parser.add_argument("--standby", metavar="TASK", choices=TASKS, help=what)
    parser.add_argument(
        "--compiler", action="store_true", help="with --standby: torch's compiler, too"
    )
    options = parser.read()
    if (options.folder is None) == (options.standby is None):
        parser.error("give the folder of a run")
    if options.standby is None:
        if not (options.folder / RUN_FILE).is_file():
            parser.error(f"{options.folder} is not a run's folder: it has no {RUN_FILE}")
        return run_worker(options.folder)
    from launch.standby import wait_for_folder

    return run_worker(wait_for_folder(options.standby, compiler=options.compiler))


if __name__ == "__main__":
    sys.exit(main())
