"""One optimizer step: exact accumulation over micro-batches and processes.

    for each micro-batch k of this process:
        (total_k * R / W_plan).backward()        gradients are communicated at the last k only
        tally += [total_k, weight_k]             on the device
    tally = sum over processes;  gradients *= W_plan / weight
    transforms (clipping, LARC);  optimizer.step

R processes; DDP takes the mean over them, hence the R. W_plan, the planned batch, is only a
prescale that keeps numbers near one: what divides is the true weight of the whole step. So the
gradient is that of the large batch, to rounding, also where micro-batches differ in weight.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from engine.distributed import Group
from engine.plan import Plan
from engine.precision import autocast
from optim.statistics import Statistics, measure_step
from optim.transforms import Gradients, Transform, transform_gradients
from tasks.base import Batch, Carry, Task
from tasks.seeding import derive_seed


class NonFiniteLoss(Exception):
    """The loss of a step is not finite: no process has saved or evaluated what it made.

    `position` is that of the step's batches in the data.
    """

    def __init__(self, loss: float, step: int, position: int) -> None:
        super().__init__(f"the loss is {loss} at step {step}")
        self.step, self.position = step, position


def seed_device(device: torch.device, seed: int) -> None:
    """Seeds the generator that this device draws from; torch.manual_seed seeds all devices."""
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


@dataclass(frozen=True)
class Rescale:
    """The first transform of every chain: from the planned weight to the true one."""

    factor: Tensor

    def factors(self, gradients: Gradients) -> Tensor:
        return self.factor


@dataclass
class StepResult:
    """What a step leaves for the log; tensors stay on the device until somebody reads them."""

    tally: Tensor  # [total, weight, processes that received a stop signal]
    grad_norm: Tensor | None
    units: int  # of this process
    skipped: bool  # fp16 overflow: the gradients were thrown away
    asked_to_stop: bool  # the same on every process; on a GPU known one step late
    statistics: Statistics | None = None  # of the optimizer, where asked for and not skipped


@dataclass(frozen=True)
class Tally:
    """A step's [total, weight, stop signals]; a copy on the host is to be read once `ready`."""

    values: Tensor
    step: int
    position: int
    ready: Any = None


class Stepper:
    """Runs steps; holds the carry of this process's micro-batches."""

    def __init__(
        self,
        task: Task,
        model: nn.Module,
        optimizer: Any,
        scaler: torch.amp.GradScaler,
        transforms: Sequence[Transform],
        plan: Plan,
        group: Group,
        seed: int,
        precision: str,
    ) -> None:
        self.task, self.model, self.optimizer = task, model, optimizer
        self.scaler, self.transforms = scaler, list(transforms)
        self.plan, self.group, self.seed, self.precision = plan, group, seed, precision
        # A group whose rule gives it a learning rate of its own keeps its ratio to the run's.
        own = optimizer.defaults["lr"]
        self.ratios = [g["lr"] / own if own else 1.0 for g in optimizer.param_groups]
        self.carry: list[Carry] = [None] * plan.accumulation
        self._previous: Tally | None = None
        self._scale: float | None = None  # fp16's loss scale as last read
        self._updated = False
        self._data_wait_s = 0.0  # spent waiting for batches, by this process
        optimizer.register_step_post_hook(self._note_update)

    def run(
        self,
        step: int,
        position: int,
        batches: Iterator[Batch],
        *,
        want_norm: bool,
        stop: bool,
        measure: bool = False,
    ) -> StepResult:
        """Step number `step` on the batches of `position` (more than step after fp16 skips).

        `measure` takes the optimizer's statistics, which change nothing in the step.
        """
        lr = self.plan.schedule(step)
        for group, ratio in zip(self.optimizer.param_groups, self.ratios, strict=True):
            group["lr"] = lr * ratio
        self.optimizer.zero_grad()
        tally, units = self._accumulate(position, batches)
        if stop:
            tally[2].fill_(1.0)
        self.group.sum(tally)
        values = self._look_at(Tally(tally, step, position), now=want_norm)
        norm = self._prepare_gradients(tally, values, want_norm)
        skipped, statistics = self._measured_update() if measure else (self._update(), None)
        return StepResult(tally, norm, units, skipped, values[2] > 0, statistics)

    def _accumulate(self, position: int, batches: Iterator[Batch]) -> tuple[Tensor, int]:
        device, plan = self.group.device, self.plan
        prescale = self.group.world / plan.global_batch
        totals: list[Tensor] = []
        weights: list[Tensor | float] = []
        units, waited = 0, 0.0
        for k in range(plan.accumulation):
            before = time.perf_counter()
            batch = next(batches)
            waited += time.perf_counter() - before
            batch = batch.to(device)
            micro_batch = self.group.rank * plan.accumulation + k
            # Dropout is a function of the micro-batch, not of who calculates it.
            seed_device(device, derive_seed("dropout", self.seed, position, micro_batch))
            with self.group.without_sync(self.model, last=k == plan.accumulation - 1):
                with autocast(self.precision, device):
                    out = self.task.loss(self.model, batch, self.carry[k])
                self.scaler.scale(out.total * prescale).backward()  # type: ignore[no-untyped-call]
            self.carry[k] = out.carry
            totals.append(out.total.detach())
            weights.append(out.weight)
            units += batch.units
        self._data_wait_s += waited
        return _sum_in_float64(totals, weights, device), units

    def _look_at(self, tally: Tally, now: bool) -> list[float]:
        """The tally on the host: on a GPU that of the step before, which need not be waited for."""
        if now or tally.values.device.type == "cpu":
            self.check_last()
            self._previous = None
            return self._check(tally)
        copy = torch.empty(tally.values.shape, dtype=tally.values.dtype, pin_memory=True)
        copy.copy_(tally.values, non_blocking=True)
        ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
        ready.record()
        previous, self._previous = self._previous, replace(tally, values=copy, ready=ready)
        return [0.0] * copy.numel() if previous is None else self._check(previous)

    def check_last(self) -> None:
        """NonFiniteLoss if the last step's loss was not finite, which `run` has not looked at yet.

        Called before weights are saved or evaluated.
        """
        if self._previous is not None:
            self._check(self._previous)

    def take_data_wait(self) -> float:
        """Seconds that this process has waited for batches since the last call."""
        waited, self._data_wait_s = self._data_wait_s, 0.0
        return waited

    def _check(self, tally: Tally) -> list[float]:
        """fp16 is left alone: its loss scale may overflow, and the step is then skipped."""
        if tally.ready is not None:
            tally.ready.synchronize()
        values: list[float] = tally.values.tolist()
        if not self.scaler.is_enabled() and not math.isfinite(values[0]):
            raise NonFiniteLoss(values[0], tally.step, tally.position)
        return values

    def _prepare_gradients(
        self, tally: Tensor, values: list[float], want_norm: bool
    ) -> Tensor | None:
        """Exact weights, transforms; returns the gradient norm where it is to be had."""
        if self.scaler.is_enabled():
            self.scaler.unscale_(self.optimizer)
        on_plan = tally.device.type == "cpu" and values[1] == self.plan.global_batch
        if on_plan and not self.transforms and not want_norm:
            return None
        factor = self.plan.global_batch / tally[1]
        chain: list[Transform] = [] if on_plan else [Rescale(factor)]
        return transform_gradients(self.optimizer, [*chain, *self.transforms]) * factor

    def _update(self) -> bool:
        """True if an fp16 overflow made the scaler skip the update; waits for the device once."""
        if not self.scaler.is_enabled():
            self.optimizer.step()
            return False
        # A fused optimizer is told of the overflow on the device and skips the update itself.
        # Before the update of any other the scaler waits and looks, so the call tells.
        asks_device = getattr(self.optimizer, "_step_supports_amp_scaling", False)
        if asks_device and self._scale is None:
            self._scale = self.scaler.get_scale()
        self._updated = False
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if not asks_device:
            return not self._updated
        before, self._scale = self._scale, self.scaler.get_scale()
        assert before is not None
        return self._scale < before

    def _measured_update(self) -> tuple[bool, Statistics | None]:
        """NovoGrad knows its statistics; of others the weights are compared with a copy."""
        own = getattr(self.optimizer, "statistics", None)
        if own is not None:
            skipped = self._update()
            return skipped, None if skipped else own()
        with measure_step(self.optimizer) as measured:
            skipped = self._update()
        return skipped, None if skipped else measured.statistics

    def _note_update(self, *_: Any) -> None:
        self._updated = True


def _sum_in_float64(
    totals: list[Tensor], weights: list[Tensor | float], device: torch.device
) -> Tensor:
    """[sum of totals, sum of weights, 0], without waiting for the device."""
    if device.type == "cpu":
        sums = [math.fsum(float(x) for x in numbers) for numbers in (totals, weights)]
        return torch.tensor([*sums, 0.0], dtype=torch.float64)
    tally = torch.zeros(3, dtype=torch.float64, device=device)
    tally[0] = torch.stack(totals).sum(dtype=torch.float64)
    if any(isinstance(weight, Tensor) for weight in weights):
        parts = [torch.as_tensor(weight, device=device).double() for weight in weights]
        tally[1] = torch.stack(parts).sum()
    else:
        # Not `tally[1] = …`, which copies the number from the host and waits for the device.
        tally[1].fill_(math.fsum(float(weight) for weight in weights))
    return tally
