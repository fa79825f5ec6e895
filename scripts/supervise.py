"""A run from its frozen configuration to its end: workers, signals, restarts, status."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Self

import yaml

from engine.config import RunConfig
from engine.lock import RunFolderBusy, hold_run_folder
from engine.plan import Plan
from engine.record import write_atomically
from scripts.train import STATUS, STOP, be_killed_with_parent, record_path, write_status

ROOT = Path(__file__).parent.parent
EXIT = {
    "finished": 0,
    "failed": 1,
    "data_problem": 2,
    "checkpoint_problem": 3,
    "diverged": 5,
    "preempted": 75,
}
BUSY = 4


@dataclass(frozen=True)
class Prepared:
    """A validated run: everything is known but the result."""

    config: RunConfig
    plan: Plan
    task: Any
    run_id: str
    fingerprint: str

    @property
    def folder(self) -> Path:
        return Path(self.config.paths.outputs) / self.run_id


def run(prepared: Prepared) -> int:
    """Freezes the run, starts its workers and returns the launcher's exit status."""
    folder = prepared.folder
    with ExitStack() as held:
        try:
            held.enter_context(hold_run_folder(folder))
            if read_status(folder).get("status") == "finished":
                print(f"{prepared.run_id} is finished already: {folder}")
                return 0
            freeze(prepared)
        except RunFolderBusy as problem:
            print(problem, file=sys.stderr)
            return BUSY
        except OSError as problem:
            outputs = prepared.config.paths.outputs
            print(f"paths.outputs={outputs} can't be written to: {problem}", file=sys.stderr)
            return 2
        status = _supervise(prepared)
    _report(prepared, status)
    return EXIT[status["status"]]


def freeze(prepared: Prepared) -> None:
    """Writes run.yaml, which is all that the workers read."""
    frozen = {
        "run_id": prepared.run_id,
        "fingerprint": prepared.fingerprint,
        "config": asdict(prepared.config),
    }
    text = yaml.safe_dump(frozen, sort_keys=False, allow_unicode=True)
    write_atomically(prepared.folder / "run.yaml", text.encode(), durable=False)


def read_status(folder: Path) -> dict[str, Any]:
    """status.json, or {} if there is none."""
    try:
        found: dict[str, Any] = json.loads((folder / STATUS).read_text())
    except (OSError, ValueError):
        return {}
    return found


def _supervise(prepared: Prepared) -> dict[str, Any]:
    """Runs torchrun; again, some times, after the loss of a worker: one killed, or silent."""
    folder, restarts = prepared.folder, prepared.config.hardware.max_restarts
    with _Requests(folder / "logs") as requests:
        for attempt in range(restarts + 1):
            try:
                requests.clear()
                write_status(folder, "starting", "")
            except OSError as problem:
                return _conclude(folder, "failed", f"{folder} can't be written to: {problem}")
            if requests.count == 0:
                _start_and_wait(prepared, requests)
            status = read_status(folder)
            if status.get("status") in EXIT:
                return status
            if requests.count > 0:
                message = "stopped at once on request; work since the last checkpoint is lost"
                return _conclude(folder, "preempted", message)
            if attempt < restarts:
                print(f"a worker was lost; restart {attempt + 1} of {restarts}", flush=True)
    return _conclude(folder, "failed", f"a worker was lost, and no restart of {restarts} is left")


def _conclude(folder: Path, status: str, message: str) -> dict[str, Any]:
    """What the launcher has to say where the workers could not."""
    with suppress(OSError):  # a full disk
        write_status(folder, status, message)
    return {"status": status, "message": message}


def _start_and_wait(prepared: Prepared, requests: _Requests) -> None:
    """One torchrun, until nobody is left of it."""
    hardware, folder = prepared.config.hardware, prepared.folder
    command = [sys.executable, "-m", "engine.distributed", "--standalone"]
    command += [f"--nproc-per-node={hardware.processes}", "--max-restarts=0"]
    command += ["-m", "scripts.train", str(folder)]
    environment = os.environ | {
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "OMP_NUM_THREADS": str(hardware.threads),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    torchrun = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        start_new_session=True,  # Ctrl-C reaches the launcher alone, which passes it on in order
        preexec_fn=be_killed_with_parent,  # and the workers with torchrun
    )
    requests.watch(torchrun)
    torchrun.wait()
    requests.wait_for_workers()


class _Requests:
    """Requests to stop: the first is passed on to the workers, the second ends them at once."""

    def __init__(self, logs: Path) -> None:
        self.count = 0
        self._logs = logs
        self._torchrun: subprocess.Popen[bytes] | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def clear(self) -> None:
        """Forgets the workers and requests of a start before."""
        self._logs.mkdir(exist_ok=True)
        for old in (self._logs / STOP, *self._logs.glob("rank-*.pid")):
            old.unlink(missing_ok=True)

    def watch(self, torchrun: subprocess.Popen[bytes]) -> None:
        self._torchrun = torchrun
        if self.count > 1:
            self._kill()

    def wait_for_workers(self) -> None:
        """Those of a killed torchrun are killed by the kernel, soon; others are gone already."""
        for pid in self._workers() if sys.platform == "linux" else ():
            with suppress(OSError):
                descriptor = os.pidfd_open(pid)
                select.select([descriptor], [], [], 10.0)
                os.close(descriptor)

    def _receive(self, number: int, _: FrameType | None) -> None:
        self.count += 1
        if self.count > 1:
            self._kill()
            return
        print("stopping after this step; once more to stop at once", flush=True)
        # A worker leaves its process id, then looks for this file: it can't miss both.
        with suppress(OSError):
            (self._logs / STOP).touch()
        for pid in self._workers():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def _kill(self) -> None:
        if self._torchrun is not None and self._torchrun.returncode is None:
            os.killpg(self._torchrun.pid, signal.SIGKILL)  # the kernel kills the workers with it

    def _workers(self) -> list[int]:
        written = [file.read_text() for file in self._logs.glob("rank-*.pid")]
        return [int(pid) for pid in written if pid]


def _report(prepared: Prepared, status: dict[str, Any]) -> None:
    print(f"{status['status']}: {status.get('message', '')}", flush=True)
    if status["status"] == "finished":
        print(f"record: {record_path(prepared.config, prepared.run_id)}", flush=True)
    elif status["status"] == "failed":
        print(f"logs: {prepared.folder / 'logs'}", file=sys.stderr, flush=True)
