"""Whether the loading processes' batches fit into /dev/shm, where they pass them on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from engine.config import ConfigProblem

FOLDER = Path("/dev/shm")


def bytes_needed(config: Any, task: Any) -> int:
    """On each node: training's and an evaluation's batches, ahead and in use, at their largest."""
    from tasks.loading import PREFETCH

    hardware = config.hardware
    workers = int(hardware.data_workers) * int(hardware.processes) // hardware.nodes
    batch = sum(t.numel() * t.element_size() for t in task.largest_batch().tensors.values())
    evaluation: int = batch * config.evaluation.batch // config.batch.micro
    return int(workers * (PREFETCH + 1) * (batch + evaluation))


def check_shared_memory(config: Any, task: Any) -> None:
    """ConfigProblem if a run would end with a bus error; containers have 64 MB by default."""
    if not task.loads_in_processes or not config.hardware.data_workers or not FOLDER.is_dir():
        return
    needed, free = bytes_needed(config, task), shutil.disk_usage(FOLDER).free
    if needed <= free:
        return
    most = int(config.hardware.data_workers) * free // needed
    raise ConfigProblem(
        [
            f"{FOLDER} has {free / 1e9:.2f} GB free, and the loading processes need up to "
            f"{needed / 1e9:.2f} GB (hardware.data_workers={config.hardware.data_workers} for each "
            f"of {config.hardware.processes} processes): start the container with "
            f"--shm-size={needed // 2**30 + 1}g, or set hardware.data_workers={most}"
        ]
    )
