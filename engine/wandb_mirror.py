"""A W&B run that mirrors metrics.jsonl: each row once, also after a kill and a resume.

A row's place in metrics.jsonl is its step in W&B (`_step`), so that both sides can name it. When a
run starts again, rows that W&B has are not sent again, and all others are, also those written while
W&B was away. What W&B has is known: online from the server, which tells where a resumed run stands;
offline from the files in the run's folder. `wandb/mirrored-rows` there holds how many rows W&B had
for certain when a start ended, or while it was online: for a next start that is offline.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from engine.config import WANDB_MODES
from engine.records import wandb_id
from engine.rows import ROWS_FILE, read_rows
from engine.tracking import Artifact, Ending, Log, Row, RunInfo, Table
from engine.wandb_runs import WandbProblem, find_segments, offline_places
from tasks.files import write_atomically

if TYPE_CHECKING:
    from wandb import Run

TIMEOUT = 15.0  # seconds that W&B may take to begin, and to upload the rest at the end
# W&B keeps rows in memory for up to 15 s, so a killed run loses them: only what is older than
# this counts as mirrored.
SETTLED_AFTER = 30.0
# W&B shows a run with another exit code than 0 as failed, or as preempted after mark_preempting.
EXIT_CODES = {"finished": 0, "failed": 1, "diverged": 5, "preempted": 75}


@dataclass(frozen=True)
class WandbTarget:
    """`mode` "auto" is online where a key is configured, offline elsewhere."""

    mode: str
    project: str
    entity: str | None

    def __post_init__(self) -> None:
        if self.mode not in WANDB_MODES:
            raise ValueError(f"W&B's mode must be one of {WANDB_MODES}, not {self.mode!r}")


class WandbMirror:
    """Opens (or resumes) the W&B run whose id is the run's; falls back to offline, then off."""

    def __init__(self, folder: Path, target: WandbTarget, info: RunInfo, log: Log) -> None:
        self._folder, self._target, self._info = folder, target, info
        self._rows = folder / ROWS_FILE
        self._log = log
        self._note = folder / "wandb" / "mirrored-rows"
        self._mirrored = _read_number(self._note)
        self._sent: deque[tuple[float, int]] = deque()  # when rows were sent that are not settled
        self._place = 0  # of the next row in metrics.jsonl
        self._there: set[int] = set()  # places of rows that W&B has, besides the first `_mirrored`
        self._run: Run | None = None
        self._online = False
        self._where = ""
        self._may_reopen = True
        self._open(target.mode)

    def log(self, row: Row) -> None:
        """Sends a row, unless W&B has it from before a resume."""
        place, self._place = self._place, self._place + 1
        if self._run is None:
            return
        try:
            self._send(place, row)
        except Exception as error:
            self._reopen(error)

    def finish(self, ending: Ending) -> None:
        """Ends the W&B run with the true outcome, its summary and its artifacts."""
        if self._run is None:
            return
        with self._logging_failures("the outcome"):
            self._run.summary.update({"outcome": ending.kind, **ending.summary})
            if ending.kind == "preempted":
                self._run.mark_preempting()
            if ending.kind == "diverged":
                self._run.alert(f"{self._info.run_id} diverged", ending.message, level="ERROR")
        for artifact in ending.artifacts:
            with self._logging_failures(artifact.name):
                self._upload(artifact)
        for table in ending.tables:
            with self._logging_failures(table.name):
                self._show(table)
        try:
            self._run.finish(exit_code=EXIT_CODES.get(ending.kind, 1))
            self._settle(self._place)
            self._log(f"W&B: {self._where}")
        except Exception as error:
            self._log(f"W&B: could not finish ({_reason(error)}); {self._how_to_upload('*run-*')}")
            self._drop()
        self._run = None

    @contextmanager
    def _logging_failures(self, what: str) -> Iterator[None]:
        """Whatever W&B does not take, it must still learn how the run ended."""
        try:
            yield
        except Exception as error:
            self._log(f"W&B: did not take {what} ({_reason(error)})")

    def _upload(self, artifact: Artifact) -> None:
        import wandb

        assert self._run is not None
        kept = wandb.Artifact(artifact.name, type=artifact.kind)
        there = [path for path in artifact.paths if path.exists()]
        for path in there:
            kept.add_file(str(path))
        if there:  # a run that diverged at once has no checkpoint
            self._run.log_artifact(kept)

    def _show(self, table: Table) -> None:
        import wandb

        assert self._run is not None
        rows = [list(row) for row in table.rows]
        shown = wandb.Table(columns=list(table.columns), data=rows, allow_mixed_types=True)
        self._run.summary[table.name] = shown  # not as a row: those are metrics.jsonl's

    def _open(self, mode: str, failures: tuple[str, ...] = ()) -> None:
        """Tries the mode, then offline, then gives up; logs one line with the result."""
        offline = find_segments(self._folder / "wandb")
        for attempt in dict.fromkeys((mode, "offline")):
            try:
                self._run = _init(self._target, self._info, self._folder, attempt)
                # An agent of a W&B sweep gives its runs other ids, whose rows are elsewhere.
                same = [path for path in offline if path.name.endswith(f"-{self._run.id}")]
                self._there = _offline_places(same)
                self._online = attempt != "offline"
                if self._online:  # the server knows better than the note
                    self._mirrored = int(self._run.starting_step)
                rows = read_rows(self._rows) if self._rows.exists() else []
                for place, row in enumerate(rows):
                    self._send(place, row)
                self._place = len(rows)
                break
            except _NoKey:
                failures += ("no key is configured",)
            except Exception as error:
                failures += (_reason(error),)
                self._drop()
        why = "; ".join(dict.fromkeys(failures))
        if self._run is None:
            local = f"; {self._rows.name} has every row" if self._rows.exists() else ""
            self._log(f"W&B: continuing without it ({why}){local}")
            return
        url = getattr(self._run, "url", None)
        upload = f"offline, {self._how_to_upload('offline-run-*')}"
        self._where = str(url) if url else upload
        self._log(f"W&B: {self._where}{f' ({why})' if why else ''}")

    def _reopen(self, error: Exception) -> None:
        """After a failure during the run: offline, once."""
        self._drop()
        if self._may_reopen:
            self._may_reopen = False
            self._open("offline", (_reason(error),))
        else:
            self._log(f"W&B: continuing without it ({_reason(error)})")

    def _drop(self) -> None:
        """Forgets the run and ends W&B's service: otherwise the run's id counts as in use."""
        self._run = None
        self._sent.clear()
        with suppress(Exception):
            import wandb

            wandb.teardown()

    def _send(self, place: int, row: Row) -> None:
        """Unless W&B has the row."""
        assert self._run is not None
        if place < self._mirrored or place in self._there:
            return
        self._run.log(dict(row), step=place, commit=True)
        if not self._online:
            return
        now, settled = monotonic(), -1
        self._sent.append((now, place))
        while self._sent[0][0] < now - SETTLED_AFTER:
            settled = self._sent.popleft()[1]
        if settled >= 0:
            self._settle(settled + 1)

    def _settle(self, rows: int) -> None:
        self._mirrored = max(rows, self._mirrored)
        write_atomically(self._note, f"{self._mirrored}\n".encode(), durable=False)

    def _how_to_upload(self, runs: str) -> str:
        return f"upload with `wandb sync {self._folder / 'wandb' / runs}`"


class _NoKey(Exception):
    """No key is configured, so that online is not possible."""


def _init(target: WandbTarget, info: RunInfo, folder: Path, mode: str) -> Run:
    import wandb

    wandb.setup(wandb.Settings(silent=True))
    # Asked first, because on a terminal W&B would ask for a key and wait.
    if mode != "offline" and not wandb.login(prompt=False, verify=False):
        raise _NoKey
    run = wandb.init(
        mode="offline" if mode == "offline" else "online",
        project=target.project,
        entity=target.entity,
        id=wandb_id(info.run_id),
        resume="allow",
        group=info.group,
        job_type=info.job_type,
        name=info.run_id,
        tags=info.tags,
        notes=info.notes or None,
        config=info.config,
        dir=folder,
        reinit="create_new",
        settings=wandb.Settings(
            silent=True,
            console="off",
            save_code=True,  # the diff where the checkout is not clean
            init_timeout=TIMEOUT,
            finish_timeout=TIMEOUT,
            finish_timeout_raises=True,
        ),
    )
    run.define_metric("*", step_metric="step")
    if info.headline:
        best = "max" if info.higher_is_better else "min"
        run.define_metric(info.headline, step_metric="step", summary=f"{best},last")
    return run


def _reason(error: Exception) -> str:
    first_line = (str(error).strip() or "no message").splitlines()[0]
    return f"{type(error).__name__}: {first_line}"


def _read_number(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def _offline_places(segments: Sequence[Path]) -> set[int]:
    """Places of the rows in a run's offline files; none where these can't be read."""
    try:
        return offline_places(segments)
    except (WandbProblem, OSError):
        return set()
