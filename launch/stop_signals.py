"""Stop signals: received by a launcher, sent on to the workers of its node."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, Self

from launch.entry import end_of, receive_stop_signals, write_now
from launch.exit_status import PREEMPTED
from launch.worker import STOP_WORKER, stop_file

SECONDS_TO_DIE = 10.0  # for workers whose torchrun was killed


class StopSignals:
    """SIGTERM, SIGINT, SIGUSR1, SIGHUP: workers save and stop at the first, the second kills them.

    Before there are workers the first one ends this process. A `patient` launcher takes all signals
    as the first: Slurm repeats them, and kills by itself what takes too long.
    """

    def __init__(self, *, patient: bool = False) -> None:
        self.count = 0
        self._patient = patient
        self._stop_file: Path | None = None  # until there may be workers
        self._pid_files: list[Path] = []
        self._torchrun: subprocess.Popen[bytes] | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._before = receive_stop_signals(self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, end_of(handler))

    def send_to(self, logs: Path, node: int, ranks: range) -> None:
        """From now on signals are sent on to this node's workers.

        To these only: the process ids of another node are those of other processes here.
        """
        self._pid_files = [logs / f"rank-{rank}.pid" for rank in ranks]
        self._stop_file = stop_file(logs, node)

    def clear(self) -> None:
        """Removes the process ids and the stop file of an earlier start."""
        assert self._stop_file is not None
        self._stop_file.parent.mkdir(exist_ok=True)
        for old in (self._stop_file, *self._pid_files):
            old.unlink(missing_ok=True)

    def watch(self, torchrun: subprocess.Popen[bytes]) -> None:
        """The process whose death kills the workers: torchrun, or the only worker itself."""
        self._torchrun = torchrun
        if self.count > 1 and not self._patient:
            self._kill()

    def kill_workers(self) -> None:
        """Without letting them save."""
        self._kill()
        if self._torchrun is not None:
            self._torchrun.wait()
            self.wait_for_workers()

    def wait_for_workers(self) -> None:
        """The kernel kills the workers of a killed torchrun; other torchruns waited for theirs."""
        for pid in self._workers() if sys.platform == "linux" else ():
            with suppress(OSError):
                descriptor = os.pidfd_open(pid)
                select.select([descriptor], [], [], SECONDS_TO_DIE)
                os.close(descriptor)

    def _receive(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGHUP and self.count:
            return  # a terminal that is closed may send it twice, the shell's and the kernel's
        self.count += 1
        if self._stop_file is None:
            raise SystemExit(PREEMPTED)
        if self.count > 1:
            if not self._patient:
                self._kill()
            return
        # A worker writes its process id, then looks for this file: it can't miss both.
        with suppress(OSError):
            self._stop_file.touch()
        if self._is_running():  # else the process ids may be those of others by now
            for pid in self._workers():
                with suppress(ProcessLookupError):
                    os.kill(pid, STOP_WORKER)
        more = "" if self._patient else "; signal again to stop at once"
        write_now(f"stopping after this step{more}")

    def _kill(self) -> None:
        if self._torchrun is not None and self._is_running():
            os.killpg(self._torchrun.pid, signal.SIGKILL)  # the kernel kills the workers with it

    def _is_running(self) -> bool:
        return self._torchrun is not None and self._torchrun.returncode is None

    def _workers(self) -> list[int]:
        found = []
        for file in self._pid_files:
            with suppress(OSError, ValueError):
                found.append(int(file.read_text()))
        return found
