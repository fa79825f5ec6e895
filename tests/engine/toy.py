"""A task that takes milliseconds and has every difficulty: uneven weights, dropout, a carry."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributed import TCPStore

from engine.config import RunConfig, read_config
from engine.distributed import Group, joined
from engine.plan import make_plan, micro_batches_of
from engine.trainer import FitResult, Trainer
from tasks.base import Batch, Carry, Context, Counts, Headline, LossOut, Shard, Task
from tasks.seeding import torch_generator
from tasks.streams import eval_micro_batches, micro_batches_of_step, shuffled_micro_batches

EXAMPLES, FEATURES, LENGTH = 200, 6, 5


@dataclass(frozen=True)
class ToyModel:
    dropout: float = 0.0
    batch_norm: bool = False
    carry: float = 0.0  # how much of the micro-batch's last output enters the next input
    explode_at: int = -1  # the example whose loss is not finite


@dataclass(frozen=True)
class ToyData:
    examples: int = EXAMPLES


class Net(nn.Module):
    def __init__(self, options: ToyModel) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, 7)
        self.norm = nn.BatchNorm1d(7) if options.batch_norm else nn.Identity()
        self.drop = nn.Dropout(options.dropout)
        self.last = nn.Linear(7, 1)

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape[:-1]
        hidden = self.norm(self.first(x).reshape(-1, 7)).reshape(*shape, 7)
        out: Tensor = self.last(self.drop(torch.tanh(hidden)))
        return out.squeeze(-1)


class Toy(Task):
    """Sequences of one to five tokens; a batch counts examples, the loss is per token."""

    unit = "example"
    headline = Headline("valid", "error", higher_is_better=False)
    splits = ("valid",)
    ModelOptions: ClassVar[type] = ToyModel
    DataOptions: ClassVar[type] = ToyData

    def prepare_data(self) -> None: ...

    @property
    def epoch_units(self) -> int:
        return int(self.data_options.examples)

    def build_model(self) -> nn.Module:
        return Net(self.model_options)

    def example_batch(self) -> Batch:
        return self._batch([(0, i) for i in range(self.context.micro)])

    def _batch(self, items: list[Any]) -> Batch:
        xs, masks = [], []
        for _, index in items:
            generator = torch_generator("toy", index)
            xs.append(torch.randn(LENGTH, FEATURES, generator=generator, dtype=torch.float64))
            masks.append(torch.arange(LENGTH) < 1 + index % LENGTH)
        index = torch.tensor([index for _, index in items])
        tensors = {"x": torch.stack(xs), "mask": torch.stack(masks), "index": index}
        return Batch(tensors, len(items))

    def train_stream(self, shard: Shard, position: int) -> Iterator[Batch]:
        c = self.context
        micro_batches = shuffled_micro_batches(self.epoch_units, c.micro, c.seed)
        for items in micro_batches_of_step(
            micro_batches, self.steps_per_epoch, c.micro_batches, shard, position
        ):
            yield self._batch(items)

    def eval_batches(self, split: str, shard: Shard) -> Iterator[Batch]:
        for indices in eval_micro_batches(37, self.context.eval_batch, shard):
            yield self._batch([(0, 1000 + i) for i in indices])

    def loss(self, model: nn.Module, batch: Batch, carry: Carry) -> LossOut:
        x, mask = batch.tensors["x"], batch.tensors["mask"]
        x = x.to(next(model.parameters()).dtype)
        if carry is not None:
            x = x + self.model_options.carry * carry
        out = model(x)
        target = x.sum(-1).sin()
        total = ((out - target).square() * mask).sum()
        if (batch.tensors["index"] == self.model_options.explode_at).any():
            total = total * float("inf")
        kept = out.detach().mean() if self.model_options.carry else None
        return LossOut(total, mask.sum(), kept)

    def count(self, model: nn.Module, batch: Batch, carry: Carry) -> tuple[Counts, Carry]:
        out = self.loss(model, batch, None)
        tokens = float(out.weight)
        return {"examples": batch.units, "tokens": tokens, "total": out.total.item()}, None

    def summarize(self, split: str, counts: Mapping[str, float]) -> dict[str, float]:
        return {
            "error": counts["total"] / counts["tokens"],
            "examples": counts["examples"],
            "tokens": counts["tokens"],
        }


def toy_config(folder: Path, **changes: Any) -> RunConfig:
    """A configuration of a few steps; dotted keys with __ change it."""
    raw: dict[str, Any] = {
        "experiment": "toy/run",
        "scale": "smoke",
        "seed": 1,
        "task": {"name": "toy"},
        "model": asdict(ToyModel()),
        "data": asdict(ToyData()),
        "budget": "20 steps",
        "batch": {"global_size": 16, "micro": 2},
        "optimizer": {"name": "novograd", "lr": 0.05, "weight_decay": 0.01},
        "schedule": {"shape": "cosine", "warmup": "2 steps"},
        "evaluation": {"every": "5 steps", "batch": 7},
        "checkpoint": {"every": "4 steps"},
        "hardware": {"device": "cpu", "precision": "fp64", "processes": 1, "timeout_s": 60.0},
        "tracking": {"log_every": "3 steps"},
        "paths": {"outputs": str(folder)},
    }
    for key, value in changes.items():
        *path, last = key.split("__")
        node = raw
        for part in path:
            node = node.setdefault(part, {})
        node[last] = value
    return read_config(raw)


def make_trainer(config: RunConfig, group: Group, folder: Path) -> Trainer:
    micro_batches = micro_batches_of(config, group.world)
    context = Context(
        config.seed,
        config.batch.micro,
        micro_batches,
        config.evaluation.batch,
        0,
        Path(config.paths.data),
    )
    task = Toy(ToyModel(**config.model), ToyData(**config.data), context)
    plan = make_plan(config, task.unit, task.steps_per_epoch, group.world)
    config = replace(config, hardware=replace(config.hardware, processes=group.world))
    return Trainer(config, plan, task, group, folder, "toy-run")


def fit(config: RunConfig, group: Group, folder: Path) -> tuple[Trainer, FitResult]:
    trainer = make_trainer(config, group, folder)
    return trainer, trainer.fit()


def _enter(rank: int, world: int, port: int, function: Callable[..., None], arguments: Any) -> None:
    names = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank}
    os.environ |= {k: str(v) for k, v in names.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # the store is there, as with torchrun
    torch.set_num_threads(1)
    with joined("cpu", 60.0) as group:
        function(group, *arguments)


def run_world(world: int, function: Callable[..., None], *arguments: Any) -> None:
    """`function(group, *arguments)` in every process of a world; raises if one fails."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "tests.engine.toy"])
    # Here and not in rank 0, which could find that its port has been taken meanwhile.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes = [
        context.Process(target=_enter, args=(rank, world, store.port, function, arguments))
        for rank in range(world)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()  # one that hangs
    assert codes == [0] * world, codes


def weights(trainer: Trainer) -> list[Tensor]:
    return [p.detach().clone() for p in trainer.module.parameters()]
