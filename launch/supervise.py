"""A run on this node, from its configuration to its exit status: workers, restarts.

On several nodes each has a launcher, and all do the same. The first one owns the run's folder and
its status; what it decides there the others learn through the rendezvous.
"""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from engine.config import ConfigProblem, RunConfig, read_config
from engine.lock import RunFolderBusy, hold_run_folder
from engine.records import (
    RECORD_FILE,
    RUN_FILE,
    RecordError,
    RunFile,
    Status,
    read_status,
    write_run_file,
    write_status,
)
from launch.compose import Origin
from launch.entry import STOPPED_EARLY
from launch.exit_status import BAD_INPUT, BUSY, EXIT, FAILED, NO_CHECKPOINT
from launch.rendezvous import Node, NodeLost, Rendezvous, RendezvousError, free_port
from launch.run_spec import RunSpec, complete_run_spec, describe
from launch.standby import start_process, take_standby, worker_environment
from launch.stop_signals import StopSignals
from tasks.base import DataProblem

SECONDS_TO_SHARE = 30.0  # until all nodes must see a file of the first one
SECONDS_TO_END = 15.0  # for workers after those of another node have failed


def launch(
    config: RunConfig,
    origin: Origin,
    node: Node,
    *,
    frozen: RunFile | None = None,
    patient: bool = False,
) -> int:
    """This node's part of a run; the exit status is the same on every node.

    A `frozen` run is validated already, and its data is prepared.
    """
    try:
        with (
            StopSignals(patient=patient) as stop_signals,
            Rendezvous(node, config.hardware.timeout_s) as rendezvous,
        ):
            if frozen is None:
                spec = _complete_in_turn(config, origin, rendezvous)
                if spec is None:
                    return BAD_INPUT
                if node.is_first:
                    print(describe(spec), flush=True)
                config, frozen = spec.config, spec.freeze()
            return _run(_Run(frozen, config), rendezvous, stop_signals)
    except RendezvousError as problem:
        print(problem, file=sys.stderr)
        return BAD_INPUT
    except NodeLost as lost:
        print(f"{node}: {lost}", file=sys.stderr)
        return lost.status or FAILED
    except SystemExit as stopped:  # a stop signal before the workers were started
        print(STOPPED_EARLY, flush=True)
        return int(stopped.code or 0)


def launch_frozen(run: RunFile) -> int:
    """A run of this machine that a scheduler has validated, and whose data it has prepared."""
    return launch(read_config(run.config), Origin(), Node(), frozen=run)


@dataclass(frozen=True)
class _Run:
    """A frozen run, and its configuration again as read."""

    file: RunFile
    config: RunConfig

    @property
    def run_id(self) -> str:
        return self.file.run_id

    @property
    def folder(self) -> Path:
        return Path(self.config.paths.outputs) / self.run_id


def _complete_in_turn(config: RunConfig, origin: Origin, rendezvous: Rendezvous) -> RunSpec | None:
    """On the first node first, so that shared data are downloaded and made once.

    None on all nodes if one of them has a problem.
    """
    if not rendezvous.node.is_first and rendezvous.gather("")[0]:
        return None
    spec, problem = None, ""
    try:
        spec = complete_run_spec(config, origin)
    except (ConfigProblem, DataProblem) as found:
        problem = str(found)
        where = f"{rendezvous.node}: " if rendezvous.node.count > 1 else ""
        print(f"{where}{problem}", file=sys.stderr)
    if rendezvous.node.is_first and rendezvous.gather(problem)[0]:
        return None
    return None if any(rendezvous.gather(problem)) else spec


def _run(run: _Run, rendezvous: Rendezvous, stop_signals: StopSignals) -> int:
    """Writes run.yaml, starts the workers and returns the launcher's exit status."""
    with ExitStack() as held:
        ends = _take_folder(run, held) if rendezvous.node.is_first else None
        ends = rendezvous.gather(ends)[0]
        if ends is not None:
            return int(ends)
        if not _all_share_the_run(run, rendezvous):
            return BAD_INPUT
        each = int(run.config.hardware.processes) // rendezvous.node.count
        ranks = range(rendezvous.node.rank * each, (rendezvous.node.rank + 1) * each)
        stop_signals.send_to(run.folder / "logs", rendezvous.node.rank, ranks)
        try:
            status = _run_attempts(run, rendezvous, stop_signals)
        except NodeLost as lost:
            stop_signals.kill_workers()
            message = f"{lost}; rerun the same commands to resume from the last checkpoint"
            status = _conclude(run, rendezvous, "failed", message)
    print(f"{status.kind}: {status.message}", flush=True)
    if status.is_finished:
        print(f"record: {run.folder / RECORD_FILE}", flush=True)
    elif status.kind == "failed":
        print(f"logs: {run.folder / 'logs'}", file=sys.stderr, flush=True)
    return EXIT[status.kind]


def _take_folder(run: _Run, held: ExitStack) -> int | None:
    """Locks the run's folder and freezes the run; the exit status where there is nothing to run."""
    folder = run.folder
    try:
        held.enter_context(hold_run_folder(folder))
        if read_status(folder).is_finished:
            from launch.run_record import restore_record  # torch: for what a run has left only

            if done := restore_record(folder, run.config):
                print(done)
            print(f"{run.run_id} is finished already: {folder}")
            return 0
        write_run_file(folder, run.file)
    except (RunFolderBusy, RecordError) as problem:
        print(problem, file=sys.stderr)
        return BUSY if isinstance(problem, RunFolderBusy) else NO_CHECKPOINT
    except OSError as problem:
        outputs = run.config.paths.outputs
        print(f"paths.outputs={outputs} can't be written to: {problem}", file=sys.stderr)
        return BAD_INPUT
    return None


def _all_share_the_run(run: _Run, rendezvous: Rendezvous) -> bool:
    """Whether all nodes were given the same run and see the first one's folder."""
    file = run.folder / RUN_FILE
    run_id, content = rendezvous.gather([run.run_id, _content(file)])[0]
    problem = ""
    if run.run_id != run_id:
        problem = f"this is {run.run_id}, but the first node runs {run_id}"
    else:
        limit = time.monotonic() + SECONDS_TO_SHARE  # network file systems take their time
        while _content(file) != content and time.monotonic() < limit:
            time.sleep(0.5)
        if _content(file) != content:
            problem = f"{file} is not the first node's: all nodes must share paths.outputs"
    if problem:
        print(f"{rendezvous.node}: {problem}", file=sys.stderr)
    return not any(rendezvous.gather(problem))


def _content(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


def _run_attempts(run: _Run, rendezvous: Rendezvous, stop_signals: StopSignals) -> Status:
    """Starts the workers; again, some times, after one was killed or stopped responding."""
    folder, restarts = run.folder, run.config.hardware.max_restarts
    for attempt in range(restarts + 1):
        problem = _prepare_folder(folder, rendezvous, stop_signals)
        port = free_port() if rendezvous.node.count > 1 else 0
        nodes = rendezvous.gather([stop_signals.count, problem, port])
        problems = [problem for _, problem, _ in nodes if problem]
        if problems:
            return _conclude(run, rendezvous, "failed", problems[0])
        code = 0
        if not any(count for count, *_ in nodes):
            code = _run_workers(run, rendezvous, stop_signals, port=nodes[0][-1])
        stopped = any(count for _, count in rendezvous.gather([code, stop_signals.count]))
        found = read_status(folder) if rendezvous.node.is_first else Status()
        status = Status(**rendezvous.gather(asdict(found))[0])
        if status.kind in EXIT:
            return status
        if stopped:
            message = "stopped at once on request; work since the last checkpoint is lost"
            return _conclude(run, rendezvous, "preempted", message)
        if attempt < restarts:
            print(f"a worker was lost; restart {attempt + 1} of {restarts}", flush=True)
    message = f"a worker was lost, and no restart of {restarts} is left"
    return _conclude(run, rendezvous, "failed", message)


def _prepare_folder(folder: Path, rendezvous: Rendezvous, stop_signals: StopSignals) -> str:
    """Removes traces of an earlier start; a message if the folder can't be written to."""
    try:
        stop_signals.clear()
        if rendezvous.node.is_first:
            write_status(folder, "starting", "")
    except OSError as problem:
        return f"{folder} can't be written to: {problem}"
    return ""


def _conclude(run: _Run, rendezvous: Rendezvous, kind: str, message: str) -> Status:
    """The status of a run whose workers could not write it."""
    if rendezvous.node.is_first:
        with suppress(OSError):  # a full disk
            write_status(run.folder, kind, message)
    return Status(kind, message)


def _run_workers(run: _Run, rendezvous: Rendezvous, stop_signals: StopSignals, port: int) -> int:
    """Until all workers of this node have ended; the exit status of what started them."""
    torchrun = _start_workers(run, rendezvous.node, port)
    stop_signals.watch(torchrun)
    if rendezvous.node.count > 1:
        _watch_nodes(torchrun, rendezvous, stop_signals)
    code = torchrun.wait()
    stop_signals.wait_for_workers()
    return code


def _start_workers(run: _Run, node: Node, port: int) -> subprocess.Popen[bytes]:
    """Torchrun, whose death kills the workers; or the worker itself where there is only one."""
    hardware, folder = run.config.hardware, run.folder
    environment = worker_environment(hardware.threads)
    if hardware.processes == 1:
        waiting = take_standby(folder, environment)
        return waiting or start_process("scripts.train", str(folder), environment=environment)
    arguments = ["--max-restarts=0", "--signals-to-handle=SIGHUP,SIGQUIT"]
    arguments.append(f"--nproc-per-node={int(hardware.processes) // hardware.nodes}")
    if node.count == 1:
        arguments.append("--standalone")
    else:
        arguments += ["--rdzv-backend=static", f"--nnodes={node.count}", f"--node-rank={node.rank}"]
        arguments += [f"--master-addr={node.address}", f"--master-port={port}"]
    arguments += ["-m", "scripts.train", str(folder)]
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    return start_process("launch.torchrun", *arguments, environment=environment)


def _watch_nodes(
    torchrun: subprocess.Popen[bytes], rendezvous: Rendezvous, stop_signals: StopSignals
) -> None:
    """Until torchrun has ended. Kills workers that wait for those of a node where they failed."""
    limit = float("inf")
    while torchrun.poll() is None:
        rendezvous.check_others()
        if limit == float("inf") and any(code for code, _ in rendezvous.gathered().values()):
            limit = time.monotonic() + SECONDS_TO_END
        if time.monotonic() > limit:
            stop_signals.kill_workers()
        time.sleep(rendezvous.BETWEEN_POLLS)
