"""WMT14: English sentences to German ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tasks.base import Batch, Carry, Counts, DataProblem, Headline, LossOut, Shard
from tasks.making import Makers, make_data
from tasks.manifests import describe_data
from tasks.streams import eval_micro_batches, micro_batches_of_step
from tasks.wmt14.beam import BeamOptions, Hypothesis, Marks, translate
from tasks.wmt14.bible import make_bible
from tasks.wmt14.bleu import bleu, count_bleu, signature
from tasks.wmt14.corpus import Corpus, HeldOut, Limits, check_files, read_held_out
from tasks.wmt14.fairseq_backend import FairseqTransformer
from tasks.wmt14.loss import smoothed_cross_entropy
from tasks.wmt14.made_up import make_made_up
from tasks.wmt14.messages import make_messages
from tasks.wmt14.model import Transformer, TransformerOptions
from tasks.wmt14.packing import Packing
from tasks.wmt14.predict import TranslationPredictions
from tasks.wmt14.statmt import OFFICIAL_PAIRS
from tasks.wmt14.units import BEGIN, END, PAD, Units

MAKERS: Makers = {"made_up": make_made_up, "bible": make_bible, "messages": make_messages}
PAPER = "wmt14"  # the data set of the paper
BACKENDS = ("own", "fairseq")
LENGTH_PENALTIES = {"06": 0.6}  # by the ends of splits' names
MARKS = Marks(BEGIN, END, PAD)


@dataclass
class Wmt14ModelOptions(TransformerOptions):
    """Who calculates: our Transformer, or fairseq's, of which there is the one variant."""

    backend: str = "own"


@dataclass
class Wmt14DataOptions:
    """A micro-batch is at most `batch.micro` tokens of both sides, padding included."""

    name: str = "wmt14"
    folder: str = "wmt14"  # below the data root
    make: str | None = None
    smoothing: float = 0.1  # of the labels
    shortest: int = 3  # tokens of a sentence in training, with its begin and end
    longest: int = 128
    beam: int = 4
    extra: int = 50  # tokens of a translation beyond those of its source, at most
    longest_translation: int = 256
    length_penalty: float = 0.0  # of splits that do not name theirs, as valid_06 does
    train_tokens: int | None = None  # about how many; planned with if there is no data
    train_every: int = 1  # of the training pairs, only every n-th


@dataclass
class Pairs(Batch):
    """Sentences and their translations; what is counted here need not be asked of a device."""

    tokens: int = 0  # of both sides, without padding
    expected: int = 0  # that the model has to say
    split: str = ""  # in evaluation


class Wmt14(TranslationPredictions):
    """Table 6."""

    unit = "token"
    headline = Headline("valid", "sacrebleu", higher_is_better=True)
    splits = ("valid",)
    final_splits = ("test", "valid_06", "test_06")
    ModelOptions = Wmt14ModelOptions
    DataOptions = Wmt14DataOptions

    model_options: Wmt14ModelOptions
    data_options: Wmt14DataOptions
    _seen = (0, 0)  # tokens in training since the last question, and with padding

    @property
    def root(self) -> Path:
        return self.context.data_root / self.data_options.folder

    def prepare_data(self) -> None:
        if self.data_options.train_every < 1:
            every = self.data_options.train_every
            raise DataProblem(f"data.train_every: must be at least 1, not {every}")
        make_data(self.data_options.make, MAKERS, self.root)
        check_files(self.root)
        if self.steps_per_epoch < 1:
            raise DataProblem(
                f"{self.root}: {len(self._packing):,} micro-batches of {self.context.micro:,} "
                f"tokens are fewer than the {self.context.micro_batches:,} of one step"
            )

    def prepare_evaluation(self, splits: Sequence[str]) -> None:
        make_data(self.data_options.make, MAKERS, self.root)
        for split in splits:
            assert self._held_out(split.partition("_")[0])

    @property
    def epoch_units(self) -> int:
        planned = self.data_options.train_tokens
        if planned is not None and not self.root.is_dir():
            return planned
        return len(self._packing) * self.context.micro

    def baseline_metrics(self) -> tuple[str, dict[str, float]]:
        """What is the same in both languages: names, numbers, punctuation."""
        metrics: dict[str, float] = {}
        for split in ("valid", "test"):
            lines = self._held_out(split)
            scores = bleu(count_bleu(lines.sources, lines.references))
            metrics |= {f"{split}/{name}": value for name, value in scores.items()}
        return "copying the source", metrics

    def signature(self) -> str:
        return signature()

    def data_manifest(self) -> dict[str, Any]:
        name, corpus = self.data_options.name, self._corpus
        counts = {"train": {key: corpus.statistics[key] for key in ("pairs", "kept")}}
        counts |= {split: {"pairs": len(self._held_out(split))} for split in ("valid", "test")}
        sums = {"encoded training pairs": corpus.digest}
        return describe_data(self.root, name, counts, sums, OFFICIAL_PAIRS if name == PAPER else {})

    def about_data(self) -> str:
        if not self.root.is_dir():
            return ""
        return (
            f"{self._packing.pairs:,} pairs, packed into {len(self._packing):,} micro-batches "
            f"of which {100 * self._packing.waste:.1f} % are padding"
        )

    def meters(self, seconds: float, processes: int) -> dict[str, float]:
        (tokens, padded), self._seen = self._seen, (0, 0)
        if not padded:
            return {}
        return {
            "speed/unpadded_tokens_per_s": tokens * processes / seconds,
            "speed/padding_share": 1 - tokens / padded,
        }

    def build_model(self) -> nn.Module:
        options = self.model_options
        if options.backend not in BACKENDS:
            raise ValueError(f"model.backend must be one of {BACKENDS}, not {options.backend!r}")
        return FairseqTransformer(options) if options.backend == "fairseq" else Transformer(options)

    def example_batch(self) -> Batch:
        width = min(32, self.context.micro // 2)
        rows = max(1, self.context.micro // (2 * width))
        source = torch.full((rows, width), END)
        tensors = {"source": source, "source_lengths": torch.full((rows,), width)}
        count = source.numel()
        tensors |= {"target": source, "expected": source}
        return Pairs(tensors, units=2 * count, tokens=2 * count, expected=count)

    def train_stream(self, shard: Shard, position: int) -> Iterator[Batch]:
        seed, every = self.context.seed, self.data_options.train_every
        pairs = self._corpus.train
        for micro_batch in micro_batches_of_step(
            lambda epoch: self._packing.micro_batches(seed, epoch),
            self.steps_per_epoch,
            self.context.micro_batches,
            shard,
            position,
        ):
            chosen = [item.index * every for item in micro_batch]
            sources, targets = [pairs.source(i) for i in chosen], [pairs.target(i) for i in chosen]
            yield _batch(sources, targets)

    def eval_batches(self, split: str, shard: Shard) -> Iterator[Batch]:
        if split not in (*self.splits, *self.final_splits):
            known = (*self.splits, *self.final_splits)
            raise ValueError(f"WMT14: split must be one of {known}, not {split!r}")
        lines = self._held_out(split.partition("_")[0])
        order = np.argsort([len(source) for source in lines.source_tokens], kind="stable")
        for micro_batch in eval_micro_batches(len(order), self.context.eval_batch, shard):
            chosen = order[micro_batch].tolist()
            sources = [lines.source_tokens[i] for i in chosen]
            batch = _batch(sources, [lines.target_tokens[i] for i in chosen])
            batch.tensors["line"] = torch.tensor(chosen)
            yield replace(batch, split=split)

    def loss(self, model: nn.Module, batch: Batch, carry: Carry) -> LossOut:
        """Summed over the target's tokens; the reference took means of micro-batches' means."""
        assert isinstance(batch, Pairs)
        self._seen = self._seen[0] + batch.tokens, self._seen[1] + batch.units
        total = _cross_entropy(model, batch, self.data_options.smoothing)
        return LossOut(total, float(batch.expected))

    def count(self, model: nn.Module, batch: Batch, carry: Carry) -> tuple[Counts, Carry]:
        assert isinstance(batch, Pairs)
        nll = _cross_entropy(model, batch, 0.0).item()
        found = self._search(
            model, batch.tensors["source"], batch.tensors["source_lengths"], batch.split
        )
        hypotheses = self.units.decode([hypothesis.words for hypothesis in found])
        held_out = self._held_out(batch.split.partition("_")[0])
        if self.predictions is not None:
            self.keep(batch, held_out, found, hypotheses)
        lines = batch.tensors["line"].tolist()
        counts = count_bleu(hypotheses, [held_out.references[line] for line in lines])
        return counts | {"nll": nll, "tokens": float(batch.expected)}, None

    def summarize(self, split: str, counts: Mapping[str, float]) -> dict[str, float]:
        """The lengths' ratio tells whether BLEU's penalty for short translations was at work."""
        lengths = counts["sacrebleu/hypothesis"] / counts["sacrebleu/reference"]
        return bleu(counts) | {"loss": counts["nll"] / counts["tokens"], "length_ratio": lengths}

    def translate(
        self, model: nn.Module, sources: Sequence[np.ndarray], split: str
    ) -> list[Hypothesis]:
        device = next(model.parameters()).device
        lengths = torch.tensor([len(tokens) for tokens in sources], device=device)
        return self._search(model, _padded(sources).to(device), lengths, split)

    def length_penalty(self, split: str) -> float:
        ending = split.partition("_")[2]
        return LENGTH_PENALTIES[ending] if ending else self.data_options.length_penalty

    def _search(
        self, model: nn.Module, source: Tensor, source_lengths: Tensor, split: str
    ) -> list[Hypothesis]:
        options = BeamOptions(
            beam=self.data_options.beam,
            alpha=self.length_penalty(split),
            extra=self.data_options.extra,
            longest=self.data_options.longest_translation,
        )
        ours = model.as_ours() if isinstance(model, FairseqTransformer) else model
        assert isinstance(ours, Transformer)
        return translate(ours, source, source_lengths, MARKS, options)

    @property
    def units(self) -> Units:
        return self.given_units or self._corpus.units

    @cached_property
    def _corpus(self) -> Corpus:
        options = self.data_options
        limits = Limits(shortest=options.shortest, longest=options.longest)
        vocabulary = self.model_options.vocabulary
        return Corpus(self.root, vocabulary, limits, units=self.given_units)

    @cached_property
    def _packing(self) -> Packing:
        pairs = self._corpus.train
        every = self.data_options.train_every
        source, target = pairs.source_lengths[::every], pairs.target_lengths[::every]
        return Packing(source, target, self.context.micro)

    def _held_out(self, split: str) -> HeldOut:
        if self.given_units is None:
            return self._corpus.held_out(split)
        if split not in self._read:
            self._read[split] = read_held_out(self.root, split, self.units)
        return self._read[split]

    @cached_property
    def _read(self) -> dict[str, HeldOut]:
        return {}


def _cross_entropy(model: nn.Module, batch: Batch, smoothing: float) -> Tensor:
    """The sum over the target's tokens, in float32 at least."""
    tensors = batch.tensors
    logits = model(tensors["source"], tensors["source_lengths"], tensors["target"])
    return smoothed_cross_entropy(logits, tensors["expected"], smoothing, PAD)


def _batch(sources: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> Pairs:
    """Padded to the longest. The decoder reads all but the end, and says all but the begin."""
    source, target = _padded(sources), _padded(targets)
    tensors = {
        "source": source,
        "source_lengths": torch.tensor([len(tokens) for tokens in sources]),
        "target": target[:, :-1],
        "expected": target[:, 1:],
    }
    of_targets = sum(map(len, targets))
    return Pairs(
        tensors,
        units=source.numel() + target.numel(),
        tokens=sum(map(len, sources)) + of_targets,
        expected=of_targets - len(targets),
    )


def _padded(sentences: Sequence[np.ndarray]) -> Tensor:
    rows = np.full((len(sentences), max(map(len, sentences))), PAD, dtype=np.int64)
    for row, tokens in zip(rows, sentences, strict=True):
        row[: len(tokens)] = tokens
    return torch.from_numpy(rows)
