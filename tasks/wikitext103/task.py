"""WikiText-103: the words of Wikipedia predicted one after another."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tasks.base import Batch, Carry, Context, Counts, DataProblem, Headline, LossOut, Shard
from tasks.making import Makers, make_data
from tasks.manifests import describe_data
from tasks.wikitext103.gensim_wiki import make_small_wiki
from tasks.wikitext103.made_up import make_made_up
from tasks.wikitext103.model import TransformerXL, TransformerXLOptions
from tasks.wikitext103.predict import TextPredictions
from tasks.wikitext103.prepare import WikiText
from tasks.wikitext103.segments import (
    NO_TARGET,
    Protocol,
    Segment,
    TrainingColumns,
    evaluation_segments,
)
from tasks.wikitext103.text import Text, check_files, encode_file

# Dai et al.'s two evaluations; besides them there is that with the lengths of training.
PROTOCOLS = {
    "64": Protocol(segment=64, memory=640, clamp=400, same_length=True),
    "128": Protocol(segment=128, memory=1600, clamp=1000, same_length=True),
}
PAPER = "wikitext-103"  # the data set of the paper
MAKERS: Makers = {"made_up": make_made_up, "small_wiki": make_small_wiki}


@dataclass
class WikiTextDataOptions:
    """A global batch of B units is B / segment columns of the text."""

    name: str = "wikitext-103"
    folder: str = "wikitext-103"  # below the data root
    segment: int = 128  # words of a column in one step
    memory: int = 384  # words before them that are attended to
    eval_columns: int = 10  # in which an evaluation reads its text
    protocols: list[str] = field(default_factory=lambda: [*PROTOCOLS])  # at the end of a run
    make: str | None = None
    train_tokens: int | None = None  # how many there must be, and are planned with if none are
    train_first: int | None = None  # of these, only so many from the beginning
    validate_last: int | None = None  # validate on so many from the end, not on the valid text
    most_common: int | None = None  # words of the vocabulary; the others are <unk>
    # [a, b]: evaluations also have the losses of the a commonest words, of the next up to b, and
    # of the rest.
    word_ranks: list[int] = field(default_factory=list)
    # How splits that do not name a protocol are evaluated; null: with the lengths of training.
    eval_segment: int | None = None
    eval_memory: int | None = None
    eval_clamp: int | None = None
    eval_same_length: bool = False


def final_splits_of(protocols: Iterable[str]) -> tuple[str, ...]:
    """The test set with the lengths of training, and both sets with those of some protocols."""
    return ("test", *(f"{split}_{name}" for name in protocols for split in ("valid", "test")))


class WikiText103(TextPredictions):
    """Table 7 and Figure 2."""

    unit = "token"
    headline = Headline("valid", "ppl", higher_is_better=False)
    splits = ("valid",)
    final_splits: tuple[str, ...] = final_splits_of(PROTOCOLS)  # type: ignore[misc]  # a run's own
    final_checkpoint = "best"  # as Dai et al.'s train.py
    ModelOptions = TransformerXLOptions
    DataOptions = WikiTextDataOptions

    model_options: TransformerXLOptions
    data_options: WikiTextDataOptions

    def __init__(self, model: Any, data: Any, context: Context) -> None:
        super().__init__(model, data, context)
        self.final_splits = final_splits_of(data.protocols)

    @property
    def root(self) -> Path:
        return self.context.data_root / self.data_options.folder

    def prepare_data(self) -> None:
        unknown = [name for name in self.data_options.protocols if name not in PROTOCOLS]
        if unknown:
            raise DataProblem(f"data.protocols: must be some of {[*PROTOCOLS]}, not {unknown}")
        first = self.data_options.train_first
        for name in ("train_first", "validate_last", "most_common"):
            value = getattr(self.data_options, name)
            if value is not None and value < 1:
                raise DataProblem(f"data.{name}: must be at least 1 or null, not {value}")
        ranks = [0, *self.data_options.word_ranks, self.model_options.vocabulary]
        if any(low >= high for low, high in pairwise(ranks)):
            raise DataProblem(
                f"data.word_ranks={ranks[1:-1]}: must increase, from 1 on, and stay below the "
                f"{ranks[-1]:,} words of model.vocabulary"
            )
        self._check_protocol()
        make_data(self.data_options.make, MAKERS, self.root)
        check_files(self.root)
        self._check_columns()
        self._check_validation()
        words, tokens = len(self._text.words), len(self._text.splits["train"])
        if words != self.model_options.vocabulary:
            raise DataProblem(
                f"{self.root}: the training text has {words:,} different words, but the model "
                f"{self.model_options.vocabulary:,} (model.vocabulary); they must be equal"
            )
        planned = self.data_options.train_tokens
        if planned is not None and tokens != planned:
            raise DataProblem(
                f"{self.root}: {tokens:,} training tokens, but there must be {planned:,} "
                "(data.train_tokens); is the text complete?"
            )
        if self._columns.segments < 1:
            raise DataProblem(
                f"{self.root}: {min(tokens, first or tokens):,} training tokens are too few for "
                f"{self._columns.columns:,} columns"
            )

    def prepare_evaluation(self, splits: Sequence[str]) -> None:
        self._check_protocol()
        make_data(self.data_options.make, MAKERS, self.root)
        for split in splits:
            assert len(self.encoded(split))

    def _check_protocol(self) -> None:
        """Of an evaluation."""
        found = self.protocol_of("")
        least = {"segment": 1, "memory": int(found.same_length), "clamp": 1}
        for name, smallest in least.items():
            value = getattr(found, name)
            if value is not None and value < smallest:
                raise DataProblem(f"data.eval_{name}: must be at least {smallest}, not {value}")

    def _check_validation(self) -> None:
        last, first = self.data_options.validate_last, self.data_options.train_first
        there = len(self._text.splits["train"])
        if last is not None and (first is None or first + last > there):
            raise DataProblem(
                f"data.validate_last={last}: data.train_first={first} must leave so many of the "
                f"{there:,} training tokens; or set data.validate_last=null"
            )

    def _check_columns(self) -> None:
        segment, micro = self.data_options.segment, self.context.micro
        if segment < 1 or micro % segment:
            raise DataProblem(
                f"batch.micro={micro} must be a multiple of data.segment={segment}: a micro-batch "
                "has whole columns"
            )

    @property
    def epoch_units(self) -> int:
        return self._columns.words

    @property
    def steps_per_epoch(self) -> int:
        return self._columns.segments

    def baseline_metrics(self) -> tuple[str, dict[str, float]]:
        """How often each word stands in the training text, plus one."""
        splits, words = self._text.splits, len(self._text.words)
        read = splits["train"][: self.data_options.train_first]
        counts = np.bincount(read, minlength=words) + 1.0
        nll = -np.log(counts / counts.sum())
        scored = {name: float(np.mean(nll[splits[name][1:]])) for name in ("valid", "test")}
        metrics = {f"{name}/ppl": math.exp(loss) for name, loss in scored.items()}
        return "unigrams with add-one smoothing", metrics

    def data_manifest(self) -> dict[str, Any]:
        name, text = self.data_options.name, self._text
        counts = {split: {"tokens": len(words)} for split, words in text.splits.items()}
        official = {split: {"tokens": WikiText().counts(split).tokens} for split in counts}
        return describe_data(
            self.root, name, counts, text.digests, official if name == PAPER else {}
        )

    def build_model(self) -> nn.Module:
        return TransformerXL(self.model_options)

    def compile(self, model: nn.Module) -> nn.Module:
        """All layers; the softmax stays as it is, since its shapes depend on the targets."""
        assert isinstance(model, TransformerXL)
        compiled = copy(model)  # shares all parameters and submodules
        compiled.encode = torch.compile(model.encode)  # type: ignore[method-assign]
        return compiled

    def example_batch(self) -> Batch:
        """Without a memory, which costs little beside the words themselves."""
        width = self.context.micro // self.data_options.segment
        zeros = torch.zeros(width, self.data_options.segment, dtype=torch.int64)
        tensors = {"tokens": zeros, "targets": zeros.clone()}
        return Segment(tensors, zeros.numel(), True, self._protocol)

    def train_stream(self, shard: Shard, position: int) -> Iterator[Batch]:
        return self._columns.stream(self.context.micro_batches, shard, position)

    def eval_batches(self, split: str, shard: Shard) -> Iterator[Batch]:
        if split not in (*self.splits, *self.final_splits):
            known = (*self.splits, *self.final_splits)
            raise ValueError(f"WikiText-103: split must be one of {known}, not {split!r}")
        text, chosen = self.encoded(split), self.protocol_of(split)
        at_once = self.context.eval_batch
        columns = self.data_options.eval_columns
        segments = evaluation_segments(text, columns, at_once, chosen, shard)
        return (replace(segment, split=split) for segment in segments)

    def encoded(self, split: str) -> np.ndarray:
        name = split.partition("_")[0]
        if self.given_words is None or (name == "valid" and self.data_options.validate_last):
            return self._text.splits[name]
        if name not in self._encoded:
            file = self.root / f"wiki.{name}.tokens"
            self._encoded[name] = encode_file(file, self.given_words)
        return self._encoded[name]

    def protocol_of(self, split: str) -> Protocol:
        name, options = split.partition("_")[2], self.data_options
        if name:
            return PROTOCOLS[name]
        return Protocol(
            options.segment if options.eval_segment is None else options.eval_segment,
            options.memory if options.eval_memory is None else options.eval_memory,
            options.eval_clamp,
            options.eval_same_length,
        )

    @property
    def words(self) -> list[str]:
        return self._text.words if self.given_words is None else self.given_words

    @cached_property
    def _encoded(self) -> dict[str, np.ndarray]:
        return {}

    def loss(self, model: nn.Module, batch: Batch, carry: Carry) -> LossOut:
        nll, memory = _read(model, batch, carry)
        return LossOut(nll.sum(), float(batch.units), memory)

    def count(self, model: nn.Module, batch: Batch, carry: Carry) -> tuple[Counts, Carry]:
        nll, memory = _read(model, batch, carry)
        there = batch.tensors["targets"] != NO_TARGET
        total = torch.where(there, nll, 0.0).sum(dtype=torch.float64).item()
        if self.predictions is not None:
            assert isinstance(batch, Segment)
            self.keep(model, batch, nll, carry)
        counts = {"tokens": float(batch.units), "nll": total}
        for name, low, high in self._word_bands:
            own = (batch.tensors["targets"] >= low) & (batch.tensors["targets"] < high)
            counts[f"tokens_{name}"] = float(own.sum().item())
            counts[f"nll_{name}"] = torch.where(own, nll, 0.0).sum(dtype=torch.float64).item()
        return counts, memory

    def summarize(self, split: str, counts: Mapping[str, float]) -> dict[str, float]:
        tokens = counts["tokens"]
        loss = counts["nll"] / tokens
        found = {"loss": loss, "ppl": math.exp(loss) if loss < 700 else math.inf}
        for name, *_ in self._word_bands:
            own = counts[f"tokens_{name}"]
            found |= {f"share_{name}": own / tokens}
            found |= {f"loss_{name}": counts[f"nll_{name}"] / own} if own else {}
        return found

    @property
    def _word_bands(self) -> list[tuple[str, int, int]]:
        """Names and ids: the vocabulary is sorted by frequency."""
        ranks = self.data_options.word_ranks
        bounds = [0, *ranks, self.model_options.vocabulary] if ranks else []
        return [(f"words_{low + 1}_{high}", low, high) for low, high in pairwise(bounds)]

    @property
    def _protocol(self) -> Protocol:
        return Protocol(self.data_options.segment, self.data_options.memory)

    @cached_property
    def _text(self) -> Text:
        text, options = Text(self.root, self.given_words), self.data_options
        if options.most_common is not None and self.given_words is None:
            text.most_common(options.most_common)
        if options.validate_last is not None:
            text.splits["valid"] = text.splits["train"][-options.validate_last :]
        return text

    @cached_property
    def _columns(self) -> TrainingColumns:
        self._check_columns()
        planned = self.data_options.train_tokens
        if planned is not None and not self.root.is_dir():
            text = np.broadcast_to(np.int32(0), (planned,))  # for a plan: its length is what counts
        else:
            text = self._text.splits["train"]
        columns = self.context.micro // self.data_options.segment * self.context.micro_batches
        return TrainingColumns(text[: self.data_options.train_first], columns, self._protocol)


def _read(model: nn.Module, batch: Batch, carry: Carry) -> tuple[Tensor, Carry]:
    assert isinstance(batch, Segment)
    assert batch.protocol is not None
    nll, memory = model(
        batch.tensors["tokens"],
        batch.tensors["targets"].clamp(min=0),
        None if batch.fresh else carry,
        memory_length=batch.protocol.memory,
        clamp=batch.protocol.clamp,
        same_length=batch.protocol.same_length,
    )
    return nll, memory
