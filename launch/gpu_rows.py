"""Training steps of the paper's rows on this machine's first GPU: memory, speed, loading.

And how fast all GPUs add up their gradients: NCCL's all-reduce, as its tests count it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from engine import precision
from engine.distributed import Group
from engine.gpu_meters import count_flops, peak_tflops
from engine.trainer import Trainer
from launch.device_check import workers_of
from launch.gpu_estimate import NODE, PUBLISHED
from launch.hardware import cores
from launch.run_spec import RunSpec, make_run_spec
from tasks.base import Batch, DataProblem, Shard

WARM_UP = 5  # steps
ALL_REDUCED_BYTES = 2**28  # about the gradients of Transformer-XL's layers
ALL_REDUCES = 20


@dataclass(frozen=True)
class Row:
    """One process's part of a row, with one micro-batch a step."""

    name: str
    trainer: Trainer
    units: int  # of the whole run

    def step(self, number: int, batches: Iterator[Batch]) -> None:
        self.trainer.stepper.run(number, number, batches, want_norm=False, stop=False)

    def seconds(self, steps: int, batches: Iterator[Batch]) -> float:
        """Of so many steps, after some that are not counted."""
        for number in range(WARM_UP):
            self.step(number, batches)
        torch.cuda.synchronize()
        self.trainer.stepper.take_data_wait()
        before = time.perf_counter()
        for number in range(WARM_UP, WARM_UP + steps):
            self.step(number, batches)
        torch.cuda.synchronize()
        return time.perf_counter() - before


def make_row(name: str, *overrides: str) -> Row:
    """On the first GPU, with the loading processes that it would have among all GPUs."""
    workers = workers_of(cores(), torch.cuda.device_count())
    machine = ["hardware=gpu", "hardware.processes=1", f"hardware.data_workers={workers}"]
    spec = make_run_spec([f"experiment={name}", *machine, *overrides], need_data=False)
    micro, units = spec.plan.micro, spec.plan.units
    batch = replace(spec.config.batch, global_size=micro)
    plan = replace(spec.plan, global_batch=micro, micro_batches=1, accumulation=1)
    spec = replace(spec, config=replace(spec.config, batch=batch), plan=plan)
    return Row(name, _build(spec), units)


def _build(spec: RunSpec) -> Trainer:
    """Weights are drawn on the GPU, as their values do not matter."""
    device, task = torch.device("cuda", 0), spec.task
    hardware = spec.config.hardware
    precision.configure(hardware, device, None, fixed_shapes=task.fixed_shapes)
    build_model = task.build_model

    def on_gpu() -> Any:
        with device:
            return build_model()

    task.build_model = on_gpu
    try:
        folder = Path(tempfile.gettempdir())  # nothing is written
        return Trainer(spec.config, spec.plan, task, Group(0, 1, device), folder, spec.run_id)
    finally:
        del task.build_model


def peak_memory(name: str, *overrides: str) -> tuple[Row | None, dict[str, Any]]:
    """Of two steps at the largest batch; no row if the GPU is too small for it."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    row = None
    try:
        row = make_row(name, *overrides)
        for number in range(2):
            row.step(number, repeat(row.trainer.task.largest_batch()))
        torch.cuda.synchronize()
    except torch.OutOfMemoryError:
        row = None
    peak = torch.cuda.max_memory_allocated() / 1e9
    return row, {"peak_gb": round(peak, 2), "fits": row is not None}


def measure_speed(row: Row, steps: int) -> dict[str, Any]:
    """On a typical batch that lies in pinned memory, and on the row's data where it is there."""
    trainer = row.trainer
    batch = trainer.task.example_batch()
    batch.tensors = {name: t.pin_memory() for name, t in batch.tensors.items()}
    speed = steps * batch.units / row.seconds(steps, repeat(batch))
    hours = row.units / (speed * NODE) / 3600
    peak = peak_tflops(torch.cuda.get_device_name())
    flops = count_flops(trainer.task) / batch.units * speed
    return {
        "unit": trainer.task.unit,
        "units_per_s": round(speed, 1),
        "mfu": None if peak is None else round(flops / (peak * 1e12), 4),
        "data_wait": _data_wait(row, steps),
        "node_hours": round(hours, 2),
        "gpu_hours": round(hours * NODE, 1),
        "published": PUBLISHED.get(trainer.config.task.name, ""),
    }


def _data_wait(row: Row, steps: int) -> float | None:
    """The share of the time that a GPU waits for its loading processes; None without the data."""
    task = row.trainer.task
    try:
        task.prepare_data()
    except DataProblem:
        return None
    with closing(task.train_stream(Shard(), 0)) as batches:  # type: ignore[type-var]
        seconds = row.seconds(steps, batches)
    return round(row.trainer.stepper.take_data_wait() / seconds, 4)


def all_reduce_gb_per_s(gpus: int) -> float:
    """Bus bandwidth: 2 (n - 1) / n of the bytes over the time, whatever the number of GPUs."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_measure, args=(gpus, folder), nprocs=gpus)  # type: ignore[no-untyped-call]
        seconds = float((Path(folder) / "seconds").read_text())
    return 2 * (gpus - 1) / gpus * ALL_REDUCED_BYTES / seconds / 1e9


def _measure(rank: int, gpus: int, folder: str) -> None:
    torch.cuda.set_device(rank)
    store = dist.FileStore(f"{folder}/store", gpus)
    dist.init_process_group("nccl", store=store, rank=rank, world_size=gpus)
    tensor = torch.zeros(ALL_REDUCED_BYTES // 4, device="cuda")
    for _ in range(WARM_UP):
        dist.all_reduce(tensor)
    torch.cuda.synchronize()
    before = time.perf_counter()
    for _ in range(ALL_REDUCES):
        dist.all_reduce(tensor)
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - before) / ALL_REDUCES
    if rank == 0:
        (Path(folder) / "seconds").write_text(str(seconds))
    dist.destroy_process_group()
