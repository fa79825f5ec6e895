"""The exit statuses of a launcher."""

from __future__ import annotations

import sys
from collections.abc import Sequence

FAILED, BAD_INPUT, NO_CHECKPOINT, DIVERGED, PREEMPTED = 1, 2, 3, 5, 75
BUSY = 4  # another process runs this run
# By how a run ended, as in its status.json.
EXIT = {
    "finished": 0,
    "failed": FAILED,
    "data_problem": BAD_INPUT,
    "checkpoint_problem": NO_CHECKPOINT,
    "diverged": DIVERGED,
    "preempted": PREEMPTED,
}
_NAMES = {number: name for name, number in EXIT.items()} | {
    BAD_INPUT: "bad configuration or data",
    BUSY: "in use by another process",
}


def describe_exit(status: int | None) -> str:
    """How a launcher with this exit status ended."""
    if status is None:
        return "not ended"
    return f"killed by signal {-status}" if status < 0 else _NAMES.get(status, "failed")


def conclude(failures: Sequence[str], *, completed: bool) -> int:
    """The exit status of a command that has several runs, after a message for each that failed."""
    if not completed:
        print("stopped on request: rerun the same command to resume", flush=True)
        return PREEMPTED
    for message in failures:
        print(message, file=sys.stderr)
    return FAILED if failures else 0
