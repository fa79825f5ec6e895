"""The launcher as a process: start, watch, disturb, compare."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from engine.rows import read_rows
from launch.worker import be_killed_with_parent
from scripts import launch as launcher

ROOT = Path(__file__).parents[2]
ENDLESS = "budget='1000 epochs'"  # for a run that must not end before it is disturbed
started: list[subprocess.Popen[str]] = []  # a fixture ends those that a test has left


def command(folder: Path, *overrides: str) -> list[str]:
    # The data are made once for all tests.
    paths = [f"paths.outputs={folder / 'outputs'}", f"paths.data={folder.parent / 'data'}"]
    quick = ["scale=smoke", "hardware=cpu", "checkpoint.every='7 steps'", "hardware.threads=1"]
    base = [sys.executable, "-m", "scripts.launch", "experiment=imagenet/novograd_100ep"]
    return [*base, *quick, *paths, *overrides]


def launch(folder: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    """The launcher in a fork, without the seconds that its imports take; its workers are real."""
    with TemporaryFile("w+") as out, TemporaryFile("w+") as err:
        child = os.fork()
        if not child:
            status = 1
            try:
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
                with redirect_stdout(out), redirect_stderr(err):
                    status = launcher.main(command(folder, *overrides)[3:])
            finally:
                out.flush()
                err.flush()
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess([], status, out.read(), err.read())


def start(folder: Path, *overrides: str) -> subprocess.Popen[str]:
    """In a process group of its own, as a shell would."""
    process = subprocess.Popen(
        command(folder, *overrides),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
        preexec_fn=be_killed_with_parent,
    )
    started.append(process)
    return process


def run_folder(folder: Path) -> Path:
    (found,) = (folder / "outputs" / "imagenet").iterdir()
    return found


def status(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run_folder(folder) / "status.json").read_text())
    return found


def wait_for_rows(folder: Path, rows: int, process: subprocess.Popen[str]) -> None:
    """As long as it takes: pytest has a limit for what hangs."""
    while True:
        files = list(folder.glob("outputs/imagenet/*/metrics.jsonl"))
        if files and len(read_rows(files[0])) >= rows:
            return
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)


def worker_pid(folder: Path, rank: int) -> int:
    return int((run_folder(folder) / "logs" / f"rank-{rank}.pid").read_text())


def worker_pids(folder: Path) -> list[int]:
    return [int(p.read_text()) for p in folder.glob("outputs/imagenet/*/logs/rank-*.pid")]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for_end(pids: list[int]) -> None:
    """Of processes that are not this one's children."""
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            ended, _, _ = select.select([descriptor], [], [], 60)
            assert ended, f"process {pid} lives on"
        finally:
            os.close(descriptor)


def result(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Final metrics of the record, and all rows without what a clock says."""
    record = run_folder(folder) / "record.json"
    timed = ("wall_s", "speed/units_per_s", "speed/data_wait")
    rows = read_rows(run_folder(folder) / "metrics.jsonl")
    clean = [{k: v for k, v in row.items() if k not in timed} for row in rows]
    return json.loads(record.read_text())["final"], clean
