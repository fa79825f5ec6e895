"""`make bench-commands`: how long the suite's own commands take to answer.

Each is started as a user starts it, in a process of its own. They are compared with a process that
imports torch and ends: a command that needs no torch should be done before that one.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from analysis.folders import ROOT
from analysis.unchanged import STAMP
from benchmarks.contest import BenchOptions, Findings, compete

ROUNDS = 3
MINUTE = 60.0
STALE = 1  # the exit status of a report that is
SMOKE = ("experiment=imagenet/novograd_100ep", "scale=smoke", "hardware=cpu")
TORCH = (sys.executable, "-c", "import torch")


def measure(options: BenchOptions) -> Findings:
    """Commands per minute."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [f"paths.data={folder}/data"]
        smoke = partial(train, [*SMOKE, *paths], Path(folder))
        smoke()  # makes its data
        commands = {
            "compare_help": partial(call, [*script("compare"), "--help"]),
            "report_check": partial(check_report, is_first=True),
            "report_check_again": partial(check_report, is_first=False),
            "plan": partial(call, [*script("plan"), *SMOKE, *paths]),
            "smoke": smoke,
        }
        import_torch = partial(call, TORCH)
        return Findings(compete(commands, import_torch, MINUTE, options.rounds(ROUNDS), warm=1))


def script(name: str) -> list[str]:
    """The beginning of its command line."""
    return [sys.executable, "-m", f"scripts.{name}"]


def check_report(is_first: bool) -> None:
    """As after a change, or without one."""
    if is_first:
        (ROOT / STAMP).unlink(missing_ok=True)
    call([*script("report"), "--check"], (0, STALE))


def train(overrides: Sequence[str], folder: Path) -> None:
    """A run from its command to its record, in a folder without one."""
    with tempfile.TemporaryDirectory(dir=folder) as outputs:
        call([*script("launch"), *overrides, f"paths.outputs={outputs}"])


def call(command: Sequence[str], allowed: Sequence[int] = (0,)) -> None:
    """Says nothing; RuntimeError for any other exit status."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode not in allowed or "Traceback" in done.stderr:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
