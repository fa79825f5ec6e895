"""`make gpu-check`: what a node's first GPU can do, and whether it calculates what the CPU does.

1. The machine: builds, GPUs, cores, /dev/shm, NCCL's bandwidth.
2. Every implementation of the optimizers against the CPU, in float64 and float32.
3. Every task's loss and gradients against the CPU, in float64 and float32, on made-up data.
4. Steps of all rows of the paper at their largest batches: peak memory.
5. Timed steps of each task on a batch that lies ready: speed, MFU, and the hours of a row; and on
   its data, where that is prepared: which share of the time the GPU waits for it.
"""

from __future__ import annotations

import gc
import json
import math
import platform
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from analysis.paper import read_paper
from engine import precision
from engine.formats import slug
from launch.device_check import check_devices, driver_version, gpu_of
from launch.gpu_estimate import NODE
from launch.gpu_rows import all_reduce_gb_per_s, measure_speed, peak_memory
from launch.hardware import cores
from launch.run_spec import make_run_spec
from optim.factory import build_optimizer
from tasks.base import Shard
from tasks.librispeech import features

ROWS = {
    "imagenet": "imagenet/novograd_100ep",
    "librispeech": "librispeech/novograd",
    "wmt14": "wmt14/novograd",
    "wikitext103": "wikitext103/novograd",
}
NOVOGRAD = {"lr": 0.01, "weight_decay": 0.001}
# Name and options, and options that are set on the GPU alone.
OPTIMIZERS: dict[str, tuple[str, dict[str, Any], dict[str, bool]]] = {
    "novograd foreach": ("novograd", NOVOGRAD, {"foreach": True}),
    "novograd fused (Triton)": ("novograd", NOVOGRAD, {"fused": True}),
    "novograd single tensor": ("novograd", NOVOGRAD, {"foreach": False, "fused": False}),
    "sgd": ("sgd", {"lr": 0.1, "weight_decay": 1e-4}, {}),
    "adam": ("adam", {"lr": 1e-3}, {}),
    "adamw": ("adamw", {"lr": 1e-3, "weight_decay": 0.01}, {}),
}
SHAPES = ((64, 3, 7, 7), (1000, 64), (64,), (4097,), (1,))
OPTIMIZER_LIMITS = {torch.float64: 1e-12, torch.float32: 1e-5}
# Tasks are compared with the CPU in float64: another order of summation, and cuDNN's algorithms. In
# float32 ReLUs near 0 turn over; so the limit is in multiples of what the CPU is off by itself.
TASK_LIMIT, FLOAT32_LIMIT, FLOAT32_TIMES_CPU = 1e-8, 1e-5, 10
SMALLEST = 1e-3  # of the largest gradient: in what smaller ones are measured; some are 0


def paper_rows() -> tuple[str, ...]:
    """The experiments of all tables, in their order."""
    found = (row.experiment for table in read_paper() for row in table.rows)
    return tuple(dict.fromkeys(filter(None, found)))


def check_gpu(
    steps: int = 50, overrides: Sequence[str] = ("scale=paper",), rows: Sequence[str] = ()
) -> dict[str, Any]:
    """Everything, as the record that is written; prints a line for each part.

    `rows` are all of the paper's if none are given.
    """
    check_devices("cuda")
    torch.cuda.set_device(0)
    record: dict[str, Any] = {"machine": describe_machine()}
    _tell("machine", record["machine"]["gpu"])
    if (gpus := torch.cuda.device_count()) > 1:
        bandwidth = all_reduce_gb_per_s(gpus)
        record["machine"]["all_reduce_gb_per_s"] = round(bandwidth, 1)
        _tell(f"all-reduce of {gpus} GPUs", f"{bandwidth:,.1f} GB/s of bus bandwidth")
    record["optimizers"] = compare_optimizers()
    record["tasks"] = compare_tasks()
    record["memory"], record["speed"] = {}, {}
    for row in rows or paper_rows():
        measured, record["memory"][row] = peak_memory(row, *overrides)
        _tell(row, _describe_memory(record["memory"][row]))
        if measured is not None and row in ROWS.values():
            speed = record["speed"][row.split("/")[0]] = measure_speed(measured, steps)
            _tell(row, _describe_speed(speed))
        del measured  # for the next one's peak
        gc.collect()
    limits = [
        entry["within"] for part in ("optimizers", "tasks") for entry in record[part].values()
    ]
    record["agrees_with_cpu"] = all(limits)
    return record


def describe_machine() -> dict[str, Any]:
    """The first GPU, how many there are, and what they are used with."""
    gpu = gpu_of()
    return {
        "gpu": str(gpu),
        "gpus": torch.cuda.device_count(),
        "driver": driver_version(),
        "built_for": torch.cuda.get_arch_list(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        "cores": cores(),
        "shared_memory_gb": round(shutil.disk_usage("/dev/shm").total / 1e9, 2),
        "system": platform.platform(),
    }


def compare_optimizers() -> dict[str, Any]:
    """Weights after five updates, on tensors of odd sizes."""
    found = {}
    for name in OPTIMIZERS:
        for dtype, limit in OPTIMIZER_LIMITS.items():
            ends = [_five_updates(name, dtype, device) for device in ("cpu", "cuda")]
            error = max(_difference(a, b) for a, b in zip(*ends, strict=True))
            key = f"{name}, {str(dtype).removeprefix('torch.')}"
            found[key] = _judged(key, error, limit)
    return found


def _five_updates(name: str, dtype: torch.dtype, device: str) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    draw = [torch.randn(s, generator=generator, dtype=torch.float64) for s in SHAPES]
    params = [nn.Parameter(t.to(device, dtype)) for t in draw]
    kind, options, on_gpu = OPTIMIZERS[name]
    optimizer: Any = build_optimizer(kind, params, **options)
    if device == "cuda":
        for group in optimizer.param_groups:
            group.update(on_gpu)
    for _ in range(5):
        for p in params:
            gradient = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            p.grad = gradient.to(device, dtype)
        optimizer.step()
    return [p.detach().cpu().double() for p in params]


def compare_tasks() -> dict[str, Any]:
    """Training mode without dropout and dither, whose draws differ between devices; no TF32."""
    found = {}
    dither, features.DITHER = features.DITHER, 0.0
    try:
        with tempfile.TemporaryDirectory() as folder:
            for task, row in ROWS.items():
                overrides = [f"experiment={row}", "scale=smoke", "hardware=cpu"]
                spec: Any = make_run_spec([*overrides, f"paths.data={folder}"])
                hardware = replace(spec.config.hardware, tf32=False)
                precision.configure(hardware, torch.device("cuda"), None)
                for dtype in (torch.float64, torch.float32):
                    key = f"{task}, {str(dtype).removeprefix('torch.')}"
                    found[key] = _judged(key, *_compare_task(spec.task, dtype))
    finally:
        features.DITHER = dither
    return found


def _compare_task(task: Any, dtype: torch.dtype) -> tuple[float, float]:
    """How far the GPU is from the CPU in float64, and how far it may be."""
    expected = _gradients(task, "cpu", torch.float64)
    error = _task_difference(expected, _gradients(task, "cuda", dtype))
    if dtype == torch.float64:
        return error, TASK_LIMIT
    of_cpu = _task_difference(expected, _gradients(task, "cpu", dtype))
    return error, max(FLOAT32_LIMIT, FLOAT32_TIMES_CPU * of_cpu)


def _task_difference(expected: list[Tensor], found: list[Tensor]) -> float:
    """Of a loss and its gradients, some of which may be 0 but for rounding (attention's keys')."""
    loss, *gradients = zip(expected, found, strict=True)
    least = SMALLEST * max(a.abs().max().item() for a, _ in gradients)
    return max(_difference(*loss), *(_difference(*pair, least) for pair in gradients))


def _judged(what: str, error: float, limit: float) -> dict[str, Any]:
    _tell(what, f"differs from the CPU by {error:.1e} (limit {limit:.0e})")
    return {"difference": error, "limit": limit, "within": error <= limit}


def _gradients(task: Any, device: str, dtype: torch.dtype) -> list[Tensor]:
    """The loss of the first training batch and all gradients."""
    torch.manual_seed(1)
    model = task.build_model().to(device, dtype)
    for module in model.modules():
        for name in ("p", "dropout", "attention_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    batch = next(iter(task.train_stream(Shard(), 0))).to(device)
    total = task.loss(model, batch, None).total
    total.backward()
    found = [total, *(p.grad for p in model.parameters() if p.grad is not None)]
    return [t.detach().to_dense().cpu().double() for t in found]


def _difference(a: Tensor, b: Tensor, least: float = 0.0) -> float:
    """The largest difference, relative to the tensor's largest number, at least `least`."""
    scale = max(a.abs().max().item(), least) or 1.0
    difference = float((a - b).abs().max().item() / scale)
    return math.inf if math.isnan(difference) else difference


def _describe_memory(found: dict[str, Any]) -> str:
    return f"peak {found['peak_gb']:.1f} GB" + ("" if found["fits"] else ": does not fit")


def _describe_speed(found: dict[str, Any]) -> str:
    waits = "data not prepared"
    if found["data_wait"] is not None:
        waits = f"waits for data {found['data_wait']:.1%} of the time"
    mfu = "unknown" if found["mfu"] is None else f"{found['mfu']:.1%}"
    return (
        f"{found['units_per_s']:,.0f} {found['unit']}s/s, MFU {mfu}, "
        f"{found['node_hours']:,.1f} h on {NODE} GPUs, {waits}"
    )


def write_record(record: dict[str, Any], folder: Path) -> Path:
    """A JSON file, and a page beside it."""
    name = slug(record["machine"]["gpu"].split(" (")[0].lower())
    path = folder / f"gpu-{name}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    path.with_suffix(".md").write_text(page(record))
    return path


def page(record: dict[str, Any]) -> str:
    """The record for a reader."""
    machine = record["machine"]
    about = f"{machine['gpus']} GPUs, driver {machine['driver'] or 'unknown'}"
    about += f", torch {machine['torch']}, CUDA {machine['cuda']}"
    if "all_reduce_gb_per_s" in machine:
        about += f", all-reduce {machine['all_reduce_gb_per_s']} GB/s"
    lines = [f"# {machine['gpu']}", "", about, ""]
    lines += [
        f"| task | units/s | MFU | waits for data | hours on {NODE} GPUs | GPU-hours | published |",
        "|---|---|---|---|---|---|---|",
    ]
    for task, s in record["speed"].items():
        mfu, wait = ("–" if s[k] is None else f"{s[k]:.1%}" for k in ("mfu", "data_wait"))
        lines.append(
            f"| {task} | {s['units_per_s']:,} {s['unit']}s | {mfu} | {wait} | {s['node_hours']:,} "
            f"| {s['gpu_hours']:,} | {s['published']} |"
        )
    lines += ["", "| row | peak memory |", "|---|---|"]
    lines += [
        f"| {row} | {m['peak_gb']} GB{'' if m['fits'] else ', does not fit'} |"
        for row, m in record["memory"].items()
    ]
    lines += ["", "| against the CPU | largest difference | limit |", "|---|---|---|"]
    lines += [
        f"| {name} | {entry['difference']:.1e}{'' if entry['within'] else ' **too large**'} "
        f"| {entry['limit']:.0e} |"
        for part in ("optimizers", "tasks")
        for name, entry in record[part].items()
    ]
    return "\n".join(lines) + "\n"


def _tell(what: str, text: str) -> None:
    print(f"{what:<32} {text}", flush=True)
