"""`python -m tests.hollow_cuda.probe_step [--no-waits] HARDWARE ROW… [key=value …]`: steps.

Two micro-batches a step, as one of eight processes whose NCCL is hollow. Answers for each row with
what one step costs: launches, waits, the attention's kernels, and peak memory beside the plan's. A
batch is then evaluated. ROW is an experiment, and after commas overrides of its own. With
`--no-waits` a wait for the device inside a step is an error, at its line, but for speech (CTC) and
fp16 (overflow).
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from engine import precision
from engine.distributed import Group
from engine.trainer import Trainer
from launch.gpu_estimate import peak_bytes
from launch.run_spec import RunSpec, make_run_spec
from tasks.base import Batch
from tasks.librispeech import alphabet
from tasks.librispeech import task as librispeech
from tasks.wikitext103.segments import Segment
from tasks.wikitext103.softmax import AdaptiveSoftmax, Routes
from tasks.wmt14 import beam
from tasks.wmt14.beam import BeamOptions, translate
from tasks.wmt14.model import Transformer
from tasks.wmt14.task import MARKS
from tests.hollow_cuda import hollow

WORLD, ACCUMULATION = 8, 2
WARM_UP = 5  # steps: until Transformer-XL's memory is full and the allocator has its blocks
# Of WikiText-103's words, the share at or above each of the paper's cutoffs.
BEYOND = (0.09, 0.055, 0.006)


class Attention(TorchDispatchMode):
    """Counts which fused attention kernels are called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = op.overloadpacket.__name__
        if name.startswith("_scaled_dot_product") and "backward" not in name:
            self.calls[name.removeprefix("_scaled_dot_product_")] += 1
        return op(*args, **(kwargs or {}))


def main() -> None:
    arguments = [one for one in sys.argv[1:] if one != "--no-waits"]
    rows = [one for one in arguments[1:] if "=" not in one.partition(",")[0]]
    overrides = [f"hardware={arguments[0]}", *(one for one in arguments[1:] if one not in rows)]
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=WORLD)
    AdaptiveSoftmax.route = routes_of_real_text(AdaptiveSoftmax.route)  # type: ignore[method-assign]
    hollow.answer({row: probe([*f"experiment={row}".split(","), *overrides]) for row in rows})


def probe(overrides: list[str]) -> dict[str, Any]:
    trainer = make_trainer(overrides)
    may_wait = trainer.task.unit == "utterance" or trainer.scaler.is_enabled()
    mode = "error" if "--no-waits" in sys.argv and not may_wait else "default"
    batches = map(training_batch, repeat(trainer))
    attention = Attention()
    # torch's CTC takes another path, that of subclasses of tensors, while calls are watched.
    with attention if trainer.task.unit == "token" else nullcontext():
        take_step(trainer, 0, batches)
    for step in range(1, WARM_UP):
        take_step(trainer, step, batches)
    torch.cuda.reset_peak_memory_stats()
    hollow.reset()
    torch.cuda.set_sync_debug_mode(mode)
    take_step(trainer, WARM_UP, batches)
    torch.cuda.set_sync_debug_mode("default")
    found = {
        "launches": hollow.launches(),
        "waits": hollow.waits(),
        "attention": dict(attention.calls),
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
        "planned": planned_bytes(trainer),
    } | optimizer_launches(trainer)
    evaluate_batch(trainer)
    del trainer, batches  # for the next row's peak
    gc.collect()
    torch.cuda.empty_cache()
    return found


def planned_bytes(trainer: Trainer) -> float | None:
    """What `plan` prints, from the state that is there."""
    weights = list(trainer.module.parameters())
    state = [t for s in trainer.optimizer.state.values() for t in s.values()]
    everything = [*trainer.module.state_dict().values(), *weights, *state]
    held = sum(t.numel() * t.element_size() for t in everything if isinstance(t, Tensor))
    return peak_bytes(trainer.config, sum(p.numel() for p in weights), held)


def make_trainer(overrides: list[str]) -> Trainer:
    """As rank 0 of a run with two micro-batches a step on each process."""
    machine = ["hardware.device=cuda", f"hardware.processes={WORLD}"]
    spec = make_run_spec([*overrides, *machine], need_data=False)
    micro_batches = ACCUMULATION * WORLD
    whole = micro_batches * spec.plan.micro
    config = replace(spec.config, batch=replace(spec.config.batch, global_size=whole))
    plan = replace(
        spec.plan, global_batch=whole, micro_batches=micro_batches, accumulation=ACCUMULATION
    )
    return build(replace(spec, config=config, plan=plan))


def build(spec: RunSpec) -> Trainer:
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    kind = type(spec.task)
    precision.configure(spec.config.hardware, device, 1, fixed_shapes=kind.fixed_shapes)
    group = Group(0, WORLD, device)
    build_model = spec.task.build_model

    def without_values() -> Any:
        """Weights that nobody reads need not be drawn."""
        with torch.device("meta"):
            model = build_model()
        return model.to_empty(device=device)

    spec.task.build_model = without_values
    return Trainer(spec.config, spec.plan, spec.task, group, Path("/nowhere"), spec.run_id)


def training_batch(trainer: Trainer) -> Batch:
    """As it comes from a loader: pinned, and in the middle of a text."""
    batch = trainer.task.largest_batch()
    batch.tensors = {name: tensor.pin_memory() for name, tensor in batch.tensors.items()}
    return replace(batch, fresh=False) if isinstance(batch, Segment) else batch


def take_step(trainer: Trainer, step: int, batches: Any) -> None:
    trainer.stepper.run(step, step, batches, want_norm=False, stop=False)


def routes_of_real_text(route: Any) -> Any:
    """Counts of clusters are read on the host; those of the hollow device mean nothing."""

    def wrapped(self: AdaptiveSoftmax, targets: Tensor) -> Routes:
        routes: Routes = route(self, targets)
        if routes.beyond is None or not targets.is_cuda:
            return routes
        some = [int(share * len(targets)) for share in BEYOND[: len(self.bounds) - 2]]
        return replace(routes, beyond=torch.tensor(some))

    return wrapped


def optimizer_launches(trainer: Trainer) -> dict[str, int]:
    """Of the transforms and the update alone, on gradients that are there."""
    for p in trainer.module.parameters():
        p.grad = torch.zeros_like(p)
    trainer.optimizer.step()
    hollow.reset()
    trainer.optimizer.step()
    return {"optimizer_launches": hollow.launches(), "optimizer_waits": hollow.waits()}


def evaluate_batch(trainer: Trainer) -> None:
    """One batch through the task's counting, or through beam search, on values without meaning."""
    task, module = trainer.task, trainer.module.eval()
    batch = training_batch(trainer).to(trainer.device)
    beam._check = beam._Search._finish = lambda *_: None  # type: ignore[assignment,method-assign]
    alphabet.decode = librispeech.decode = lambda classes: ""
    with torch.no_grad(), precision.autocast(trainer.config.hardware.precision, trainer.device):
        if isinstance(module, Transformer):
            source = {name: batch.tensors[name][:8] for name in ("source", "source_lengths")}
            found = translate(module, **source, marks=MARKS, options=BeamOptions(longest=20))
            assert len(found) == 8
        else:
            counts, _ = task.count(module, batch, None)
            assert counts


if __name__ == "__main__":
    main()
