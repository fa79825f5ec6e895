"""Number formats: autocast, loss scaling, TF32, determinism, and what is stated about them."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from engine.config import HardwareConfig

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def configure(
    hardware: HardwareConfig,
    device: torch.device,
    threads: int | None,
    *,
    fixed_shapes: bool = False,
) -> None:
    """Process-wide switches. `deterministic` trades speed for bit-equal repeats on a GPU.

    cuDNN tries out its algorithms (`benchmark`) only for a task of `fixed_shapes`: each new shape
    costs a search, at other steps on every process. It does no attention: some of its kernels
    round the dropout probability to sixteenths, and it builds a graph for every new shape.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    # On a GPU only: the first of these switches is also read by matrix products on some CPUs.
    tf32 = hardware.tf32 and device.type == "cuda"
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    searches = device.type == "cuda" and fixed_shapes and not hardware.deterministic
    torch.backends.cudnn.benchmark = searches
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cudnn.deterministic = hardware.deterministic
    if hardware.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if hardware.deterministic or torch.are_deterministic_algorithms_enabled():  # imports a compiler
        torch.use_deterministic_algorithms(hardware.deterministic, warn_only=True)


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """The context in which losses and counts are calculated; parameters stay fp32."""
    dtype = _AUTOCAST.get(precision)
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype)


def make_scaler(precision: str, device: torch.device) -> torch.amp.GradScaler:
    """Loss scaling for fp16, as the paper's code did it: 2^14 at first, doubled every 2,000."""
    return torch.amp.GradScaler(
        device.type, enabled=precision == "fp16", init_scale=2.0**14, growth_interval=2000
    )


def parameter_dtype(precision: str) -> torch.dtype:
    """fp64 is for proofs; everything else keeps fp32 parameters."""
    return torch.float64 if precision == "fp64" else torch.float32
