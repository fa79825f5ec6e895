"""Checkpoint stores for tests, with states in which every number says its step."""

from __future__ import annotations

import hashlib
import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from engine.checkpoint import CheckpointStore, Loaded
from engine.checkpoint_files import Manifest

SETTINGS = {"optimizer.lr": 0.01, "optimizer.betas": (0.95, 0.98), "seed": 1}


class Lines(list[str]):
    """A log that can be counted."""

    def __call__(self, line: str) -> None:
        self.append(line)


def store_in(folder: Path, log: Lines | None = None, **changes: Any) -> CheckpointStore:
    """As a new process of the same run would make it."""
    options: dict[str, Any] = {"fingerprint": "f00d", "settings": SETTINGS} | changes
    return CheckpointStore(folder, log=Lines() if log is None else log, **options)


def state_at(step: int, numbers: int = 500) -> dict[str, Any]:
    """No two are the same file, also of the same step."""
    weights, salt = torch.full((numbers,), float(step)), os.urandom(random.randint(1, 99)).hex()
    return {"step": step, "weights": weights, "more": [step, salt, None]}


def is_whole(loaded: Loaded | None) -> bool:
    assert loaded is not None
    same = bool((loaded.state["weights"] == float(loaded.step)).all())
    return same and loaded.state["step"] == loaded.state["more"][0] == loaded.step


def latest(folder: Path, log: Lines | None = None) -> int | None:
    """The step that a run would go on from; 0 would be a checkpoint too."""
    loaded = store_in(folder, log).load_latest()
    assert loaded is None or is_whole(loaded)
    return None if loaded is None else loaded.step


def best(folder: Path) -> int | None:
    loaded = store_in(folder).load_best()
    assert loaded is None or is_whole(loaded)
    return None if loaded is None else loaded.step


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def pairs(*of: int | str) -> list[str]:
    stems = [one if isinstance(one, str) else f"step-{one:08d}" for one in of]
    return sorted(f"{stem}.{ending}" for stem in stems for ending in ("pt", "json"))


def flip(path: Path, offset: int, mask: int = 0x01) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= mask
    path.write_bytes(data)


def sign(path: Path, **changes: Any) -> None:
    """Makes the manifest fit what is in the file."""
    data, note = path.read_bytes(), path.with_suffix(".json")
    fits: dict[str, Any] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    note.write_bytes(replace(Manifest.read(note), **(fits | changes)).encode())
