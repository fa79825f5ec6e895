"""`python -m scripts.wandb_sync [--outputs outputs] [--dry-run]`: uploads offline W&B runs.

Every start of a run leaves a segment, `wandb/offline-run-<time>-<id>` in the run's folder. They go
up oldest first, each by a `wandb sync` of its own: one command for several skips those that come
after a segment with a torn end, which is what a killed run leaves. What is uploaded has W&B's
marker `*.wandb.synced` and is not uploaded again.

Exit status: 0 all uploaded · 1 some failed · 2 bad arguments, no login, or no way to W&B.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from engine.lock import RunFolderBusy, hold_run_folder
from engine.wandb_runs import WandbProblem, find_segments, require_login

SYNC = (sys.executable, "-m", "wandb", "sync")
TORN = "ends with an incomplete record"  # as `wandb sync` reports a torn end

Command = Sequence[str]


def main(
    arguments: Sequence[str] | None = None,
    command: Command = SYNC,
    check_login: Callable[[], None] = lambda: require_login(verify=True),
) -> int:
    """Uploads what is not uploaded yet; `command` gets a segment's folder as its last argument."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    segments = find_segments(options.outputs)
    to_do = [segment for segment in segments if not is_uploaded(segment)]
    print(f"{len(segments)} segments, {len(segments) - len(to_do)} uploaded, {len(to_do)} to do")
    if options.dry_run:
        for segment in to_do:
            print(f"would upload {segment}" if not is_running(segment) else f"running {segment}")
        return 0
    if not to_do:
        return 0
    try:
        check_login()
    except WandbProblem as problem:
        print(problem, file=sys.stderr)
        return 2
    failed = 0
    for segment in to_do:
        if is_running(segment):
            outcome = "skipped: its run is going on"
        else:
            outcome = upload(segment, command, options.timeout)
        failed += outcome.startswith("failed")
        print(f"{segment}: {outcome}", flush=True)
    return 1 if failed else 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line; argparse ends with status 2 and one message where it is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.wandb_sync", description="Uploads offline W&B runs."
    )
    parser.add_argument("--outputs", type=Path, default=Path("outputs"))
    parser.add_argument("--dry-run", action="store_true", help="only list what would be uploaded")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for one segment")
    options = parser.parse_args(arguments)
    if not options.outputs.is_dir():
        parser.error(f"--outputs {options.outputs} is not a folder")
    if not options.timeout > 0:
        parser.error(f"--timeout must be more than 0 seconds, not {options.timeout:g}")
    return options


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


if __name__ == "__main__":
    sys.exit(main())
