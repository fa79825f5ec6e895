"""`make gpu-check`: what a node's first GPU can do, and whether it calculates what the CPU does.

1. The machine: builds, GPUs, cores, /dev/shm, NCCL's bandwidth.
2. Every implementation of the optimizers against the CPU, in float64 and float32.
3. Every task's loss and gradients against the CPU, in float64, on made-up data.
4. Steps of the paper's rows at their largest batches: peak memory.
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
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from launch.config_files import ROOT
from launch.device_check import check_devices, gpu_of
from launch.gpu_estimate import NODE
from launch.gpu_rows import measure_speed, peak_memory
from launch.hardware import cores
from launch.nccl_bandwidth import all_reduce_gb_per_s
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
LARGE_ROWS = (*ROWS.values(), "librispeech/novograd_512")
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "novograd foreach": {"name": "novograd", "lr": 0.01, "weight_decay": 0.001},
    "novograd fused (Triton)": {"name": "novograd", "lr": 0.01, "weight_decay": 0.001},
    "sgd": {"name": "sgd", "lr": 0.1, "weight_decay": 1e-4},
    "adam": {"name": "adam", "lr": 1e-3},
    "adamw": {"name": "adamw", "lr": 1e-3, "weight_decay": 0.01},
}
SHAPES = ((64, 3, 7, 7), (1000, 64), (64,), (4097,), (1,))
OPTIMIZER_LIMITS = {torch.float64: 1e-12, torch.float32: 1e-5}
TASK_LIMIT = 1e-8  # float64: another order of summation, and cuDNN's algorithms


def check_gpu(steps: int = 50, overrides: Sequence[str] = ("scale=paper",)) -> dict[str, Any]:
    """Everything, as the record that is written; prints a line for each part."""
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
    for row in LARGE_ROWS:
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
    for name, options in OPTIMIZERS.items():
        for dtype, limit in OPTIMIZER_LIMITS.items():
            ends = [_five_updates(options, dtype, device, name) for device in ("cpu", "cuda")]
            error = max(_difference(a, b) for a, b in zip(*ends, strict=True))
            key = f"{name}, {str(dtype).removeprefix('torch.')}"
            found[key] = {"difference": error, "limit": limit, "within": error <= limit}
            _tell(key, f"differs from the CPU by {error:.1e} (limit {limit:.0e})")
    return found


def _five_updates(
    options: dict[str, Any], dtype: torch.dtype, device: str, name: str
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    draw = [torch.randn(s, generator=generator, dtype=torch.float64) for s in SHAPES]
    params = [nn.Parameter(t.to(device, dtype)) for t in draw]
    given = {key: value for key, value in options.items() if key != "name"}
    optimizer: Any = build_optimizer(options["name"], params, **given)
    if "Triton" in name and device == "cuda":
        for group in optimizer.param_groups:
            group["fused"] = True
    for _ in range(5):
        for p in params:
            gradient = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            p.grad = gradient.to(device, dtype)
        optimizer.step()
    return [p.detach().cpu().double() for p in params]


def compare_tasks() -> dict[str, Any]:
    """Training mode without dropout and dither, whose draws differ between devices."""
    found = {}
    dither, features.DITHER = features.DITHER, 0.0
    try:
        with tempfile.TemporaryDirectory() as folder:
            for task, row in ROWS.items():
                overrides = [f"experiment={row}", "scale=smoke", "hardware=cpu"]
                spec: Any = make_run_spec([*overrides, f"paths.data={folder}"])
                gradients = [_gradients(spec.task, device) for device in ("cpu", "cuda")]
                error = max(_difference(a, b) for a, b in zip(*gradients, strict=True))
                found[task] = {"difference": error, "limit": TASK_LIMIT}
                found[task]["within"] = error <= TASK_LIMIT
                _tell(task, f"loss and gradients differ from the CPU's by {error:.1e}")
    finally:
        features.DITHER = dither
    return found


def _gradients(task: Any, device: str) -> list[Tensor]:
    """The loss of the first training batch and all gradients, in float64."""
    torch.manual_seed(1)
    model = task.build_model().double().to(device)
    for module in model.modules():
        for name in ("p", "dropout", "attention_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    batch = next(iter(task.train_stream(Shard(), 0))).to(device)
    total = task.loss(model, batch, None).total
    total.backward()
    found = [total, *(p.grad for p in model.parameters() if p.grad is not None)]
    return [t.detach().to_dense().cpu() for t in found]


def _difference(a: Tensor, b: Tensor) -> float:
    """The largest difference, relative to the largest number of the tensor."""
    difference = float((a - b).abs().max().item() / (a.abs().max().item() or 1.0))
    return math.inf if math.isnan(difference) else difference


def _describe_memory(found: dict[str, Any]) -> str:
    return f"peak {found['peak_gb']:.1f} GB" + ("" if found["fits"] else ": does not fit")


def _describe_speed(found: dict[str, Any]) -> str:
    waits = "data not prepared"
    if found["data_wait"] is not None:
        waits = f"waits for data {found['data_wait']:.1%} of the time"
    return (
        f"{found['units_per_s']:,.0f} {found['unit']}s/s, {found['node_hours']:,.1f} h on {NODE} "
        f"GPUs, {waits}"
    )


def write_record(record: dict[str, Any], folder: Path = ROOT / "results" / "bench") -> Path:
    """A JSON file, and a page beside it."""
    name = record["machine"]["gpu"].split(" (")[0].lower().replace(" ", "-")
    path = folder / f"gpu-{name}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    path.with_suffix(".md").write_text(page(record))
    return path


def page(record: dict[str, Any]) -> str:
    """The record for a reader."""
    machine = record["machine"]
    about = f"{machine['gpus']} GPUs, torch {machine['torch']}, CUDA {machine['cuda']}"
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
