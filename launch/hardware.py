"""What this machine has, and what `auto` becomes on it."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.config import BatchConfig, ClusterConfig, ConfigProblem, HardwareConfig
from launch.device_check import check_devices, choose_for_device

VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
SHARED_MEMORY = Path("/dev/shm")  # where loading processes pass on their batches


def default_scale() -> str:
    """The paper's where there is a GPU, otherwise mini, with a message."""
    import torch

    check_devices("auto")
    if torch.cuda.is_available():
        return "paper"
    print("no GPU found: using scale=mini (scale=paper is the paper's size)", file=sys.stderr)
    return "mini"


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def total_memory() -> int:
    """Bytes of main memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def available_memory() -> int:
    """Bytes that programs can still take, caches included; all of it where that is not known."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    return total_memory()


def visible_gpus() -> list[str]:
    """The names of GPUs for CUDA_VISIBLE_DEVICES; those it lists already where it is set."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    named = [name.strip() for name in os.environ.get(VISIBLE_GPUS, "").split(",") if name.strip()]
    return named[:count] if named else [str(number) for number in range(count)]


def gpus_per_node(hardware: HardwareConfig, cluster: ClusterConfig) -> int:
    """The GPUs that a run requests of each node of a cluster."""
    if isinstance(cluster.gpus_per_node, int):
        return cluster.gpus_per_node
    if hardware.device == "cpu":
        return 0
    if hardware.device == "auto" or isinstance(hardware.processes, str):
        raise ConfigProblem(["set cluster.gpus_per_node (8, for example) or hardware.device=cpu"])
    return hardware.processes // hardware.nodes


def resolve_for(
    hardware: HardwareConfig,
    batch: BatchConfig,
    cluster: ClusterConfig,
    *,
    must_exist: bool = True,
) -> HardwareConfig:
    """Hardware without `auto`: of this machine, or of the cluster's nodes."""
    micro_batches = max(1, batch.global_size // batch.micro)
    if cluster.kind == "local":
        return resolve_hardware(hardware, micro_batches, must_exist=must_exist)
    resolved = resolve_hardware(hardware, micro_batches, gpus=gpus_per_node(hardware, cluster))
    return replace(resolved, threads=hardware.threads)  # auto: all cores of the node there


def resolve_hardware(
    hardware: HardwareConfig,
    micro_batches: int,
    *,
    must_exist: bool = True,
    gpus: int | None = None,
) -> HardwareConfig:
    """`auto` becomes what each node has: `gpus`, or this machine's visible ones, or the CPU.

    A step of few micro-batches, as at small scales, uses as many GPUs as can share them evenly.
    """
    here = gpus is None
    if gpus is None:
        if must_exist:
            check_devices(hardware.device)
        gpus = len(visible_gpus())
    device = hardware.device if hardware.device != "auto" else ("cuda" if gpus else "cpu")
    problems = []
    if device == "cuda" and not gpus and (must_exist or isinstance(hardware.processes, str)):
        problems.append("hardware.device=cuda, but no GPU is visible")
    if device == "cpu" and hardware.precision == "fp16":
        problems.append("hardware.precision=fp16 needs a GPU; use bf16 or fp32 on a CPU")
    processes, nodes = hardware.processes, hardware.nodes
    if isinstance(processes, str):
        on_gpus = device == "cuda" and gpus > 0
        processes = nodes * (_gpus_used(micro_batches, gpus, nodes) if on_gpus else 1)
    elif device == "cuda" and must_exist and processes > nodes * gpus > 0:
        each = f" on each of {nodes} nodes" if nodes > 1 else ""
        problems.append(f"hardware.processes={processes}, but {gpus} GPUs are visible{each}")
    if problems:
        raise ConfigProblem(problems)
    threads = hardware.threads
    if isinstance(threads, str):
        threads = max(1, cores() * nodes // processes)
    hardware = replace(hardware, device=device, processes=processes, threads=threads)
    # What depends on another machine's GPUs and cores is chosen there.
    return choose_for_device(hardware, cores()) if here else hardware


def _gpus_used(micro_batches: int, gpus: int, nodes: int) -> int:
    """The most GPUs of each node among which the micro-batches of a step divide evenly."""
    return max(n for n in range(1, gpus + 1) if micro_batches % (n * nodes) == 0 or n == 1)


def _shared_bytes_needed(config: Any, task: Any) -> int:
    """On each node: training's and an evaluation's batches, ahead and in use, at their largest."""
    from tasks.loading import PREFETCH

    hardware = config.hardware
    workers = int(hardware.data_workers) * int(hardware.processes) // hardware.nodes
    batch = sum(t.numel() * t.element_size() for t in task.largest_batch().tensors.values())
    evaluation: int = batch * config.evaluation.batch // config.batch.micro
    return int(workers * (PREFETCH + 1) * (batch + evaluation))


def check_shared_memory(config: Any, task: Any) -> None:
    """ConfigProblem if a run would end with a bus error; containers have 64 MB by default."""
    in_processes = task.loads_in_processes and config.hardware.data_workers
    if not in_processes or not SHARED_MEMORY.is_dir():
        return
    needed, free = _shared_bytes_needed(config, task), shutil.disk_usage(SHARED_MEMORY).free
    if needed <= free:
        return
    most = int(config.hardware.data_workers) * free // needed
    raise ConfigProblem(
        [
            f"{SHARED_MEMORY} has {free / 1e9:.2f} GB free, and the loading processes need up to "
            f"{needed / 1e9:.2f} GB (hardware.data_workers={config.hardware.data_workers} for each "
            f"of {config.hardware.processes} processes): start the container with "
            f"--shm-size={needed // 2**30 + 1}g, or set hardware.data_workers={most}"
        ]
    )
