"""The contract between the engine and a subject.

The engine knows this file and no subject; a subject knows this file and not the engine.

A loss is a sum with a weight: `loss` returns (total, weight), and the engine divides once per step
by the weight of the whole step, over all micro-batches and ranks. A metric is additive counts and
one closing formula: `count` returns numbers that add up over examples, `summarize` turns their
totals into metrics. The order of the data and every random draw are functions of the seed and the
position, so a stream started at any step equals the uninterrupted one from there on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn

Counts = dict[str, float]
Carry = Any  # opaque state from one batch to the next in the same slot; None if there is none


@dataclass(frozen=True)
class Shard:
    """Which part of the work is this process's."""

    rank: int = 0
    world: int = 1


@dataclass(frozen=True)
class Headline:
    """The number that the paper prints."""

    split: str
    metric: str
    higher_is_better: bool

    @property
    def name(self) -> str:
        return f"{self.split}/{self.metric}"


@dataclass(frozen=True)
class Context:
    """What a run tells its task, besides the task's own model and data options."""

    seed: int
    micro: int  # units of one micro-batch
    slots: int  # micro-batches of one step, over all ranks
    eval_batch: int  # examples of one evaluation batch
    data_workers: int  # processes that load data, per rank
    data_root: Path  # where data sets lie


@dataclass
class Batch:
    """Tensors by name, and how many units (images, utterances, tokens) they hold."""

    tensors: dict[str, Tensor]
    units: int

    def to(self, device: Any) -> Batch:
        moved = {k: t.to(device, non_blocking=True) for k, t in self.tensors.items()}
        return replace(self, tensors=moved)


class LossOut(NamedTuple):
    """A sum over examples, what it is to be divided by, and the carry for the slot's next batch."""

    total: Tensor
    weight: Tensor | float
    carry: Carry = None


class DataProblem(Exception):
    """Data that is missing or wrong; the message names the file and says what would be right."""


class Task(ABC):
    """One subject: its model, its data, its loss and its metrics."""

    unit: ClassVar[str]  # what a batch counts: "image", "utterance", "token"
    headline: ClassVar[Headline]
    splits: ClassVar[tuple[str, ...]]  # what is evaluated along the run, the headline's first
    final_splits: ClassVar[tuple[str, ...]] = ()  # and what at its end only
    ModelOptions: ClassVar[type]  # dataclasses: the vocabulary of `model:` and `data:`
    DataOptions: ClassVar[type]

    def __init__(self, model: Any, data: Any, context: Context) -> None:
        self.model_options = model
        self.data_options = data
        self.context = context

    @abstractmethod
    def check_data(self) -> None:
        """Raises DataProblem, quickly and before any worker starts, if the data is not there."""

    @property
    @abstractmethod
    def epoch_units(self) -> int:
        """Units in one pass over the training data."""

    @property
    def steps_per_epoch(self) -> int:
        """Whole global batches in one pass; the rest of the pass is left out."""
        return self.epoch_units // (self.context.micro * self.context.slots)

    def trivial(self) -> tuple[str, dict[str, float]]:
        """What a model that has learned next to nothing reaches: its name, and metrics."""
        return "", {}

    def meters(self, seconds: float, processes: int) -> dict[str, float]:
        """More to log, by its whole name: of this process in the last `seconds` of training.

        Since the last call, that is. The other `processes` did about as much.
        """
        return {}

    def about_data(self) -> str:
        """A line for who launches a run, if there is more to say than sizes; data may be absent."""
        return ""

    def signature(self) -> str:
        """How the metrics are calculated, where others calculate them otherwise."""
        return ""

    @abstractmethod
    def build_model(self) -> nn.Module:
        """The model, initialised from the global random state."""

    @abstractmethod
    def example_batch(self) -> Batch:
        """A micro-batch of the right shapes and of no meaning, for counting operations."""

    @abstractmethod
    def train_stream(self, shard: Shard, position: int) -> Iterator[Batch]:
        """This rank's micro-batches from step `position` on, without end.

        Step t uses the slots [t * slots, (t + 1) * slots) of the global order, whatever the world;
        rank r takes the r-th of `world` equal runs of them.
        """

    @abstractmethod
    def eval_batches(self, split: str, shard: Shard) -> Iterator[Batch]:
        """This rank's part of a split: over all ranks every example exactly once, unpadded."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch, carry: Carry) -> LossOut:
        """Sum and weight of the training loss on one micro-batch; never a mean."""

    @abstractmethod
    def count(self, model: nn.Module, batch: Batch, carry: Carry) -> tuple[Counts, Carry]:
        """Additive numbers of one evaluation batch."""

    @abstractmethod
    def summarize(self, split: str, counts: Mapping[str, float]) -> dict[str, float]:
        """Metrics from the counts of a whole split."""
