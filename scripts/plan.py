"""`python -m scripts.plan experiment=… [key=value …]`: what a run would be, without running it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from engine.config import ConfigProblem
from engine.trainer import build_optimizer_of
from scripts.launch import Prepared, describe, prepare
from tasks.base import DataProblem


@dataclass(frozen=True)
class Cost:
    """What a run takes, counted on tensors without memory."""

    parameters: int
    tensors: int
    flops_per_step: int
    model_bytes: int
    optimizer_bytes: int


def main() -> int:
    """Prints the plan; 2 with a message where the configuration can't be run."""
    try:
        prepared = prepare(sys.argv[1:], need_data=False)
    except (ConfigProblem, DataProblem) as problem:
        print(problem, file=sys.stderr)
        return 2
    print(describe(prepared))
    print(report(prepared, count_cost(prepared)))
    return 0


def count_cost(prepared: Prepared) -> Cost:
    """Builds model and optimizer on the meta device and counts a micro-batch's operations."""
    task, plan = prepared.task, prepared.plan
    with torch.device("meta"):
        model = task.build_model()
    optimizer = build_optimizer_of(prepared.config, model)
    batch = task.example_batch().to("meta")
    counter = FlopCounterMode(display=False)
    with counter:
        task.loss(model, batch, None).total.backward()
    for p in model.parameters():
        p.grad = torch.empty_like(p)
    optimizer.step()
    state = [t for s in optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor)]
    everything = [*model.parameters(), *model.buffers()]
    return Cost(
        parameters=sum(p.numel() for p in model.parameters()),
        tensors=len(list(model.parameters())),
        flops_per_step=counter.get_total_flops() * plan.slots,
        model_bytes=_bytes(everything),
        optimizer_bytes=_bytes(state),
    )


def _bytes(tensors: list[Any]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def report(prepared: Prepared, cost: Cost) -> str:
    """The lines below `describe`'s."""
    plan, hardware = prepared.plan, prepared.config.hardware
    tflops = hardware.tflops * plan.processes
    hours = cost.flops_per_step * plan.steps / (tflops * 1e12) / 3600
    shown = f"{hours:,.0f}" if hours >= 10 else f"{hours:.2g}"
    return "\n".join(
        [
            f"in all     {plan.units:,} {plan.unit}s, evaluated every {plan.eval_every:,} "
            f"steps, saved every {plan.checkpoint_every:,}",
            f"model      {cost.parameters:,} parameters in {cost.tensors} tensors",
            f"memory     model {cost.model_bytes / 1e6:,.1f} MB, gradients "
            f"{cost.parameters * 4 / 1e6:,.1f} MB, optimizer {cost.optimizer_bytes / 1e6:,.1f} MB "
            "per process, without activations",
            f"work       {cost.flops_per_step / 1e12:,.4g} TFLOP per step, "
            f"{cost.flops_per_step * plan.steps / 1e15:,.4g} PFLOP in all",
            f"time       {shown} h if {plan.processes} × {hardware.tflops:g} TFLOP/s are "
            "sustained (hardware.tflops)",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
