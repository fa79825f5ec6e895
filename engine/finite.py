"""NaN and infinities: found before they are saved, and named with the tensor that has them.

A step's loss is looked at on the host in every step (engine.step). Weights, optimizer states and
buffers are looked at where the host waits for the device anyway: when a row is logged, and before
an evaluation or a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from engine.precision import autocast
from engine.step import NonFiniteLoss, seed_device
from tasks.base import Batch, Shard
from tasks.seeding import derive_seed

if TYPE_CHECKING:
    from engine.trainer import Trainer


class NonFinite(Exception):
    """A tensor or a metric that is not finite; the message names it."""


@dataclass(frozen=True)
class Cause:
    """Where values that are not finite came from."""

    text: str
    in_data: bool


def find_non_finite(tensors: Iterable[tuple[str, Tensor]]) -> str | None:
    """The first of named tensors with a NaN or an infinity; waits for the device once."""
    found = [(name, t.detach()) for name, t in tensors if t.is_floating_point()]
    if not found:
        return None
    norms = torch._foreach_norm([tensor for _, tensor in found])
    # A norm also overflows where all elements are finite: those tensors are looked at on the host.
    suspects = torch.stack([norm.double() for norm in norms]).isfinite().logical_not().tolist()
    for (name, tensor), is_suspect in zip(found, suspects, strict=True):
        if is_suspect and not bool((on_host := tensor.cpu()).isfinite().all()):
            return f"{name} {_describe(on_host)}"
    return None


def _describe(tensor: Tensor) -> str:
    bad = tensor.isfinite().logical_not().flatten()
    value = tensor.flatten()[bad][0].item()
    return f"is {value}" if tensor.numel() == 1 else f"has {int(bad.sum())} elements like {value}"


def optimizer_tensors(optimizer: Any, module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The optimizer's state, by the names of the weights."""
    for name, parameter in module.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                yield f"the optimizer's {key} of {name}", value


class FiniteState:
    """Checks what a run would save; knows at which step all was finite the last time."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer, self._finite_at = trainer, trainer.at.step

    def check(self) -> None:
        """NonFinite, on all processes, if a weight, a buffer or an optimizer state is not finite.

        Buffers are each process's own, so all processes learn what one has found.
        """
        trainer = self._trainer
        named = [
            *((f"the weight {name}", p) for name, p in trainer.module.named_parameters()),
            *((f"the buffer {name}", b) for name, b in trainer.module.named_buffers()),
            *optimizer_tensors(trainer.optimizer, trainer.module),
        ]
        found = next(filter(None, trainer.group.gather(find_non_finite(named))), None)
        if found is not None:
            raise NonFinite(f"{found} (all was finite after step {self._finite_at})")
        self._finite_at = trainer.at.step


def cause_of(problem: NonFiniteLoss, trainer: Trainer) -> Cause:
    """What made the loss of a step NaN or infinite: the same answer on all processes.

    The step's batches are read again, which gives the same ones, and are looked at; then the
    weights; then the outputs of the model's parts, one after the other.
    """
    shard = Shard(trainer.group.rank, trainer.group.world)
    own: Cause | None = None
    with closing(trainer.task.train_stream(shard, problem.position)) as batches:  # type: ignore[type-var]
        for k in range(trainer.plan.accumulation):
            micro_batch = shard.rank * trainer.plan.accumulation + k
            own = own or _cause_in(trainer, next(batches), problem, micro_batch, k)
    causes = [cause for cause in trainer.group.gather(own) if cause is not None]
    causes.sort(key=lambda cause: not cause.in_data)
    return causes[0] if causes else Cause("no tensor of the model or the data", in_data=False)


def _cause_in(
    trainer: Trainer, batch: Batch, problem: NonFiniteLoss, micro_batch: int, k: int
) -> Cause | None:
    where = f"micro-batch {micro_batch}"
    batch = batch.to(trainer.device)
    if found := find_non_finite_batch(batch):
        return Cause(f"{found} in {where}", in_data=True)
    if found := find_non_finite(trainer.module.named_parameters()):
        return Cause(f"the weight {found}", in_data=False)
    seed_device(
        trainer.device,
        derive_seed("dropout", trainer.config.seed, problem.position, micro_batch),
    )
    found = _first_output(trainer, batch, trainer.stepper.carry[k])
    return Cause(f"{found} in {where}", in_data=False) if found else None


def find_non_finite_batch(batch: Batch) -> str | None:
    """The tensor of a batch with a NaN or an infinity, and its first such row."""
    for name, tensor in batch.tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            rows = tensor.isfinite().logical_not().flatten(1).any(1) if tensor.ndim > 1 else None
            row = "" if rows is None else f"[{int(rows.int().argmax())}]"
            return f"the input {name}{row} is not finite"
    return None


def _first_output(trainer: Trainer, batch: Batch, carry: Any) -> str | None:
    """The first part of the model whose output is not finite, or the loss."""
    found: list[str] = []

    def look(name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if not found and isinstance(output, Tensor) and output.is_floating_point():
                if not bool(output.isfinite().all()):
                    found.append(f"the output of {name or 'the model'} is not finite")

        return hook

    hooks = [m.register_forward_hook(look(name)) for name, m in trainer.module.named_modules()]
    try:
        with torch.no_grad(), autocast(trainer.config.hardware.precision, trainer.device):
            total = trainer.task.loss(trainer.module, batch, carry).total
    finally:
        for hook in hooks:
            hook.remove()
    if not found and not bool(total.isfinite()):
        found.append("the loss is not finite")
    return found[0] if found else None
