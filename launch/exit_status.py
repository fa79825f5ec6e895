"""The exit statuses of a launcher."""

from __future__ import annotations

# By how a run ended, as in its status.json.
EXIT = {
    "finished": 0,
    "failed": 1,
    "data_problem": 2,
    "checkpoint_problem": 3,
    "diverged": 5,
    "preempted": 75,
}
FAILED, BAD_INPUT, NO_CHECKPOINT, DIVERGED, PREEMPTED = (
    EXIT["failed"],
    EXIT["data_problem"],
    EXIT["checkpoint_problem"],
    EXIT["diverged"],
    EXIT["preempted"],
)
BUSY = 4  # another process runs this run
_NAMES = {number: name for name, number in EXIT.items()} | {
    BAD_INPUT: "bad configuration or data",
    BUSY: "in use by another process",
}


def describe_exit(status: int | None) -> str:
    """How a launcher with this exit status ended."""
    if status is None:
        return "not ended"
    return f"killed by signal {-status}" if status < 0 else _NAMES.get(status, "failed")
