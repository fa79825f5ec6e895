"""What a run costs, counted on the meta device without running it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from engine.formats import format_hours
from engine.plan import reach
from launch.gpu_estimate import describe_hours, peak_bytes, sustained_tflops
from launch.run_spec import RunSpec
from launch.torch_compiler import (
    step_without_wrappers,
    torch_compiler_unloaded,
    unchanged_meta_tensors,
)
from tasks.seeding import derive_seed

PAPER_REACH = 39, 2340  # least and most of the rows of all tables, as a test finds them


class NotCountable(Exception):
    """A model that reads values of its tensors, which the meta device does not have."""


@dataclass(frozen=True)
class Cost:
    """What a run takes, counted on tensors without memory."""

    parameters: int
    tensors: int
    flops_per_step: int
    model_bytes: int
    optimizer_bytes: int


def count_cost(spec: RunSpec) -> Cost:
    """Builds model and optimizer on the meta device and counts a micro-batch's operations.

    NotCountable for fairseq's models.
    """
    import torch.utils.flop_counter  # noqa: F401  # has functions that are never compiled

    return _count(spec)


@torch_compiler_unloaded()
def _count(spec: RunSpec) -> Cost:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from engine.optimizer import build_optimizer_of

    task, plan = spec.task, spec.plan
    with torch.device("meta"), unchanged_meta_tensors():
        model = task.build_model()
    options = {key: value for key, value in spec.config.optimizer.items() if key != "fused"}
    optimizer = build_optimizer_of(replace(spec.config, optimizer=options), model)
    batch = task.example_batch().to("meta")
    counter = FlopCounterMode(display=False)
    try:
        with counter:
            task.loss(model, batch, None).total.backward()
    except RuntimeError as problem:
        if "meta tensors" not in str(problem):
            raise
        raise NotCountable("the operations of this model can't be counted") from problem
    for p in model.parameters():
        p.grad = torch.empty_like(p)
    step_without_wrappers(optimizer)
    state = [t for s in optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor)]
    everything = [*model.parameters(), *model.buffers()]
    return Cost(
        parameters=sum(p.numel() for p in model.parameters()),
        tensors=len(list(model.parameters())),
        flops_per_step=counter.get_total_flops() * plan.micro_batches,
        model_bytes=_bytes(everything),
        optimizer_bytes=_bytes(state),
    )


def reach_of(spec: RunSpec) -> float:
    """How far NovoGrad can get in this run; draws the initial weights."""
    import torch

    from engine.initialisation import scale_weights

    config = spec.config
    torch.manual_seed(derive_seed("init", config.seed))
    model = spec.task.build_model()
    scale_weights(model, config.init_gain)
    averaged = config.optimizer.get("grad_averaging", False)
    beta1 = 0.0 if averaged else float(config.optimizer["betas"][0])
    return reach(spec.plan, beta1, ((p.numel(), p.norm().item()) for p in model.parameters()))


def about_reach(value: float) -> str:
    """The plan's line, beside what the paper's rows have."""
    least, most = PAPER_REACH
    shown = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return (
        f"reach      {shown} initial norms: mean lr × steps / (1 - β1) / norm of a tensor, "
        f"averaged over weights (the paper's rows: {least:,} to {most:,})"
    )


def _bytes(tensors: list[Any]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def hours(spec: RunSpec, cost: Cost) -> float:
    """Of training, if every process sustains `hardware.tflops`; evaluations are not counted."""
    tflops = sustained_tflops(spec.config) * spec.plan.processes
    return cost.flops_per_step * spec.plan.steps / (tflops * 1e12) / 3600


def describe_cost(spec: RunSpec, cost: Cost) -> str:
    """The lines of a plan below `describe`'s."""
    plan = spec.plan
    per_step, per_run = cost.flops_per_step / 1e12, cost.flops_per_step * plan.steps / 1e15
    return "\n".join(
        [
            f"in all     {plan.units:,} {plan.unit}s, evaluated every {plan.eval_every:,} "
            f"steps, saved every {plan.checkpoint_every:,}",
            f"model      {cost.parameters:,} parameters in {cost.tensors} tensors",
            f"memory     model {cost.model_bytes / 1e6:,.1f} MB, gradients "
            f"{cost.parameters * 4 / 1e6:,.1f} MB, optimizer {cost.optimizer_bytes / 1e6:,.1f} MB "
            "per process, without activations",
            f"work       {per_step:,.4g} TFLOP per step, {per_run:,.4g} PFLOP in all",
            f"time       {format_hours(hours(spec, cost))} if {plan.processes} × "
            f"{sustained_tflops(spec.config):g} TFLOP/s are sustained (hardware.tflops)",
            *_on_gpus(spec, cost),
        ]
    )


def _on_gpus(spec: RunSpec, cost: Cost) -> list[str]:
    """At the paper's scale: the hours and memory of GPUs, as far as known without one."""
    config = spec.config
    if config.scale != "paper":
        return []
    state = cost.model_bytes + 4 * cost.parameters + cost.optimizer_bytes
    peak = peak_bytes(config, cost.parameters, state)
    flops = cost.flops_per_step * spec.plan.steps
    lines = [f"assumed    {describe_hours(config.task.name, flops)}"]
    if peak is not None:
        lines.append(
            f"GPU memory about {peak / 1e9:.1f} GB at the peak of a half-precision step, and 2 to "
            "3 GB for CUDA and NCCL"
        )
    return lines
