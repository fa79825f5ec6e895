"""How fast this node's GPUs add up their gradients: NCCL's all-reduce, as its tests count it."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

BYTES = 2**28  # about the gradients of Transformer-XL's layers
WARM_UP, REPEATS = 5, 20


def all_reduce_gb_per_s(gpus: int) -> float:
    """Bus bandwidth: 2 (n - 1) / n of the bytes over the time, whatever the number of GPUs."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_measure, args=(gpus, folder), nprocs=gpus)  # type: ignore[no-untyped-call]
        seconds = float((Path(folder) / "seconds").read_text())
    return 2 * (gpus - 1) / gpus * BYTES / seconds / 1e9


def _measure(rank: int, gpus: int, folder: str) -> None:
    torch.cuda.set_device(rank)
    store = dist.FileStore(f"{folder}/store", gpus)
    dist.init_process_group("nccl", store=store, rank=rank, world_size=gpus)
    tensor = torch.zeros(BYTES // 4, device="cuda")
    for _ in range(WARM_UP):
        dist.all_reduce(tensor)
    torch.cuda.synchronize()
    before = time.perf_counter()
    for _ in range(REPEATS):
        dist.all_reduce(tensor)
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - before) / REPEATS
    if rank == 0:
        (Path(folder) / "seconds").write_text(str(seconds))
    dist.destroy_process_group()
