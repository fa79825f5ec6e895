"""Fleets of fake launchers: orders for them, and what they saw."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from scripts import fleet
from scripts.fleet import Job
from scripts.train import record_path
from tests.scripts import fake_launcher

STEPS = 5


def record_of(job: Job) -> dict[str, Any]:
    """What a record has besides metrics, as far as sweeps and tables read it."""
    prepared, config = job.prepared, asdict(job.prepared.config)
    steps = {"steps": prepared.plan.steps, "global_batch": prepared.plan.global_batch}
    names = {key: config[key] for key in ("experiment", "scale", "seed")}
    names |= {"run_id": prepared.run_id, "fingerprint": prepared.fingerprint}
    return names | {"plan": steps, "config": config, "wall_s": 1.0, "meters": {}}


def give_orders(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    jobs: Iterable[Job],
    special: Mapping[str, dict[str, Any]] | None = None,
) -> None:
    """Fake launchers for these jobs; `special` changes the orders of jobs by part of their name.

    Each has another value: 1, 2, 3 … in the order of the jobs.
    """
    orders = {}
    for number, job in enumerate(jobs, 1):
        order: dict[str, Any] = {
            "run": job.prepared.run_id,
            "folder": str(job.prepared.folder),
            "record": str(record_path(job.prepared.config, job.prepared.run_id)),
            "do": "finish",
            "value": float(number),
            "steps": STEPS,
            "seconds": 0.05,
            "more": record_of(job),
        }
        for part, change in (special or {}).items():
            order |= change if part in job.name else {}
        orders[fake_launcher.key_of(job.arguments)] = order
    path = folder / "orders.json"
    path.write_text(json.dumps(orders))
    command = (sys.executable, "-S", str(fake_launcher.__file__), str(path))
    monkeypatch.setattr(fleet, "LAUNCHER", command)


def events(folder: Path) -> list[dict[str, Any]]:
    """What the launchers noted, in the order of time."""
    found = [json.loads(path.read_text()) for path in (folder / "events").glob("*.json")]
    return sorted(found, key=lambda event: float(event["time"]))


def began(folder: Path) -> list[str]:
    """The runs that were begun, in the order of time."""
    return [event["run"] for event in events(folder) if event["what"] == "began"]
