"""Which GPUs this machine has, whether torch can use them, and what `auto` means on them."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.config import ConfigProblem, HardwareConfig

MOST_WORKERS = 12  # loading processes of one GPU
BF16_FROM = (8, 0)  # compute capability
NVIDIA = Path("/proc/driver/nvidia")
ON_CPU = "or name hardware=cpu to run without GPUs"


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU, as torch sees it."""

    name: str
    capability: tuple[int, int]
    gigabytes: float

    @property
    def has_bf16(self) -> bool:
        return self.capability >= BF16_FROM

    def __str__(self) -> str:
        major, minor = self.capability
        return f"{self.name} (compute capability {major}.{minor}, {self.gigabytes:.0f} GB)"


def check_devices(device: str) -> None:
    """ConfigProblem if there are NVIDIA GPUs that a run of this device would not or could not use.

    A run must not end up on the CPU, unasked, because a driver is too old.
    """
    import torch

    if device == "cpu":
        return
    if not torch.cuda.is_available():
        installed = installed_gpus()
        if installed and os.environ.get("CUDA_VISIBLE_DEVICES") != "":
            raise ConfigProblem([_unusable(installed)])
        return
    built_for = torch.cuda.get_arch_list()
    for number in range(torch.cuda.device_count()):
        gpu = gpu_of(number)
        if built_for and not is_built_for(gpu.capability, built_for):
            kernels = ", ".join(sorted(_capability(arch) for arch in built_for))
            raise ConfigProblem(
                [
                    f"GPU {number} is a {gpu}, but torch {torch.__version__} has kernels for "
                    f"{kernels} only: install a build for it (make setup TORCH_INDEX=…, see "
                    f"docs/gpu.md), {ON_CPU}"
                ]
            )


def is_built_for(capability: tuple[int, int], built_for: list[str]) -> bool:
    """Kernels (sm_) run on the same major version from their minor on, PTX (compute_) on later."""
    for arch in built_for:
        kind, _, number = arch.partition("_")
        digits = re.match(r"\d+", number)
        if digits is None:
            continue
        major, minor = divmod(int(digits[0]), 10)
        exactly = major == capability[0] and minor <= capability[1]
        if exactly if kind == "sm" else (major, minor) <= capability:
            return True
    return False


def gpu_of(number: int = 0) -> Gpu:
    """A visible GPU by its number."""
    import torch

    properties = torch.cuda.get_device_properties(number)
    capability = (properties.major, properties.minor)
    return Gpu(properties.name, capability, properties.total_memory / 2**30)


def choose_for_device(hardware: HardwareConfig, cores: int) -> HardwareConfig:
    """`auto` of precision and loading processes, for a device that is known and here."""
    on_gpu = hardware.device == "cuda"
    precision, workers = hardware.precision, hardware.data_workers
    if precision == "auto":
        precision = ("bf16" if _first_gpu().has_bf16 else "fp16") if on_gpu else "fp32"
    if isinstance(workers, str):
        workers = workers_of(cores * hardware.nodes, int(hardware.processes)) if on_gpu else 0
    return replace(hardware, precision=precision, data_workers=workers)


def workers_of(cores: int, gpus: int) -> int:
    """Loading processes of each GPU: a core of its share is left to the training process."""
    return max(1, min(MOST_WORKERS, cores // gpus - 1))


def describe_device(config: Any) -> str:
    """What a run uses: for the line that a launch prints."""
    import torch

    hardware = config.hardware
    on_gpu = hardware.device == "cuda"
    device = gpu_of() if on_gpu and torch.cuda.is_available() else hardware.device
    where = f" on {hardware.nodes} nodes" if hardware.nodes > 1 else ""
    parts = [f"{hardware.processes} × {device}{where}", hardware.precision]
    if on_gpu:
        parts += ["TF32"] * hardware.tf32 + [f"attention {attention_kernels(hardware)}"]
        parts.append(f"{hardware.data_workers} loader workers each")
    parts.append(f"{hardware.threads} threads each")
    parts.append(f"{config.optimizer.get('name')} {optimizer_implementation(config)}")
    return ", ".join(parts)


def attention_kernels(hardware: HardwareConfig) -> str:
    """cuDNN's are off: see engine.precision."""
    half = hardware.precision in ("bf16", "fp16")
    return "flash or memory-efficient" if half and _first_gpu().has_bf16 else "memory-efficient"


def optimizer_implementation(config: Any) -> str:
    """How the update is calculated: see optim.factory and optim.novograd."""
    on_gpu = config.hardware.device == "cuda"
    if config.optimizer.get("name") != "novograd":
        return "fused"
    fused = config.optimizer.get("fused")
    if fused in (None, "auto"):
        return "foreach" if on_gpu else "fused (C++)"
    return ("fused (Triton)" if on_gpu else "fused (C++)") if fused else "foreach"


def _first_gpu() -> Gpu:
    """An A100 stands for the GPUs of a plan that is made where there are none."""
    import torch

    return gpu_of() if torch.cuda.is_available() else Gpu("CUDA GPU", (8, 0), 80.0)


def installed_gpus() -> int:
    """GPUs that NVIDIA's driver knows, whatever torch thinks of it."""
    return len(list((NVIDIA / "gpus").glob("*")))


def driver_version() -> str | None:
    """Of NVIDIA's kernel module; None where it is not loaded."""
    with suppress(OSError):
        if found := re.search(r"Kernel Module\D*([\d.]+)", (NVIDIA / "version").read_text()):
            return found[1]
    return None


def _unusable(installed: int) -> str:
    import torch

    built = torch.version.cuda
    if built is None:
        reason = f"torch {torch.__version__} is built without CUDA"
    else:
        reason = f"torch {torch.__version__} is built for CUDA {built}"
        if driver := driver_version():
            reason += f", and the driver is {driver}"
        if int(built.split(".")[0]) >= 13:
            reason += "; CUDA 13 needs driver 580 or later"
    return (
        f"this machine has {installed} NVIDIA GPUs, but torch can't use them: {reason}. Update the "
        "driver, or install a build for an older CUDA (make setup TORCH_INDEX=…, see docs/gpu.md), "
        f"{ON_CPU}"
    )


def _capability(arch: str) -> str:
    digits = arch.partition("_")[2]
    return f"{digits[:-1]}.{digits[-1]}" if digits.isdigit() else arch
