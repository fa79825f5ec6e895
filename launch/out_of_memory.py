"""What a run that is too large for its GPU tells its user."""

from __future__ import annotations

from typing import Any


def describe_out_of_memory(config: Any, task: Any) -> str:
    """The row, its micro-batch, the peak and what can be set; `task` is the task's class."""
    import torch

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    peak, whole = torch.cuda.max_memory_allocated() / 1e9, properties.total_memory / 1e9
    remedies = []
    if task.can_checkpoint_activations and not config.hardware.checkpoint_activations:
        remedies.append("hardware.checkpoint_activations=true keeps the recipe and needs less")
    remedies.append("a GPU with more memory")
    micro = config.batch.micro
    if micro % 2 == 0:
        halved = f"batch.micro={micro // 2}, twice the accumulation"
        if task.normalises_batches:
            halved += ", is another recipe, as batch norm sees fewer examples"
        remedies.append(halved)
    return (
        f"out of GPU memory: {config.experiment} with batch.micro={micro} in "
        f"{config.hardware.precision} had {peak:.1f} GB allocated at its peak, of {whole:.1f} GB "
        f"on {properties.name}. What can be done: {'; '.join(remedies)}"
    )
