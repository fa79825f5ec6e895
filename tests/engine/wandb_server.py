"""As much of W&B's server as its client, `wandb sync`, `wandb sweep` and `wandb agent` need."""

from __future__ import annotations

import http.server
import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import yaml

ENTITY = "me"


@dataclass
class ServedRun:
    """What has arrived of a run."""

    name: str
    about: dict[str, Any] = field(default_factory=dict)  # the variables that created it
    config: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    exit_code: int | None = None

    def upload(self, body: dict[str, Any]) -> None:
        files = body.get("files") or {}
        if history := files.get("wandb-history.jsonl"):
            lines = [json.loads(line) for line in history["content"]]
            at = history["offset"]  # because the client may repeat a request
            self.rows[at : at + len(lines)] = lines
        if summary := files.get("wandb-summary.json"):
            self.summary = json.loads(summary["content"][-1])
        if body.get("complete"):
            self.exit_code = body["exitcode"]

    def resume_status(self) -> dict[str, Any]:
        """What a client that resumes the run is told."""
        last = self.rows[-1] if self.rows else {}
        return {
            "id": self.name,
            "name": self.name,
            "displayName": self.name,
            "summaryMetrics": json.dumps(self.summary or last),
            "historyLineCount": len(self.rows),
            "historyTail": json.dumps([json.dumps(last)] if last else []),
            "eventsLineCount": 0,
            "eventsTail": "[]",
            "logLineCount": 0,
            "config": json.dumps({key: {"value": value} for key, value in self.config.items()}),
            "wandbConfig": '{"t": 1}',
            "tags": [],
        }


class WandbServer(http.server.ThreadingHTTPServer):
    """Keeps what arrives. A sweep's agent gets one trial: the first value of every parameter."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.runs: dict[str, ServedRun] = {}
        self.uploads: list[str] = []
        self.artifacts: list[str] = []
        self.sweep: dict[str, Any] = {}
        self.beats = 0  # of agents
        self.lock = threading.Lock()

    def environment(self) -> dict[str, str]:
        """Of processes that talk to this server."""
        left_out = ("http_proxy", "https_proxy", "wandb_mode")
        kept = {k: v for k, v in os.environ.items() if k.lower() not in left_out}
        address = f"http://127.0.0.1:{self.server_port}"
        return kept | {"WANDB_BASE_URL": address, "WANDB_API_KEY": "0" * 40}

    def answer(self, operation: str, given: dict[str, Any], host: str) -> dict[str, Any]:
        """GraphQL: the data for an operation and its variables."""
        project = given.get("project") or given.get("projectName") or "uncategorized"
        owner = {"id": "p", "name": project, "entity": {"id": "e", "name": ENTITY}}
        if operation == "Viewer":
            return {"viewer": {"id": "v", "username": ENTITY, "entity": ENTITY, "flags": "{}"}}
        if operation == "RunResumeStatus":
            run = self.runs.get(given["name"])
            return {"model": owner | {"bucket": run.resume_status() if run else None}}
        if operation == "UpsertBucket":
            name = given["name"]
            run = self.runs.setdefault(name, ServedRun(name, given | {"project": project}))
            run.config |= {k: v["value"] for k, v in json.loads(given["config"] or "{}").items()}
            bucket = {"id": name, "name": name, "displayName": given["displayName"] or name}
            bucket |= {"project": owner, "sweepName": run.about.get("sweep")}
            return {"upsertBucket": {"bucket": bucket, "inserted": True}}
        if operation == "CreateRunFiles":
            files = [{"name": n, "uploadUrl": f"http://{host}/file"} for n in given["files"]]
            return {"createRunFiles": {"runID": "x", "uploadHeaders": [], "files": files}}
        if operation == "ArtifactType":  # before one is made: whether there is another of the name
            return {"project": {"artifact": None}}
        if operation == "CreateArtifact":
            self.artifacts.append(given["input"]["artifactCollectionName"])
            made = {"id": "v0", "state": "COMMITTED"}  # so that no file is uploaded
            sequence = {"id": "q", "latestArtifact": {"id": "v0", "versionIndex": 0}}
            return {"createArtifact": {"artifact": made | {"artifactSequence": sequence}}}
        return self.answer_agent(operation, given, owner)

    def answer_agent(
        self, operation: str, given: dict[str, Any], owner: dict[str, Any]
    ) -> dict[str, Any]:
        if operation == "UpsertSweep":
            self.sweep = {"id": "s1", "name": "s1", "state": "RUNNING", "config": given["config"]}
            found = {"sweep": {"name": "s1", "project": owner}, "configValidationWarnings": []}
            return {"upsertSweep": found}
        if operation == "SweepWithRuns":
            return {"project": {"sweep": self.sweep | {"runs": {"edges": []}}}}
        if operation == "CreateAgent":
            return {"createAgent": {"agent": {"id": "a1"}}}
        if operation == "Heartbeat":
            self.beats += 1
            commands = [self._trial()] if self.beats == 1 else []
            return {"agentHeartbeat": {"agent": {"id": "a1"}, "commands": json.dumps(commands)}}
        return {}

    def _trial(self) -> dict[str, Any]:
        config = yaml.safe_load(self.sweep["config"])
        values = {k: {"value": p["values"][0]} for k, p in config["parameters"].items()}
        return {"type": "run", "run_id": "trial1", "program": config["program"], "args": values}


class _Handler(http.server.BaseHTTPRequestHandler):
    server: WandbServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        answer: dict[str, Any] = {}
        with self.server.lock:
            if self.path.endswith("/graphql"):
                request = json.loads(body)
                named = re.search(r"(?:query|mutation)\s+(\w+)", request["query"])
                operation = named[1] if named else ""
                variables = request.get("variables") or {}
                found = self.server.answer(operation, variables, self.headers["Host"])
                answer = {"data": found}
            elif self.path.endswith("/file_stream"):
                name = self.path.split("/")[-2]
                self.server.uploads.append(body.decode())
                self.server.runs[name].upload(json.loads(body))
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        self.do_POST()

    def do_PUT(self) -> None:
        self.do_POST()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def served() -> Iterator[WandbServer]:
    """A server at work."""
    with WandbServer() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()
