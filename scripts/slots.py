"""Slots: how a machine is divided among runs that are made side by side.

Eight GPUs are eight slots of one, four of two, two of four or one of eight. A slot's run sees its
own GPUs only. On a CPU a slot is as many cores as a run has processes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from engine.config import ConfigProblem, HardwareConfig
from scripts.fleet import Slot
from scripts.reproduce import GIGABYTES_PER_RUN

VISIBLE = "CUDA_VISIBLE_DEVICES"


def find_slots(
    hardware: HardwareConfig, runs: int, jobs: int | None = None, *, must_exist: bool = True
) -> list[Slot]:
    """The slots of this machine for runs of `hardware.processes` processes each.

    At most one for each run, and at most `jobs` where that is given. A plan may be made where there
    are no GPUs, for a node of eight.
    """
    processes = int(hardware.processes)
    if hardware.device == "cuda":
        gpus = visible_gpus()
        if not gpus and not must_exist:
            gpus = [str(number) for number in range(max(8, processes))]
        slots = gpu_slots(gpus, processes)
    else:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
        fitting = min(cores() // processes, int(free / GIGABYTES_PER_RUN / processes))
        slots = [Slot(f"CPU slot {n}") for n in range(max(1, jobs or fitting))]
    return slots[: max(1, min(runs, jobs or len(slots)))]


def gpu_slots(gpus: Sequence[str], per_run: int) -> list[Slot]:
    """Neighbours together: they are usually the ones that are joined best."""
    if per_run > len(gpus):
        raise ConfigProblem([f"gpus_per_run={per_run}, but {len(gpus)} GPUs are visible"])
    slots = []
    for first in range(0, len(gpus) - per_run + 1, per_run):
        own = ",".join(gpus[first : first + per_run])
        slots.append(Slot(f"GPU {own}", {VISIBLE: own}))
    return slots


def visible_gpus() -> list[str]:
    """Their names for CUDA_VISIBLE_DEVICES; those that it has already where it is set."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    named = [name.strip() for name in os.environ.get(VISIBLE, "").split(",") if name.strip()]
    return named[:count] if named else [str(number) for number in range(count)]


def threads_of(slots: Sequence[Slot], hardware: HardwareConfig) -> int:
    """Threads of each process, so that all slots together have as many as there are cores."""
    return max(1, cores() // (len(slots) * int(hardware.processes)))


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
