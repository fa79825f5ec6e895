"""What a run logs of its GPU: peak memory, and which share of the arithmetic it could do it does.

MFU (model FLOP utilisation) is the rate of the model's own operations, forward and backward,
divided by the GPU's peak for dense matrix products in half precision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tasks.base import Task

if TYPE_CHECKING:
    import torch

# TFLOP/s of dense matrix products with fp16 or bf16 inputs, from NVIDIA's data sheets (V100: fp16;
# it has no bf16). The first name that is part of a device's own counts.
PEAK_TFLOPS = {
    "H100 PCIe": 756.0,
    "H100 NVL": 835.0,
    "H100": 989.4,
    "H200": 989.4,
    "A100": 312.0,
    "A10G": 70.0,
    "L40S": 362.0,
    "V100": 125.0,
    "T4": 65.0,
}


def peak_tflops(device_name: str) -> float | None:
    """None for a GPU that the table does not have."""
    return next((peak for name, peak in PEAK_TFLOPS.items() if name in device_name), None)


def count_flops(task: Task) -> int:
    """Operations of a typical micro-batch, forward and backward, counted without calculating."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        model = task.build_model()
    counter = FlopCounterMode(display=False)
    with counter:
        task.loss(model, task.example_batch().to("meta"), None).total.backward()  # type: ignore[no-untyped-call]
    return int(counter.get_total_flops())


class GpuMeters:
    """Read with the other meters; nothing waits for the device."""

    def __init__(self, task: Task, device: torch.device, processes: int) -> None:
        self._device = device if device.type == "cuda" else None
        self._whole_peak: float | None = None  # FLOP/s of all processes' GPUs
        self._flops_per_unit = 0.0
        if self._device is not None:
            import torch

            peak = peak_tflops(torch.cuda.get_device_name(device))
            if peak is not None:
                self._whole_peak = peak * 1e12 * processes
                self._flops_per_unit = count_flops(task) / task.example_batch().units

    def read(self, units_per_s: float) -> dict[str, float]:
        if self._device is None:
            return {}
        import torch

        found = {"gpu/peak_memory_gb": torch.cuda.max_memory_allocated(self._device) / 1e9}
        if self._whole_peak is not None:
            found["gpu/mfu"] = units_per_s * self._flops_per_unit / self._whole_peak
        return found
