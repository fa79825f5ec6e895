"""Fleets of fake launchers: orders for them, and what they saw."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from launch import scheduler
from launch.scheduler import Job
from tests.launch import fake_launcher

STEPS = 5


def record_of(job: Job) -> dict[str, Any]:
    """What a record has besides metrics, as far as sweeps and tables read it."""
    spec, config = job.spec, asdict(job.spec.config)
    keys = ("steps", "steps_per_epoch", "global_batch", "unit")
    steps = {key: getattr(spec.plan, key) for key in keys}
    names = {key: config[key] for key in ("experiment", "scale", "seed")}
    names |= {"run_id": spec.run_id, "fingerprint": spec.fingerprint}
    hardware = {"device": "cpu", "name": "a processor", "threads": 1}
    environment = {"commit": None, "versions": {"torch": "2.11.0"}, "hardware": hardware}
    made = {"plan": steps, "config": config, "wall_s": 1.0, "environment": environment}
    return names | made


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
            "run": job.spec.run_id,
            "folder": str(job.spec.folder),
            "record": str(job.spec.record_path),
            "do": "finish",
            "value": float(number),
            "steps": STEPS,
            "seconds": 0.05,
            "more": record_of(job),
        }
        for part, change in (special or {}).items():
            order |= change if part in job.name else {}
        orders[job.spec.run_id] = order
    path = folder / "orders.json"
    path.write_text(json.dumps(orders))
    command = (sys.executable, "-S", str(fake_launcher.__file__), str(path))
    monkeypatch.setattr(scheduler, "LAUNCHER", command)


def events(folder: Path) -> list[dict[str, Any]]:
    """What the launchers noted, in the order of time."""
    found = [json.loads(path.read_text()) for path in (folder / "events").glob("*.json")]
    return sorted(found, key=lambda event: float(event["time"]))


def began(folder: Path) -> list[str]:
    """The runs that were begun, in the order of time."""
    return [event["run"] for event in events(folder) if event["what"] == "began"]
