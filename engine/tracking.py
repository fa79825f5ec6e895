"""Curves: `metrics.jsonl` in the run's folder is the truth, a W&B run mirrors it when asked.

Nothing that W&B does or fails to do may stop a training: no network, no key, a service that dies.
What the mirror has missed it gets at the next start.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from engine.record import from_json, to_json, write_atomically

if TYPE_CHECKING:
    from wandb import Run

MODES = ("off", "offline", "online", "auto")
TIMEOUT = 15.0  # seconds that W&B may take to begin, and to upload the rest at the end
# W&B keeps rows in memory for up to 15 s, so a killed run loses them: only what is older than
# this counts as mirrored.
SETTLED_AFTER = 30.0

Row = Mapping[str, float | int]
Log = Callable[[str], None]


@dataclass(frozen=True)
class WandbSettings:
    """`mode` "auto" is online where a key is configured, offline elsewhere.

    The same `run_id` continues the same W&B run.
    """

    mode: str
    project: str
    entity: str | None
    run_id: str
    group: str
    name: str
    tags: tuple[str, ...]
    config: dict[str, Any]

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"W&B's mode must be one of {MODES}, not {self.mode!r}")


class Tracker:
    """Writes a run's rows; belongs to rank 0.

    A run that resumes at step s > 0 goes on after the rows of steps up to s, so that the file
    becomes that of an undisturbed run: log a step's rows before saving its checkpoint. A run that
    starts at 0 starts an empty file.
    """

    def __init__(self, folder: Path, wandb: WandbSettings, resume_step: int, log: Log) -> None:
        self._path = folder / "metrics.jsonl"
        folder.mkdir(parents=True, exist_ok=True)
        _cut_back(self._path, resume_step, log)
        self._file = self._path.open("ab")
        self._mirror: _Mirror | None = None
        if wandb.mode != "off":
            self._mirror = _Mirror(folder, wandb, resume_step, self._path, log)

    def log(self, row: Row) -> None:
        row["step"]  # a row without one could not be cut back
        line = json.dumps(to_json(row), allow_nan=False)
        with self._naming_the_file():
            self._file.write(line.encode() + b"\n")
            self._file.flush()
        if self._mirror is not None:
            self._mirror.log(row)

    def sync(self) -> None:
        """Makes the rows survive a power failure; call before a checkpoint is saved."""
        with self._naming_the_file():
            self._file.flush()
            os.fsync(self._file.fileno())

    @contextmanager
    def _naming_the_file(self) -> Iterator[None]:
        """An error of an open file (a full disk) does not say which file it is."""
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error

    def finish(self, exit_code: int = 0) -> None:
        if not self._file.closed:
            self.sync()
            self._file.close()
        if self._mirror is not None:
            self._mirror.finish(exit_code)
            self._mirror = None


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl, also while it is being written or after a kill.

    A torn last line is left out; anything else that is no row is an error.
    """
    lines, damaged = _intact_lines(path)
    if damaged:
        raise ValueError(f"{path}: line {len(lines) + 1} is not a row")
    return [row for _, row in lines]


def _intact_lines(path: Path) -> tuple[list[tuple[bytes, dict[str, Any]]], bool]:
    """Lines and their rows up to the first that is no row, and whether others follow that."""
    raw = path.read_bytes().split(b"\n")
    if raw[-1] == b"":
        raw.pop()
    found: list[tuple[bytes, dict[str, Any]]] = []
    for line in raw:
        try:
            row = from_json(json.loads(line))
        except ValueError:
            break
        if not isinstance(row, dict) or "step" not in row:
            break
        found.append((line, row))
    return found, len(found) < len(raw) - 1


def _cut_back(path: Path, resume_step: int, log: Log) -> None:
    if not path.exists():
        return
    lines, damaged = _intact_lines(path)
    if damaged:
        log(f"{path.name} is damaged in line {len(lines) + 1}: the rows from there on are dropped")
    kept = [line + b"\n" for line, row in lines if resume_step > 0 and row["step"] <= resume_step]
    data = b"".join(kept)
    if data != path.read_bytes():
        write_atomically(path, data)


class _Mirror:
    """A W&B run that gets the rows of metrics.jsonl, each once as far as can be known.

    `wandb/mirrored` holds the last step whose rows W&B has for certain. After a resume the rows up
    to it are not sent again, and those after it are, also those written while W&B was away.
    """

    def __init__(
        self, folder: Path, settings: WandbSettings, resume_step: int, rows: Path, log: Log
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._rows = rows
        self._log = log
        self._resume_step = resume_step
        self._note = folder / "wandb" / "mirrored"
        if resume_step <= 0:
            with suppress(OSError):
                self._note.unlink()
        self._mirrored = _read_step(self._note)
        self._sent: deque[tuple[float, int]] = deque()  # when a step was first sent, not settled
        self._run: Run | None = None
        self._may_reopen = True
        self._open(settings.mode)

    def log(self, row: Row) -> None:
        step = int(row["step"])
        is_replay = self._resume_step < step <= self._mirrored
        if self._run is None or is_replay:
            return
        try:
            self._send([row])
        except Exception as error:
            self._reopen(error)

    def finish(self, exit_code: int) -> None:
        if self._run is None:
            return
        try:
            self._run.finish(exit_code=exit_code)
            if self._sent:
                self._settle(self._sent[-1][1])
        except Exception as error:
            self._log(f"W&B: could not finish ({_reason(error)}); {self._how_to_upload('*run-*')}")
        self._run = None

    def _open(self, mode: str, failures: tuple[str, ...] = ()) -> None:
        """Tries the mode, then offline, then gives up; says in one line what came of it."""
        for attempt in dict.fromkeys((mode, "offline")):
            try:
                self._run = _init(self._settings, self._folder, attempt)
                self._send(row for row in read_rows(self._rows) if row["step"] > self._mirrored)
                break
            except _NoKey:
                failures += ("no key is configured",)
            except Exception as error:
                failures += (_reason(error),)
                self._drop()
        why = "; ".join(dict.fromkeys(failures))
        if self._run is None:
            self._log(f"W&B: going on without it ({why}); {self._rows.name} has every row")
        elif why:
            self._log(f"W&B: offline ({why}); {self._how_to_upload('offline-run-*')}")

    def _reopen(self, error: Exception) -> None:
        """After a failure in mid-run: offline, once."""
        self._drop()
        if self._may_reopen:
            self._may_reopen = False
            self._open("offline", (_reason(error),))
        else:
            self._log(f"W&B: going on without it ({_reason(error)})")

    def _drop(self) -> None:
        """Forgets the run and ends W&B's service: otherwise the run's id counts as in use."""
        self._run = None
        self._sent.clear()
        with suppress(Exception):
            import wandb

            wandb.teardown()

    def _send(self, rows: Iterable[Row]) -> None:
        assert self._run is not None
        for row in rows:
            self._run.log(dict(row))
            now, step = monotonic(), int(row["step"])
            if not self._sent or step > self._sent[-1][1]:
                self._sent.append((now, step))
            settled = -1
            # Never the newest: more rows of its step may come.
            while len(self._sent) > 1 and self._sent[0][0] < now - SETTLED_AFTER:
                settled = self._sent.popleft()[1]
            if settled > self._mirrored:
                self._settle(settled)

    def _settle(self, step: int) -> None:
        self._mirrored = max(step, self._mirrored)
        write_atomically(self._note, f"{self._mirrored}\n".encode(), durable=False)

    def _how_to_upload(self, runs: str) -> str:
        return f"upload with `wandb sync {self._folder / 'wandb' / runs}`"


class _NoKey(Exception):
    """No key is configured, so that online is not possible."""


def _init(settings: WandbSettings, folder: Path, mode: str) -> Run:
    import wandb  # not at the top: it takes a second, and nobody needs it where the mode is off

    wandb.setup(wandb.Settings(silent=True))
    # Asked first, because on a terminal W&B would ask for a key and wait.
    if mode != "offline" and not wandb.login(prompt=False, verify=False):
        raise _NoKey
    run = wandb.init(
        mode="offline" if mode == "offline" else "online",
        project=settings.project,
        entity=settings.entity,
        id=settings.run_id,
        resume="allow",
        group=settings.group,
        name=settings.name,
        tags=settings.tags,
        config=settings.config,
        dir=folder,
        reinit="create_new",
        settings=wandb.Settings(
            silent=True,
            console="off",
            init_timeout=TIMEOUT,
            finish_timeout=TIMEOUT,
            finish_timeout_raises=True,
        ),
    )
    run.define_metric("*", step_metric="step")
    return run


def _reason(error: Exception) -> str:
    first_line = (str(error).strip() or "no message").splitlines()[0]
    return f"{type(error).__name__}: {first_line}"


def _read_step(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return -1
