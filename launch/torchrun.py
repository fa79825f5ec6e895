"""`python -m launch.torchrun …`: torchrun without its own traceback and signal handling."""

from __future__ import annotations

import os
import signal
import sys

from launch.entry import make_streams_safe

PARENT = "TORCHRUN_PID"  # lets a worker know that it is one, and notice that its parent is gone


def torchrun() -> int:
    """Without torchrun's own traceback at its end; the largest status of its workers."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main

    make_streams_safe()
    os.environ[PARENT] = str(os.getpid())
    # Slurm sends these to every process of a job, and torchrun would kill workers while they save.
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    try:
        main()
    except ChildFailedError as failed:
        # Statuses are negative for signals, and 1 for those that only lost contact with another.
        return max(1, *(one.exitcode for one in failed.failures.values()))
    except SignalException:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(torchrun())
