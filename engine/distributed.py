"""The processes of a run: the only file of the engine that knows torch.distributed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

PIECE_BYTES = 2**25  # of a tensor that is gathered


class Group:
    """This process among the others. With one process nothing is communicated."""

    def __init__(self, rank: int, world: int, device: torch.device) -> None:
        self.rank = rank
        self.world = world
        self.device = device

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.world > 1:
            dist.all_reduce(tensor)
        return tensor

    def gather(self, value: Any) -> list[Any]:
        """Everybody's value, in the order of ranks, for everybody."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value)
        return values

    def gather_to_first(self, value: Any) -> list[Any]:
        """Everybody's value for the first process, an empty list for the others."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world if self.is_first else []
        dist.gather_object(value, values if self.is_first else None)
        return values

    def gather_tensors_to_first(self, tensors: list[Tensor]) -> list[list[Tensor]]:
        """Everybody's tensors on the first process's host, an empty list for the others.

        Tensors of equal shapes on all processes travel over the device's own connection, in pieces
        that need little memory there; others are pickled.
        """
        if self.world == 1:
            return [[t.detach().cpu() for t in tensors]]
        kinds = self.gather([(tuple(t.shape), t.dtype) for t in tensors])
        if any(kind != kinds[0] for kind in kinds):
            return self.gather_to_first([t.detach().cpu() for t in tensors])
        by_tensor = [self._gather_pieces(t.detach()) for t in tensors]
        ranks = range(self.world if self.is_first else 0)
        return [[parts[rank] for parts in by_tensor] for rank in ranks]

    def _gather_pieces(self, tensor: Tensor) -> list[Tensor]:
        kept = self.world if self.is_first else 0
        copies = [torch.empty(tensor.shape, dtype=tensor.dtype) for _ in range(kept)]
        piece = PIECE_BYTES // tensor.element_size()
        for start in range(0, tensor.numel(), piece):
            own = tensor.reshape(-1)[start : start + piece]
            received = [torch.empty_like(own) for _ in range(self.world)]
            if own.is_cuda:  # NCCL has no gather of its own
                dist.all_gather(received, own)
            else:
                dist.gather(own, received if self.is_first else None)
            for copy, part in zip(copies, received, strict=False):
                copy.view(-1)[start : start + piece] = part
        return copies

    def wait_for_all(self) -> None:
        if self.world > 1:
            dist.barrier()

    def average_buffers(self, module: nn.Module) -> None:
        """Makes floating-point buffers (batch-norm statistics) the mean over processes."""
        if self.world == 1:
            return
        buffers = [b for b in module.buffers() if b.is_floating_point()]
        if buffers:
            flat = torch.cat([b.detach().reshape(-1).double() for b in buffers])
            dist.all_reduce(flat)
            flat /= self.world
            sizes = [b.numel() for b in buffers]
            for buffer, part in zip(buffers, torch.split(flat, sizes), strict=True):
                buffer.copy_(part.reshape(buffer.shape))

    def wrap(self, model: nn.Module) -> nn.Module:
        """DDP around the model where there is more than one process."""
        if self.world == 1:
            return model
        ids = [self.device.index] if self.device.type == "cuda" else None
        # Statistics stay each process's own between evaluations: see average_buffers.
        return DistributedDataParallel(
            model, device_ids=ids, broadcast_buffers=False, gradient_as_bucket_view=True
        )

    def without_sync(self, model: nn.Module, last: bool) -> AbstractContextManager[Any]:
        """Gradients are communicated in the last micro-batch of a step only."""
        if self.world == 1 or last:
            return nullcontext()
        assert isinstance(model, DistributedDataParallel)
        return model.no_sync()


@contextmanager
def joined(device_type: str, timeout_s: float) -> Iterator[Group]:
    """The group that torchrun's environment variables describe."""
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    local = int(os.environ.get("LOCAL_RANK", 0))
    device = torch.device(device_type, local) if device_type == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if world > 1:
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
    try:
        yield Group(rank, world, device)
    finally:
        if world > 1:
            dist.destroy_process_group()


def is_lost_contact(error: BaseException | None) -> bool:
    """True if another process is gone or silent: what is wrong is wrong there, not here."""
    while error is not None:
        if isinstance(error, dist.DistError):
            return True
        # Gloo's are bare RuntimeErrors that begin with a place in its sources, as are those about
        # a loader process that was killed, by a system without memory for instance.
        marks = ("/gloo/", "DataLoader worker (pid")
        if isinstance(error, RuntimeError) and any(mark in str(error) for mark in marks):
            return True
        error = error.__cause__ or error.__context__
    return False
