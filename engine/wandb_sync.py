"""Offline W&B runs, uploaded segment by segment.

They go up oldest first, each by a `wandb sync` of its own: one command for several skips those that
come after a segment with a torn end, which is what a killed run leaves. What is uploaded has W&B's
marker `*.wandb.synced` and is not uploaded again.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from engine.lock import RunFolderBusy, hold_run_folder
from engine.wandb_runs import find_segments, require_login

SYNC = (sys.executable, "-m", "wandb", "sync")
TORN = "ends with an incomplete record"  # as `wandb sync` reports a torn end

Command = Sequence[str]


def upload_all(
    outputs: Path,
    timeout: float,
    *,
    dry_run: bool = False,
    command: Command = SYNC,
    check_login: Callable[[], None] = lambda: require_login(verify=True),
) -> int:
    """Uploads what is not uploaded yet; 1 if some of it failed. WandbProblem without a login.

    `command` gets a segment's folder as its last argument.
    """
    segments = find_segments(outputs)
    to_do = [segment for segment in segments if not is_uploaded(segment)]
    print(f"{len(segments)} segments, {len(segments) - len(to_do)} uploaded, {len(to_do)} to do")
    if dry_run:
        for segment in to_do:
            print(f"would upload {segment}" if not is_running(segment) else f"running {segment}")
        return 0
    if not to_do:
        return 0
    check_login()
    failed = 0
    for segment in to_do:
        if is_running(segment):
            outcome = "skipped: its run is going on"
        else:
            outcome = upload(segment, command, timeout)
        failed += outcome.startswith("failed")
        print(f"{segment}: {outcome}", flush=True)
    return 1 if failed else 0


def is_uploaded(segment: Path) -> bool:
    """Whether every file of a segment has W&B's marker."""
    return all(_marker(path).exists() for path in segment.glob("*.wandb"))


def is_running(segment: Path) -> bool:
    """Whether the run that writes the segment is at work: its process holds the run's folder."""
    folder = segment.parent.parent
    if not (folder / ".lock").exists():
        return False
    try:
        with hold_run_folder(folder):
            return False
    except RunFolderBusy:
        return True


def upload(segment: Path, command: Command, timeout: float) -> str:
    """One `wandb sync`; its result, a text that begins with "uploaded" or "failed".

    Its exit status is 0 also for what it could not do; the marker tells. Of a segment with a torn
    end W&B has all there is, so it is marked here: a second upload would only repeat its rows.
    """
    try:
        done = subprocess.run(
            [*command, str(segment)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"failed: no end after {timeout:g} s"
    except OSError as problem:
        return f"failed: {problem}"
    problems = [line for line in done.stdout.splitlines() if "ERROR" in line or "Error" in line]
    if done.returncode == 0 and is_uploaded(segment):
        return "uploaded"
    if done.returncode == 0 and problems and all(TORN in line for line in problems):
        with suppress(OSError):
            for path in segment.glob("*.wandb"):
                _marker(path).touch()
        return "uploaded up to its torn end"
    said = (problems or done.stdout.strip().splitlines() or ["no message"])[-1]
    return f"failed: {said.removeprefix('wandb: ')} (exit status {done.returncode})"


def _marker(path: Path) -> Path:
    return path.with_name(f"{path.name}.synced")
