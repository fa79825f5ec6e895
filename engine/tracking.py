"""Curves: `metrics.jsonl` in the run's folder is the truth; W&B and TensorBoard mirror it.

Nothing that a mirror does or fails to do may stop a training run: no network, no key, a service
that dies. What the W&B mirror missed it gets at the next start.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from engine.rows import ROWS_FILE, RowArchive, encode_row, keep_rows_until, restore_rows

Row = Mapping[str, float | int]
Log = Callable[[str], None]


@dataclass(frozen=True)
class RunInfo:
    """What a mirror is told about a run, besides its rows."""

    run_id: str
    group: str
    job_type: str = "train"
    tags: tuple[str, ...] = ()
    notes: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    headline: str = ""  # the metric whose best value counts
    higher_is_better: bool = True


@dataclass(frozen=True)
class Ending:
    """How this start of a run ended: "finished", "preempted", "diverged" or "failed"."""

    kind: str
    message: str = ""
    summary: dict[str, Any] = field(default_factory=dict)
    artifacts: tuple[Artifact, ...] = ()
    tables: tuple[Table, ...] = ()


@dataclass(frozen=True)
class Artifact:
    """Files to keep beside the curves, such as the best checkpoint."""

    name: str
    kind: str
    paths: tuple[Path, ...]


@dataclass(frozen=True)
class Table:
    """A table to show beside the curves, such as predictions."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True)
class RunAbout:
    """What the launcher knows of a run and the engine does not: the paper's row, and the record."""

    fingerprint: str = ""
    notes: str = ""  # the header of the experiment's file
    paper: dict[str, Any] = field(default_factory=dict)  # table, row, metrics
    compare_with_paper: Callable[[Mapping[str, float]], dict[str, Any]] = lambda final: {}
    keep_record: Callable[[Any], None] = lambda result: None  # before the mirrors are closed


class Mirror(Protocol):
    """Gets every row after it was written to metrics.jsonl; never raises."""

    def log(self, row: Row) -> None: ...

    def finish(self, ending: Ending) -> None: ...


class Tracker:
    """Writes a run's rows; belongs to rank 0.

    A run that resumes at step s > 0 keeps the rows of steps up to s, so that the file becomes that
    of an undisturbed run: log a step's rows before saving its checkpoint. A run that starts at 0
    starts an empty file. A checkpoint holds the rows before it (`archive`): with these as
    `saved_rows` the file is restored, whatever became of it. `open_mirrors` is called once the file
    is ready.
    """

    def __init__(
        self,
        folder: Path,
        resume_step: int,
        log: Log,
        open_mirrors: Callable[[], list[Mirror]] = list,
        saved_rows: bytes | None = None,
    ) -> None:
        self._path, self._log = folder / ROWS_FILE, log
        folder.mkdir(parents=True, exist_ok=True)
        if saved_rows is None:
            self.archive = RowArchive(keep_rows_until(self._path, resume_step, log))
        else:
            self.archive = RowArchive.unpack(saved_rows)
            restore_rows(self._path, self.archive.rows(), log)
        self._file = self._path.open("ab")
        self._mirrors = open_mirrors()

    def log(self, row: Row) -> None:
        line = encode_row(row)
        self.archive.add(line)
        with self._naming_the_file():
            self._file.write(line)
            self._file.flush()
        for mirror in self._mirrors:
            mirror.log(row)

    def sync(self) -> None:
        """Makes the rows survive a power failure; call before a checkpoint is saved."""
        with self._naming_the_file():
            self._file.flush()
            os.fsync(self._file.fileno())
            if not self._is_in_place():
                self._file.close()
                restore_rows(self._path, self.archive.rows(), self._log)
                self._file = self._path.open("ab")

    def _is_in_place(self) -> bool:
        """Whether the file that is written has its name still, and the size that it must have."""
        ours = os.fstat(self._file.fileno())
        with suppress(OSError):
            there = self._path.stat()
            return there.st_ino == ours.st_ino and there.st_size == self.archive.size
        return False

    @contextmanager
    def _naming_the_file(self) -> Iterator[None]:
        """An error of an open file (a full disk) does not name the file."""
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error

    def finish(self, ending: Ending) -> None:
        """Closes the file and tells the mirrors how the run ended; a second call does nothing."""
        try:
            if not self._file.closed:
                self.sync()
                self._file.close()
        finally:
            mirrors, self._mirrors = self._mirrors, []
            for mirror in mirrors:
                mirror.finish(ending)


def make_mirrors(folder: Path, tracking: Any, info: RunInfo, log: Log) -> list[Mirror]:
    """What a run's `tracking:` asks for. W&B and TensorBoard are imported only here, when used."""
    mirrors: list[Mirror] = []
    if tracking.wandb != "off":
        from engine.wandb_mirror import WandbMirror, WandbTarget

        target = WandbTarget(tracking.wandb, tracking.project, tracking.entity)
        mirrors.append(WandbMirror(folder, target, info, log))
    if tracking.tensorboard:
        from engine.tensorboard_mirror import TensorBoardMirror

        mirrors.append(TensorBoardMirror(folder, info, log))
    return mirrors
