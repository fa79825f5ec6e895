"""Whether two prepared sets are the same data: the bits of one training step and one evaluation."""

from __future__ import annotations

from hashlib import sha256
from itertools import islice

import torch

from tasks.base import Shard, Task


def bits_after_one_step(task: Task) -> str:
    """SHA-256 of the weights after a step of plain gradient descent, and of what is evaluated."""
    task.prepare_data()
    torch.manual_seed(0)
    model = task.build_model().train()
    stream = task.train_stream(Shard(), 0)
    for batch in islice(stream, task.context.micro_batches):
        out = task.loss(model, batch, None)
        (out.total / out.weight).backward()
    digest = sha256()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=0.1)
            digest.update(parameter.numpy().tobytes())
    for batch in task.eval_batches(task.splits[0], Shard()):
        for name in sorted(batch.tensors):
            digest.update(batch.tensors[name].contiguous().numpy().tobytes())
    return digest.hexdigest()
