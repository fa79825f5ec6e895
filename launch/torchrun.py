"""`python -m launch.torchrun …`: torchrun without its own traceback and signal handling."""

from __future__ import annotations

import os
import signal
import sys

from launch.entry import make_streams_safe


def torchrun() -> int:
    """Without torchrun's own traceback at its end when a worker has failed."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main

    make_streams_safe()
    os.environ["TORCHRUN_PID"] = str(os.getpid())  # lets a worker notice that its parent is gone
    # Slurm sends these to every process of a job, and torchrun would kill workers while they save.
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    try:
        main()
    except (ChildFailedError, SignalException):
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(torchrun())
