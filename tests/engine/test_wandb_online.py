"""The real W&B client and a server: after kill -9 and a resume each row has arrived once."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from engine.records import to_json
from engine.rows import read_rows
from tests.engine.test_wandb_sync import Server

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


class Remembering(Server):
    """Keeps the rows that arrive, and tells a run that is resumed how many there are."""

    rows: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        before = len(self.uploads)
        super().do_POST()
        for body in self.uploads[before:]:
            history = json.loads(body).get("files", {}).get("wandb-history.jsonl", {})
            if history:  # at its offset, because the client may repeat a request
                lines = [json.loads(line) for line in history["content"]]
                self.rows[history["offset"] : history["offset"] + len(lines)] = lines

    def answer(self, operation: str, variables: Any) -> Any:
        found = super().answer(operation, variables)
        if operation == "RunResumeStatus" and self.rows:
            last = self.rows[-1]
            found["model"]["bucket"] = {
                "id": "x",
                "name": "r1",
                "displayName": "r1",
                "summaryMetrics": json.dumps(last),
                "historyLineCount": len(self.rows),
                "historyTail": json.dumps([json.dumps(last)]),
                "eventsLineCount": 0,
                "eventsTail": "[]",
                "logLineCount": 0,
                "config": "{}",
                "wandbConfig": '{"t": 1}',
                "tags": [],
            }
        return found


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    Remembering.uploads = []
    Remembering.rows.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Remembering) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        left_out = ("http_proxy", "HTTP_PROXY", "WANDB_MODE")
        kept = {k: v for k, v in os.environ.items() if k not in left_out}
        address = f"http://127.0.0.1:{server.server_port}"
        yield kept | {"WANDB_BASE_URL": address, "WANDB_API_KEY": "0" * 40}
        server.shutdown()


@pytest.mark.slow
def test_each_row_arrives_once(tmp_path, environment):
    def start(resume: int, last: int, end: str) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-c", START, str(tmp_path), str(resume), str(last), end]
        return subprocess.Popen(words, cwd=ROOT, env=environment)

    first = start(0, 7, "waits")
    deadline = time.monotonic() + 600
    while not Remembering.rows and time.monotonic() < deadline:
        time.sleep(0.2)
    first.kill()
    first.wait()
    assert Remembering.rows
    assert start(4, 12, "finished").wait(600) == 0
    found = [{k: v for k, v in row.items() if k[0] != "_"} for row in Remembering.rows]
    assert to_json(found) == to_json(read_rows(tmp_path / "metrics.jsonl"))
    assert [row["_step"] for row in Remembering.rows] == list(range(14))
