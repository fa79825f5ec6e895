"""The contract between the engine and a task.

The engine knows this file and no task; a task knows this file and not the engine.

A loss is a sum with a weight: `loss` returns (total, weight), and the engine divides once per step
by the weight of the whole step, over all micro-batches and ranks. A metric is additive counts and
one closing formula: `count` returns numbers that add up over examples, `summarize` turns their
totals into metrics. The order of the data and every random draw are functions of the seed and the
position, so a stream started at any step equals the uninterrupted one from there on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

if TYPE_CHECKING:  # contracts and options are read where torch is not needed
    from torch import Tensor, nn

Counts = dict[str, float]
Prediction = dict[str, Any]  # what a model predicts for one input, and scores, by name
Carry = (
    Any  # opaque state from one batch to the next in the same micro-batch; None if there is none
)


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
    micro_batches: int  # micro-batches of one step, over all ranks
    eval_batch: int  # examples of one evaluation batch
    data_workers: int  # processes that load data, per rank
    data_root: Path  # where data sets lie
    checkpoint_activations: bool = False  # keep fewer of them, and calculate the others again


@dataclass
class Batch:
    """Tensors by name, and how many units (images, utterances, tokens) they hold."""

    tensors: dict[str, Tensor]
    units: int

    def to(self, device: Any) -> Batch:
        moved = {k: t.to(device, non_blocking=True) for k, t in self.tensors.items()}
        return replace(self, tensors=moved)


class LossOut(NamedTuple):
    """A sum over examples, what it is to be divided by, and the carry for the next batch."""

    total: Tensor
    weight: Tensor | float
    carry: Carry = None


class DataProblem(Exception):
    """Data that is missing or wrong; the message names the file and says what would be right."""


class BadInput(Exception):
    """An input that no prediction can be made for; the message says what is wrong with it."""


class Input(NamedTuple):
    """One input of a prediction, or what is wrong with it; `name` is its file or line."""

    name: str
    value: Any | BadInput


@dataclass
class Predictions:
    """What a model predicts for the examples of a split, kept while they are counted.

    A row holds the example's `id`, its `input` or `file`, `reference`, `hypothesis` and scores.
    """

    first: int | None = None  # examples by index; None keeps all
    rows: dict[int, Prediction] = field(default_factory=dict)  # by index in the split

    def wants(self, index: int) -> bool:
        return self.first is None or index < self.first

    def in_order(self) -> list[Prediction]:
        return [{"index": index} | self.rows[index] for index in sorted(self.rows)[: self.first]]


@dataclass
class NoOptions:
    """Of predictions that have no options."""


class HubFacts(NamedTuple):
    """How the Hugging Face Hub's metadata name a task."""

    pipeline: str  # the Hub's name of the task, as "image-classification"
    metrics: Mapping[str, tuple[str, str]]  # by our name: the Hub's type, and a name to show
    languages: tuple[str, ...] = ()
    example: str = "FILE"  # a name for an input


class Task(ABC):
    """One task: its model, its data, its loss and its metrics."""

    unit: ClassVar[str]  # what a batch counts: "image", "utterance", "token"
    headline: ClassVar[Headline]
    splits: ClassVar[tuple[str, ...]]  # what is evaluated along the run, the headline's first
    final_splits: ClassVar[tuple[str, ...]] = ()  # and what at its end only,
    final_checkpoint: ClassVar[str] = "last"  # with these weights, or those of the "best" headline
    can_checkpoint_activations: ClassVar[bool] = False
    normalises_batches: ClassVar[bool] = False  # whether the micro-batch is part of the recipe
    loads_in_processes: ClassVar[bool] = False  # whether `data_workers` make batches
    fixed_shapes: ClassVar[bool] = False  # whether all training batches have the same shapes
    ModelOptions: ClassVar[type]  # dataclasses: the vocabulary of `model:` and `data:`
    DataOptions: ClassVar[type]
    PredictOptions: ClassVar[type] = NoOptions  # a dataclass: the options of `predict`
    by_line: ClassVar[bool] = False  # whether an input of `predict` is a line of a text
    hub: ClassVar[HubFacts] = HubFacts("other", {})

    predictions: Predictions | None = None  # while an evaluation keeps them; `count` adds to it

    def __init__(self, model: Any, data: Any, context: Context) -> None:
        self.model_options = model
        self.data_options = data
        self.context = context

    @abstractmethod
    def prepare_data(self) -> None:
        """Raises DataProblem, quickly and before any worker starts, if the data is not there."""

    @property
    @abstractmethod
    def epoch_units(self) -> int:
        """Units in one pass over the training data."""

    @property
    def steps_per_epoch(self) -> int:
        """Whole global batches in one pass; the rest of the pass is left out."""
        return self.epoch_units // (self.context.micro * self.context.micro_batches)

    def baseline_metrics(self) -> tuple[str, dict[str, float]]:
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

    def data_manifest(self) -> dict[str, Any]:
        """What a run records about its data: source form, counts, checksums; names no path."""
        return {}

    def signature(self) -> str:
        """How the metrics are calculated, where others calculate them otherwise."""
        return ""

    @abstractmethod
    def build_model(self) -> nn.Module:
        """The model, initialised from the global random state."""

    def compile(self, model: nn.Module) -> nn.Module:
        """The model for training by torch.compile, with the same parameters."""
        import torch

        compiled: nn.Module = torch.compile(model)  # type: ignore[assignment]
        return compiled

    @abstractmethod
    def example_batch(self) -> Batch:
        """A micro-batch of the right shapes and of no meaning, for counting operations."""

    def largest_batch(self) -> Batch:
        """As `example_batch`, of the largest shapes that training meets, for counting memory."""
        return self.example_batch()

    @abstractmethod
    def train_stream(self, shard: Shard, position: int) -> Iterator[Batch]:
        """This rank's micro-batches from step `position` on, without end.

        Step t uses the micro-batches [t * n, (t + 1) * n) of the global order, n to a step, on any
        number of ranks; rank r takes the r-th of `world` equal runs of them.
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

    # Using a trained model. None of these is needed for training.

    def model_files(self) -> dict[str, bytes]:
        """What a model needs besides weights and options: its classes or vocabulary, as files."""
        return {}

    def use_model_files(self, files: Mapping[str, bytes]) -> None:
        """Takes what `model_files` returned instead of deriving it from the training data.

        Raises DataProblem for files that are not this task's.
        """
        if files:
            raise DataProblem(f"{', '.join(files)}: {type(self).__name__} has no such files")

    def prepare_evaluation(self, splits: Sequence[str]) -> None:
        """As `prepare_data`, for the evaluation of some splits alone."""
        self.prepare_data()

    def protocol(self, split: str) -> str:
        """How a split is evaluated: decoding, context, crops."""
        return ""

    def preprocessing(self) -> dict[str, Any]:
        """How inputs become what the model reads, for those who use the weights elsewhere."""
        return {}

    def read_inputs(self, sources: Sequence[str], options: Any) -> Iterator[Input]:
        """Inputs for `predict`, one after the other, from files or ("-") the standard input."""
        raise NotImplementedError(f"{type(self).__name__} has no predictions")

    def predict(self, model: nn.Module, inputs: Sequence[Any], options: Any) -> list[Prediction]:
        """A prediction for each of `inputs`, values of `read_inputs`; `text` is for a reader."""
        raise NotImplementedError(f"{type(self).__name__} has no predictions")
