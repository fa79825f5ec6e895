"""`make bench-engine`: what the engine adds to a bare training loop.

The same model, batches and optimizer, in one process: `Trainer.fit` and the loop that one would
write by hand take turns, step by step, and a second bare loop shows the noise.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.contest import BenchOptions, Findings, judge
from engine.config import RunConfig, read_config
from engine.distributed import Group
from engine.plan import make_plan
from engine.trainer import Trainer
from tasks.base import Batch, Context, Shard
from tasks.imagenet.data import ImageNetDataOptions, Images
from tasks.imagenet.model import ResNetOptions
from tasks.imagenet.task import ImageNet

MICRO, ACCUMULATION, WARM = 16, 2, 5
STEPS = 200


class MadeUpImages(ImageNet):
    """ImageNet's loss on images that lie in memory."""

    @property
    def epoch_units(self) -> int:
        return 10**6

    def train_stream(self, shard: Shard, position: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(0)
        batches = []
        for _ in range(4):
            images = torch.randint(0, 256, (MICRO, 3, 32, 32), generator=generator)
            labels = torch.randint(0, 10, (MICRO,), generator=generator)
            tensors = {"image": images.to(torch.uint8), "label": labels}
            batches.append(Batch(tensors, MICRO))
        while True:
            yield from batches

    def eval_batches(self, split: str, shard: Shard) -> Iterator[Batch]:
        batch = next(self.train_stream(shard, 0))
        yield Images(batch.tensors, batch.units, split)

    def keep(self, batch: Images, logits: torch.Tensor) -> None:
        pass  # predictions name an image's file; these have none


def make_config(optimizer: str, steps: int) -> RunConfig:
    """A run that logs every ten steps and evaluates and saves at its end only."""
    return read_config(
        {
            "experiment": "bench/engine",
            "scale": "smoke",
            "seed": 0,
            "task": {"name": "imagenet"},
            "model": asdict(ResNetOptions(stages=[1, 1], width=8, classes=10, stem="small")),
            "data": asdict(ImageNetDataOptions(image_size=32)),
            "budget": f"{steps} steps",
            "batch": {"global_size": MICRO * ACCUMULATION, "micro": MICRO},
            "optimizer": {"name": optimizer, "lr": 0.001},
            "schedule": {"shape": "cosine"},
            "evaluation": {"every": f"{steps} steps"},
            "checkpoint": {"every": f"{steps} steps"},
            "hardware": {"device": "cpu", "processes": 1},
            "tracking": {"log_every": "10 steps"},
        }
    )


def make_trainer(config: RunConfig, folder: Path) -> Trainer:
    """A trainer on one process."""
    context = Context(config.seed, MICRO, ACCUMULATION, MICRO, 0, folder)
    options = ResNetOptions(**config.model), ImageNetDataOptions(**config.data)
    task = MadeUpImages(*options, context)
    plan = make_plan(config, task.unit, task.steps_per_epoch, 1)
    return Trainer(config, plan, task, Group(0, 1, torch.device("cpu")), folder, "bench")


def bare_steps(trainer: Trainer) -> Iterator[None]:
    """The same steps by hand: gradients of the mean, accumulated; one per `next`."""
    task, model, optimizer = trainer.task, trainer.module, trainer.optimizer
    batches = task.train_stream(Shard(), 0)
    for step in range(trainer.plan.steps):
        for group in optimizer.param_groups:
            group["lr"] = trainer.plan.schedule(step)
        optimizer.zero_grad()
        for _ in range(ACCUMULATION):
            out = task.loss(model, next(batches), None)
            (out.total / (MICRO * ACCUMULATION)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        yield


def step_times(config: RunConfig, folder: Path) -> tuple[list[float], ...]:
    """Seconds of each step: through `Trainer.fit`, and of two bare loops, all taking turns.

    The engine's step lasts until it asks for the next one: what it logs is in it.
    """
    trainer = make_trainer(config, folder)
    loops = [bare_steps(make_trainer(config, folder)) for _ in range(2)]
    run = trainer.stepper.run
    times: tuple[list[float], ...] = ([], [], [])  # engine, two bare loops
    started = 0.0

    def interleaved(*arguments: Any, **options: Any) -> Any:
        nonlocal started
        if started:
            times[0].append(time.perf_counter() - started)
        turns = (0, 1) if len(times[1]) % 2 else (1, 0)
        for turn in turns:
            before = time.perf_counter()
            next(loops[turn])
            times[1 + turn].append(time.perf_counter() - before)
        started = time.perf_counter()
        return run(*arguments, **options)

    trainer.stepper.run = interleaved  # type: ignore[method-assign]
    trainer.fit()
    return tuple(some[WARM:] for some in times)


def measure(options: BenchOptions) -> Findings:
    """Every optimizer's step; on the CPU, where the engine's share is the largest."""
    with tempfile.TemporaryDirectory() as folder:  # the first steps of a process are slower
        step_times(make_config("novograd", 30), Path(folder))
    found = Findings()
    for optimizer in ("novograd", "adamw", "sgd"):
        with tempfile.TemporaryDirectory() as folder:
            config = make_config(optimizer, options.rounds(STEPS))
            times = step_times(config, Path(folder))
        shortest = min(map(len, times))
        engine, bare, again = (some[:shortest] for some in times)
        found.measurements.append(judge(optimizer, engine, bare, again, amount=1))
    return found
