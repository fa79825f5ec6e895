"""What a row takes on GPUs before anybody has run it: peak memory and hours.

Nobody has: the numbers below are assumptions, and `make gpu-check` replaces them by measurements.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from engine.gpu_meters import PEAK_TFLOPS, peak_tflops

NODE = 8  # GPUs
CPU_TFLOPS = 0.05  # sustained by one process on a CPU, about

# Share of a GPU's peak that a task's training is assumed to reach, in half precision. V100 and A100
# of ImageNet, Jasper's V100 and Transformer-XL's follow from throughputs that NVIDIA publishes for
# comparable code (`PUBLISHED`), taken 5 to 15 % lower; the others are guesses from these: H100s
# wait for launches of small kernels (Transformer-XL), for memory and for decoded images.
ASSUMED_MFU: dict[str, dict[str, float]] = {
    "imagenet": {"V100": 0.17, "A100": 0.14, "H100": 0.06},
    "librispeech": {"V100": 0.30, "A100": 0.38, "H100": 0.20},
    "wmt14": {"V100": 0.33, "A100": 0.40, "H100": 0.25},
    "wikitext103": {"V100": 0.11, "A100": 0.10, "H100": 0.055},
}
# NVIDIA's DeepLearningExamples, training throughput of 8 GPUs in mixed precision.
PUBLISHED = {
    "imagenet": "8 × V100: 8,100 images/s; 8 × A100: 16,600 images/s",
    "librispeech": "8 × V100: 253 utterances/s (batch 32), 312 (batch 64)",
    "wmt14": "8 × V100: 235,000 tokens/s (another vocabulary)",
    "wikitext103": "8 × V100: 259,000 tokens/s; 8 × A100: 450,000 tokens/s",
}


class Activations(NamedTuple):
    """What a step needs besides weights, gradients and the optimizer's state, in half precision."""

    per_parameter: float  # in sizes of all weights in float32: their copies, and temporaries
    per_unit: float  # bytes of a unit of the micro-batch, an utterance at its longest
    parameters: int  # of the paper's model, for which alone these numbers hold
    per_unit_checkpointed: float | None = None  # with hardware.checkpoint_activations


# Of the paper's models; fitted to the allocator's peaks on a hollow CUDA, to which a test compares
# them. CUDA's context, NCCL's buffers and cuDNN's workspaces take 2 to 3 GB more.
ACTIVATIONS = {
    "imagenet": Activations(1.9, 40.4e6, 25_549_352),
    "librispeech": Activations(1.5, 173e6, 332_632_349, 35e6),
    "wmt14": Activations(1.6, 280e3, 184_762_368),
    "wikitext103": Activations(2.46, 810e3, 191_950_298),
}


def peak_bytes(config: Any, parameters: int, state_bytes: int) -> float | None:
    """Of one GPU in half precision; `state_bytes` of weights, gradients and optimizer.

    None for models that the numbers do not hold for.
    """
    known = ACTIVATIONS.get(config.task.name)
    if known is None or abs(parameters - known.parameters) > 0.01 * known.parameters:
        return None
    per_unit = known.per_unit
    if config.hardware.checkpoint_activations and known.per_unit_checkpointed is not None:
        per_unit = known.per_unit_checkpointed
    activations: float = per_unit * config.batch.micro
    return state_bytes + known.per_parameter * 4 * parameters + activations


def sustained_tflops(config: Any) -> float:
    """`hardware.tflops` of each process; auto: assumed for the GPU that is here, or an A100."""
    hardware = config.hardware
    if not isinstance(hardware.tflops, str):
        return float(hardware.tflops)
    if hardware.device != "cuda":
        return CPU_TFLOPS
    import torch

    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "A100"
    assumed = ASSUMED_MFU[config.task.name]
    share = next((mfu for gpu, mfu in assumed.items() if gpu in name), min(assumed.values()))
    return share * (peak_tflops(name) or PEAK_TFLOPS["V100"])


def describe_hours(task: str, flops: float) -> str:
    """A line of a plan: eight GPUs of each kind, from all operations of a run."""
    parts = []
    for gpu, mfu in ASSUMED_MFU[task].items():
        hours = flops / (mfu * PEAK_TFLOPS[gpu] * 1e12 * NODE) / 3600
        shown = f"{hours:,.0f}" if hours >= 10 else f"{hours:.2g}"
        parts.append(f"{shown} h on {NODE} × {gpu} ({NODE * hours:,.0f} GPU-hours, MFU {mfu:.0%})")
    return ", ".join(parts)
