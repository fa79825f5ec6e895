"""Where a fault is tried: a folder, launchers and other commands in it, and what they leave."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from engine.records import Status, read_status
from launch.worker import be_killed_with_parent
from tests.faults.verdict import Reference

ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).with_name("shim.c")
EXPERIMENT = "experiment=imagenet/novograd_100ep"
STEPS = 40
# Rows, checkpoints and evaluations come often, so that a random moment is often one of them.
RUN = (
    "scale=smoke",
    "hardware=cpu",
    "hardware.threads=1",
    f"budget='{STEPS} steps'",
    "checkpoint.every='5 steps'",
    "evaluation.every='20 steps'",
    "tracking.log_every='5 steps'",
)
ENDLESS = "budget='100000 steps'"
EXPECTED_S = 15.0  # of an undisturbed run
MARK = "NOVOGRAD_FAULT"  # in the environment of all that a site starts


class NotSurvived(Exception):
    """What a fault has broken."""


class Skipped(Exception):
    """Why a fault can't be tried on this machine."""


class TimeUp(BaseException):
    """An attempt has taken too long."""


def expect(condition: object, problem: str) -> None:
    """What a survivor does."""
    if not condition:
        raise NotSurvived(problem)


@dataclass
class Attempt:
    """One try of a fault; an empty problem means that it was survived."""

    note: str
    problem: str = ""


class Workshop:
    """What all sites share, also in other processes: data, undisturbed runs, the shim."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._references: dict[tuple[str, ...], Reference] = {}

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def patience(self) -> float:
        """How much slower than expected this machine is now; time limits are multiplied with it."""
        seconds = [float(path.read_text()) for path in self.folder.glob("seconds-*")]
        return max(1.0, min(seconds, default=EXPECTED_S) / EXPECTED_S)

    def once(self, name: str) -> FileLock:
        """Held by the process that makes what all share."""
        return FileLock(self.folder / f"{name}.lock")

    def log(self, site: str, attempt: Attempt) -> None:
        """For who watches all sites."""
        with (self.folder / "attempts.jsonl").open("a") as file:
            file.write(json.dumps([site, attempt.note, attempt.problem]) + "\n")

    def shim(self) -> Path:
        """The compiled shim.c; Skipped without a compiler."""
        library = self.folder / "shim.so"
        compiler = shutil.which("cc") or shutil.which("gcc")
        with self.once("shim"):
            if library.exists():
                return library
            if compiler is None:
                raise Skipped("no C compiler")
            build = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"]
            done = subprocess.run(build, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise Skipped(f"the shim can't be compiled: {done.stderr.strip()[:200]}")
        return library

    def reference(self, arguments: tuple[str, ...], make: Callable[[Path], None]) -> Reference:
        """An undisturbed run with these overrides; `make` runs it, into a folder."""
        if arguments not in self._references:
            mark = hashlib.sha256(json.dumps(arguments).encode()).hexdigest()[:8]
            folder, seconds = self.folder / f"reference-{mark}", self.folder / f"seconds-{mark}"
            with self.once(f"reference-{mark}"):
                if not seconds.exists():
                    began = time.monotonic()
                    make(folder)
                    seconds.write_text(str(time.monotonic() - began))
            (run,) = (path.parent for path in folder.glob("*/*/run.yaml"))
            self._references[arguments] = Reference(run, float(seconds.read_text()))
        return self._references[arguments]


class Launched:
    """A command in a process of its own, its output in a file."""

    def __init__(
        self, process: subprocess.Popen[bytes], output: Path, patience: float = 1.0
    ) -> None:
        self.process, self._output, self._patience = process, output, patience
        self.pid = process.pid

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace") if self._output.exists() else ""

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def send(self, number: int) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(number)

    def wait(self, limit: float = 120.0) -> int:
        limit = round(limit * self._patience)
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired:
            raise NotSurvived(f"still running after {limit:g} s: {self.last_lines()}") from None

    def until(self, condition: Callable[[], object], limit: float = 90.0) -> bool:
        """Waits for a condition; False if the command ends before."""
        limit = round(limit * self._patience)
        end = time.monotonic() + limit
        while time.monotonic() < end:
            if condition():
                return True
            if not self.is_running:
                return bool(condition())
            time.sleep(0.01)
        raise NotSurvived(f"nothing came of it in {limit:g} s: {self.last_lines()}")

    def last_lines(self, number: int = 4) -> str:
        return " | ".join(line.strip() for line in self.output.splitlines()[-number:])


class Site:
    """The place of one fault; everything that is started here carries its mark."""

    def __init__(self, name: str, workshop: Workshop, seed: int, limit_s: float) -> None:
        self.name, self.workshop, self.limit_s = name, workshop, limit_s
        self.random = random.Random(f"{seed}/{name}")
        self.folder = workshop.folder / name
        self.folder.mkdir(parents=True)
        self.attempts: list[Attempt] = []
        self._mark = uuid.uuid4().hex
        self._started = 0
        self._undo: list[Callable[[], object]] = []

    # --- attempts ---------------------------------------------------------------------------------

    @contextmanager
    def attempt(self, note: str, *, goes_on: bool = False) -> Iterator[None]:
        """One try; what is wrong after it is kept.

        Processes that it has left are a problem, too, unless the command goes on after it.
        """
        attempt = Attempt(note)

        def ring(*_: object) -> None:
            raise TimeUp

        limit = round(self.limit_s * self.workshop.patience)
        before = signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, limit)
        try:
            yield
            if not goes_on:
                self.expect_no_process()
        except NotSurvived as problem:
            attempt.problem = str(problem)
        except TimeUp:
            attempt.problem = f"not over after {limit} s"
        except (OSError, ValueError, subprocess.SubprocessError) as problem:
            attempt.problem = f"{type(problem).__name__}: {problem}"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        if not goes_on:
            self.kill_all()
        self.attempts.append(attempt)
        self.workshop.log(self.name, attempt)

    def at_the_end(self, undo: Callable[[], object]) -> None:
        """What the site must undo, such as a mount; the last first."""
        self._undo.append(undo)

    def close(self) -> None:
        """Ends all that was started and undoes all that was set up."""
        self.kill_all()
        while self._undo:
            with suppress(OSError, subprocess.SubprocessError):
                self._undo.pop()()
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- processes --------------------------------------------------------------------------------

    def processes(self) -> list[int]:
        """All living processes that descend from this site's commands."""
        mark, found = f"{MARK}={self._mark}".encode(), []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            with suppress(OSError):
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z" and mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return found

    def expect_no_process(self, limit: float = 5.0) -> None:
        """Nobody outlives a command, at most for some seconds."""
        end = time.monotonic() + limit * self.workshop.patience
        while left := self.processes():
            if time.monotonic() > end:
                raise NotSurvived(f"processes live on: {'; '.join(map(command_line, left))}")
            time.sleep(0.05)

    def kill_all(self) -> None:
        """The processes of this site only."""
        for _ in range(100):
            left = self.processes()
            if not left:
                return
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        cwd: Path = ROOT,
        stdin: int = subprocess.DEVNULL,
        stdout: int | None = None,
        stderr: int | None = None,
    ) -> Launched:
        """A command in a process group of its own, as a shell would start it.

        Its output goes to a file unless descriptors are given.
        """
        self._started += 1
        file = self.folder / f"output-{self._started}.txt"
        with file.open("wb") as opened:
            process = subprocess.Popen(
                [*command],
                cwd=cwd,
                env=self.environment(environment),
                stdin=stdin,
                stdout=opened if stdout is None else stdout,
                stderr=opened if stderr is None else stderr,
                process_group=0,
                preexec_fn=_as_from_a_shell,
            )
        return Launched(process, file, self.workshop.patience)

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        cache = {"XDG_CACHE_HOME": str(self.workshop.folder / "cache"), "OMP_NUM_THREADS": "1"}
        return {**os.environ, **cache, **(more or {}), MARK: self._mark}

    # --- runs -------------------------------------------------------------------------------------

    def arguments(self, *arguments: str, outputs: Path | None = None) -> list[str]:
        paths = [f"paths.outputs={outputs or self.outputs}", f"paths.data={self.workshop.data}"]
        own = [] if any(a.startswith("experiment=") for a in arguments) else [EXPERIMENT]
        return [*own, *RUN, *paths, *arguments]

    def command(self, *arguments: str, outputs: Path | None = None) -> list[str]:
        given = self.arguments(*arguments, outputs=outputs)
        return [sys.executable, "-m", "scripts.launch", *given]

    def launch(self, *arguments: str, **options: object) -> Launched:
        return self.start(self.command(*arguments), **options)  # type: ignore[arg-type]

    def finish(self, *arguments: str, **options: object) -> Launched:
        """Runs or resumes to the end, which must come."""
        launched = self.launch(*arguments, **options)
        code = launched.wait()
        expect(code == 0, f"exit status {code} instead of 0: {launched.last_lines()}")
        return launched

    @property
    def outputs(self) -> Path:
        return self.folder / "outputs"

    @property
    def run(self) -> Path | None:
        """The folder of the only run here."""
        found = [path.parent for path in self.outputs.glob("*/*/run.yaml")]
        return found[0] if found else None

    def status(self) -> Status:
        return Status() if self.run is None else read_status(self.run)

    def workers(self) -> list[int]:
        """Process ids of the workers, in the order of ranks."""
        found = []
        for path in sorted(self.outputs.glob("*/*/logs/rank-*.pid")):
            with suppress(OSError, ValueError):
                pid = int(path.read_text())
                if Path(f"/proc/{pid}").exists():
                    found.append(pid)
        return found

    def are_gone(self, pids: Iterable[int]) -> bool:
        """Whether none of these workers is left."""
        return not set(pids) & set(self.workers())

    def are_new(self, killed: Iterable[int], world: int = 1) -> bool:
        """Whether all workers are there, and none of these among them."""
        return len(self.workers()) == world and self.are_gone(killed)

    def has_more_rows_than(self, number: int) -> bool:
        return self.rows() > number

    def rows(self) -> int:
        """Lines of metrics.jsonl."""
        found = 0
        for path in self.outputs.glob("*/*/metrics.jsonl"):
            with suppress(OSError):
                found += path.read_bytes().count(b"\n")
        return found

    def step(self) -> int:
        """That of the newest checkpoint."""
        found = self.outputs.glob("*/*/checkpoints/step-*.json")
        return max((int(path.stem[5:]) for path in found), default=0)

    def reference(self, *arguments: str) -> Reference:
        """An undisturbed run, made once for all faults."""

        def make(outputs: Path) -> None:
            launched = self.start(self.command(*arguments, outputs=outputs))
            if launched.wait(300) != 0:
                raise RuntimeError(f"an undisturbed run failed: {launched.output}")

        return self.workshop.reference(arguments, make)

    def expect_as(self, reference: Reference, *, rows: bool = True) -> None:
        """The run here ended as the undisturbed one."""
        expect(self.run is not None, "there is no run")
        assert self.run is not None
        problems = reference.differences(self.run, rows=rows)
        expect(not problems, "; ".join(problems))

    def expect_exit(self, launched: Launched, *codes: int, limit: float = 120.0) -> int:
        code = launched.wait(limit)
        wanted = " or ".join(map(str, codes))
        expect(code in codes, f"exit status {code} instead of {wanted}: {launched.last_lines()}")
        _, found, after = launched.output.partition("Traceback")
        lines = [line.strip() for line in after.splitlines() if line.strip()][-40:]
        expect(not found, f"a traceback: {' | '.join(lines)[:600]}")
        return code


def _as_from_a_shell() -> None:
    """Whoever started the attacks may ignore signals, as nohup does, and children inherit that."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)
    be_killed_with_parent()


def command_line(pid: int) -> str:
    with suppress(OSError):
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return f"{pid} {b' '.join(arguments).decode(errors='replace')[:120]}"
    return str(pid)
