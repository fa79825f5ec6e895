"""The real W&B client and a server: after kill -9 and a resume each row has arrived once."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.records import to_json
from engine.rows import read_rows
from tests.engine.wandb_server import WandbServer, served

ROOT = Path(__file__).parents[2]
START = """
import sys, time
from pathlib import Path
from engine import wandb_mirror
from engine.tracking import Ending
from tests.engine.test_tracking import track
wandb_mirror.TIMEOUT = 300.0
resume, last, end = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
tracker = track(Path(sys.argv[1]), range(resume + 1, last + 1), resume, "online")
if end == "waits":
    time.sleep(600)
tracker.finish(Ending(end))
"""


@pytest.fixture
def server() -> Iterator[WandbServer]:
    with served() as found:
        yield found


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_each_row_arrives_once(tmp_path, server):
    def start(resume: int, last: int, end: str) -> subprocess.Popen[bytes]:
        arguments = [sys.executable, "-c", START, str(tmp_path), str(resume), str(last), end]
        return subprocess.Popen(arguments, cwd=ROOT, env=server.environment())

    first = start(0, 7, "waits")
    deadline = time.monotonic() + 600
    while not arrived(server) and time.monotonic() < deadline:
        time.sleep(0.2)
    first.kill()
    first.wait()
    assert arrived(server)
    assert start(4, 12, "finished").wait(600) == 0
    found = [{k: v for k, v in row.items() if k[0] != "_"} for row in arrived(server)]
    assert to_json(found) == to_json(read_rows(tmp_path / "metrics.jsonl"))
    assert [row["_step"] for row in arrived(server)] == list(range(14))
    assert server.runs["r1"].exit_code == 0


def arrived(server: WandbServer) -> list[dict[str, Any]]:
    return server.runs["r1"].rows if "r1" in server.runs else []
