"""A run from its frozen configuration to its end: workers, signals, restarts, status.

On several nodes there is a launcher on each, and all do the same: what depends on one of them, the
run's folder and its status, is the first one's and told to the others.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Self

import yaml

from engine.config import RunConfig
from engine.distributed import Meeting, NodeLost, free_port
from engine.lock import RunFolderBusy, hold_run_folder
from engine.plan import Plan
from engine.record import write_atomically
from scripts.train import STATUS, be_killed_with_parent, record_path, stop_file, write_status

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
SECONDS_TO_SHARE = 30.0  # until a file of one node must be seen by all
SECONDS_TO_END = 15.0  # for workers whose partners on another node were lost


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


def run(prepared: Prepared, meeting: Meeting, requests: Requests) -> int:
    """Freezes the run, starts its workers and returns the launcher's exit status."""
    with ExitStack() as held:
        ends = _take_folder(prepared, held) if meeting.is_first else None
        ends = meeting.exchange(ends)[0]
        if ends is not None:
            return int(ends)
        if not _see_the_same(prepared, meeting):
            return EXIT["data_problem"]
        each = int(prepared.config.hardware.processes) // meeting.node.count
        ranks = range(meeting.node.rank * each, (meeting.node.rank + 1) * each)
        requests.pass_on_to(prepared.folder / "logs", meeting.node.rank, ranks)
        status = _supervise(prepared, meeting, requests)
    _report(prepared, status)
    return EXIT[status["status"]]


def _take_folder(prepared: Prepared, held: ExitStack) -> int | None:
    """Locks the run's folder and freezes the run; an exit status where it ends here."""
    folder = prepared.folder
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
    return None


def _see_the_same(prepared: Prepared, meeting: Meeting) -> bool:
    """Whether all nodes have one folder of outputs, and the same run in mind."""
    file = prepared.folder / "run.yaml"
    first = meeting.exchange([prepared.run_id, _content(file)])[0]
    problem = ""
    if prepared.run_id != first[0]:
        problem = f"this is {prepared.run_id}, and the first node runs {first[0]}"
    else:
        limit = time.monotonic() + SECONDS_TO_SHARE  # network file systems take their time
        while _content(file) != first[1] and time.monotonic() < limit:
            time.sleep(0.5)
        if _content(file) != first[1]:
            problem = f"{file} is not the first node's: all nodes must share paths.outputs"
    if problem:
        print(f"{meeting.node}: {problem}", file=sys.stderr)
    return not any(meeting.exchange(problem))


def _content(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


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


def record_of(prepared: Prepared) -> Path:
    """Where a finished run's record is."""
    return record_path(prepared.config, prepared.run_id)


def is_done(prepared: Prepared) -> bool:
    """Whether a run was finished here: the records that come with the suite are not the user's."""
    finished = read_status(prepared.folder).get("status") == "finished"
    return finished and record_of(prepared).exists()


def _supervise(prepared: Prepared, meeting: Meeting, requests: Requests) -> dict[str, Any]:
    """Until the run has a status that it can end with."""
    try:
        return _attempt(prepared, meeting, requests)
    except NodeLost as lost:
        requests.end_workers()
        message = f"{lost}; the same commands go on from the last checkpoint"
        return _conclude(prepared, meeting, "failed", message)


def _attempt(prepared: Prepared, meeting: Meeting, requests: Requests) -> dict[str, Any]:
    """Runs torchrun; again, some times, after the loss of a worker: one killed, or silent."""
    folder, restarts = prepared.folder, prepared.config.hardware.max_restarts
    for attempt in range(restarts + 1):
        problem = _make_ready(folder, meeting, requests)
        port = free_port() if meeting.node.count > 1 else 0
        said = meeting.exchange([requests.count, problem, port])
        problems = [problem for _, problem, _ in said if problem]
        if problems:
            return _conclude(prepared, meeting, "failed", problems[0])
        code = 0
        if not any(asked for asked, *_ in said):
            code = _start_and_wait(prepared, meeting, requests, said[0][-1])
        asked = any(count for _, count in meeting.exchange([code, requests.count]))
        status: dict[str, Any] = read_status(folder) if meeting.is_first else {}
        status = meeting.exchange(status)[0]
        if status.get("status") in EXIT:
            return status
        if asked:
            message = "stopped at once on request; work since the last checkpoint is lost"
            return _conclude(prepared, meeting, "preempted", message)
        if attempt < restarts:
            print(f"a worker was lost; restart {attempt + 1} of {restarts}", flush=True)
    message = f"a worker was lost, and no restart of {restarts} is left"
    return _conclude(prepared, meeting, "failed", message)


def _make_ready(folder: Path, meeting: Meeting, requests: Requests) -> str:
    """Removes what an earlier start has left; a message if the folder can't be written to."""
    try:
        requests.clear()
        if meeting.is_first:
            write_status(folder, "starting", "")
    except OSError as problem:
        return f"{folder} can't be written to: {problem}"
    return ""


def _conclude(prepared: Prepared, meeting: Meeting, status: str, message: str) -> dict[str, Any]:
    """What the launchers have to say where the workers could not."""
    if meeting.is_first:
        with suppress(OSError):  # a full disk
            write_status(prepared.folder, status, message)
    return {"status": status, "message": message}


def _start_and_wait(prepared: Prepared, meeting: Meeting, requests: Requests, port: int) -> int:
    """One torchrun, until nobody is left of it; its exit status."""
    hardware, node = prepared.config.hardware, meeting.node
    command = [sys.executable, "-m", "engine.distributed", "--max-restarts=0"]
    command.append(f"--nproc-per-node={int(hardware.processes) // hardware.nodes}")
    command.append("--signals-to-handle=SIGHUP,SIGQUIT")
    if node.count == 1:
        command.append("--standalone")
    else:
        command += ["--rdzv-backend=static", f"--nnodes={node.count}", f"--node-rank={node.rank}"]
        command += [f"--master-addr={node.address}", f"--master-port={port}"]
    command += ["-m", "scripts.train", str(prepared.folder)]
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
    if node.count > 1:
        _watch_others(torchrun, meeting, requests)
    code = torchrun.wait()
    requests.wait_for_workers()
    return code


def _watch_others(torchrun: subprocess.Popen[bytes], meeting: Meeting, requests: Requests) -> None:
    """Until torchrun has ended. Workers that wait for lost ones of another node are ended."""
    limit = float("inf")
    while torchrun.poll() is None:
        meeting.look_for_lost()
        if limit == float("inf") and any(code for code, _ in meeting.said().values()):
            limit = time.monotonic() + SECONDS_TO_END
        if time.monotonic() > limit:
            requests.end_workers()
        time.sleep(meeting.BETWEEN_LOOKS)


class Requests:
    """Requests to stop: the first is passed on to the workers, the second ends them at once.

    Before there are workers the first one ends this process. For a `patient` one all are the first:
    Slurm repeats itself, and ends by itself what takes too long.
    """

    def __init__(self, *, patient: bool = False) -> None:
        self.count = 0
        self._patient = patient
        self._logs: Path | None = None
        self._ranks = range(0)
        self._stop_file = Path()
        self._torchrun: subprocess.Popen[bytes] | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def pass_on_to(self, logs: Path, node: int, ranks: range) -> None:
        """From now on to the workers of this node."""
        self._ranks, self._stop_file = ranks, stop_file(logs, node)
        self._logs = logs

    def clear(self) -> None:
        """Forgets the workers and requests of a start before."""
        assert self._logs is not None
        self._logs.mkdir(exist_ok=True)
        for old in (self._stop_file, *self._pid_files()):
            old.unlink(missing_ok=True)

    def watch(self, torchrun: subprocess.Popen[bytes]) -> None:
        self._torchrun = torchrun
        if self.count > 1 and not self._patient:
            self._kill()

    def end_workers(self) -> None:
        """Without asking them."""
        self._kill()
        if self._torchrun is not None:
            self._torchrun.wait()
            self.wait_for_workers()

    def wait_for_workers(self) -> None:
        """Those of a killed torchrun are killed by the kernel, soon; others are gone already."""
        for pid in self._workers() if sys.platform == "linux" else ():
            with suppress(OSError):
                descriptor = os.pidfd_open(pid)
                select.select([descriptor], [], [], 10.0)
                os.close(descriptor)

    def _receive(self, number: int, _: FrameType | None) -> None:
        self.count += 1
        if self._logs is None:
            print("stopped before it began", flush=True)
            raise SystemExit(EXIT["preempted"])
        if self.count > 1:
            if not self._patient:
                self._kill()
            return
        more = "" if self._patient else "; once more to stop at once"
        print(f"stopping after this step{more}", flush=True)
        # A worker leaves its process id, then looks for this file: it can't miss both.
        with suppress(OSError):
            self._stop_file.touch()
        for pid in self._workers():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def _kill(self) -> None:
        if self._torchrun is not None and self._torchrun.returncode is None:
            os.killpg(self._torchrun.pid, signal.SIGKILL)  # the kernel kills the workers with it

    def _pid_files(self) -> list[Path]:
        """Of this node's workers: another node's ids mean other processes here."""
        assert self._logs is not None
        return [self._logs / f"rank-{rank}.pid" for rank in self._ranks]

    def _workers(self) -> list[int]:
        written = [_content(file) for file in self._pid_files()]
        return [int(pid) for pid in written if pid]


def _report(prepared: Prepared, status: dict[str, Any]) -> None:
    print(f"{status['status']}: {status.get('message', '')}", flush=True)
    if status["status"] == "finished":
        print(f"record: {record_path(prepared.config, prepared.run_id)}", flush=True)
    elif status["status"] == "failed":
        print(f"logs: {prepared.folder / 'logs'}", file=sys.stderr, flush=True)
