"""`python -m scripts.bench scaling`: what a step, an evaluation and a checkpoint cost, counted.

Nothing is timed. The parameters of the paper's models are counted without memory for them, and the
collectives of a step are counted in a process group of any size whose other members do not exist
(torch's fake back end), through the engine's own `Group`. `analysis.scaling` has the formulas.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks.contest import BenchOptions, Findings
from engine.distributed import Group
from launch.run_spec import RunSpec, make_run_spec

ROWS = (
    "imagenet/novograd_100ep",
    "imagenet/novograd_32k_90ep",
    "librispeech/novograd",
    "librispeech/novograd_32k",
    "wmt14/novograd",
    "wikitext103/novograd",
)
WORLDS = (2, 8, 64, 1024)
ACCUMULATION = 2
TALLY = 3  # float64: loss, weight, stop signals


def measure(options: BenchOptions) -> Findings:
    """Counts; the same on every machine."""
    rows = [count_row(experiment) for experiment in ROWS]
    return Findings([], {"rows": rows, "steps": [count_step(world) for world in WORLDS]})


def count_row(experiment: str) -> dict[str, Any]:
    """What the formulas need of one row of the paper."""
    words = [f"experiment={experiment}", "scale=paper", "hardware=cpu"]
    spec = make_run_spec(words, need_data=False)
    with torch.device("meta"):
        model = spec.task.build_model()
    parameters = [p for p in model.parameters() if p.requires_grad]
    buffers = list(model.buffers())
    return {
        "experiment": experiment,
        "parameters": sum(p.numel() for p in parameters),
        "tensors": len(parameters),
        "buffer_bytes": sum(b.numel() * b.element_size() for b in buffers),
        "averaged_numbers": sum(b.numel() for b in buffers if b.is_floating_point()),
        "buckets": len(buckets_of(parameters)),
        "global_batch": spec.plan.global_batch,
        "micro": spec.plan.micro,
        "micro_batches": spec.plan.micro_batches,
        "carry_bytes": carry_bytes(spec),
        "counts_bytes": len(pickle.dumps({"tokens": 1.0, "nll": 1.0, "errors": 1.0})),
    }


def carry_bytes(spec: RunSpec) -> int:
    """Of the memories of all sequences, in float32: only Transformer-XL has them."""
    model, data = spec.config.model, spec.config.data
    if spec.config.task.name != "wikitext103":
        return 0
    per_sequence = model["layers"] * data["memory"] * model["d_model"]
    return 4 * int(per_sequence) * (spec.plan.global_batch // int(data["segment"]))


def buckets_of(parameters: list[nn.Parameter]) -> list[list[int]]:
    """Which gradients DDP reduces together: a first megabyte, then 25 at a time, from the end."""
    limits = [dist._DEFAULT_FIRST_BUCKET_BYTES, 25 * 2**20]
    tensors = [torch.empty(p.shape, device="meta") for p in reversed(parameters)]
    found: list[list[int]] = dist._compute_bucket_assignment_by_size(tensors, limits)[0]
    return found


@contextmanager
def nobody_else(world: int) -> Iterator[Group]:
    """A group of so many processes, of which this is the only one."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    try:
        yield Group(0, world, torch.device("cpu"))
    finally:
        dist.destroy_process_group()


def count_step(world: int) -> dict[str, int]:
    """Collectives and bytes of a step of two micro-batches, of a model of some megabytes."""
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(16)))
    sizes: list[int] = []

    def reduce(state: object, bucket: Any) -> Any:
        sizes.append(bucket.buffer().nbytes)
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    reduce.__annotations__.clear()  # DDP rejects those that are strings

    def reduce_tensor(tensor: Tensor) -> None:
        sizes.append(tensor.nbytes)

    with nobody_else(world) as group, mock.patch.object(dist, "all_reduce", reduce_tensor):
        wrapped: Any = group.wrap(model)
        wrapped.register_comm_hook(None, reduce)
        for _ in range(2):  # DDP forms its buckets anew after the first step
            sizes.clear()
            for k in range(ACCUMULATION):
                with group.without_sync(wrapped, last=k == ACCUMULATION - 1):
                    wrapped(torch.ones(1, 512)).sum().backward()
            group.sum(torch.zeros(TALLY, dtype=torch.float64))
    gradients = sum(4 * p.numel() for p in model.parameters())
    found = {"world": world, "collectives": len(sizes), "bytes": sum(sizes)}
    return found | {"gradient_bytes": gradients}
