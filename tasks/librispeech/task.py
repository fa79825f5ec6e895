"""LibriSpeech: what is said, letter by letter, and how many words of it are wrong."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tasks.base import Batch, Carry, Context, Counts, DataProblem, Headline, LossOut, Shard, Task
from tasks.librispeech.alphabet import count_errors, decode, error_rates, greedy
from tasks.librispeech.batches import UtteranceBatches
from tasks.librispeech.commands import make_commands
from tasks.librispeech.features import RATE, cut_out, log_mel
from tasks.librispeech.loss import ctc
from tasks.librispeech.made_up import make_made_up
from tasks.librispeech.manifest import Manifest, check_subsets
from tasks.librispeech.model import Jasper, JasperOptions
from tasks.librispeech.stopwatch import Stopwatch
from tasks.loading import Unreadable, load_batches
from tasks.making import Makers, make_data
from tasks.streams import bucketed_slots, padding_waste, slots_of_step

MAKERS: Makers = {"made_up": make_made_up, "commands": make_commands}
HELD_OUT = ("dev-clean", "dev-other", "test-clean", "test-other")
TYPICAL_S = 12.0  # of an utterance of LibriSpeech


@dataclass
class LibriSpeechDataOptions:
    """Folders in LibriSpeech's layout, and what is done to an utterance in training."""

    name: str = "librispeech"
    folder: str = "LibriSpeech"  # below the data root
    train: list[str] = field(
        default_factory=lambda: ["train-clean-100", "train-clean-360", "train-other-500"]
    )
    held_out: list[str] = field(default_factory=lambda: list(HELD_OUT))  # dev-clean at least
    make: str | None = None
    shortest_s: float = 0.1  # seconds of an utterance in training
    longest_s: float = 16.7
    perturb_speed: bool = True  # to 0.9, 1.0 or 1.1 of it
    bands: int = 0  # masks over features
    spans: int = 0  # masks over frames
    cut_width: int = 6  # features or frames of a mask
    fill_last_step: bool = False  # of an epoch, with utterances that it had before; else dropped
    max_unreadable: float = 0.0001  # share of the files; more of them end the run
    train_utterances: int | None = None  # how many there must be, and are planned with if none are


@dataclass
class Utterances(Batch):
    """How long a batch is, counted where no device need be asked."""

    seconds: float = 0.0
    padded_seconds: float = 0.0


class LibriSpeech(Task):
    """Tables 4 and 5, Figure 1."""

    unit = "utterance"
    headline = Headline("dev-clean", "wer", higher_is_better=False)
    splits = ("dev-clean",)
    final_splits: tuple[str, ...] = HELD_OUT[1:]  # type: ignore[misc]  # a run's: what is there
    ModelOptions = JasperOptions
    DataOptions = LibriSpeechDataOptions

    model_options: JasperOptions
    data_options: LibriSpeechDataOptions

    def __init__(self, model: Any, data: Any, context: Context) -> None:
        super().__init__(model, data, context)
        self.final_splits = tuple(split for split in HELD_OUT[1:] if split in data.held_out)
        self._front_end = Stopwatch()
        self._heard = self._padded = 0.0  # seconds, since the meters were read
        self._impossible: Tensor | None = None

    @property
    def root(self) -> Path:
        return self.context.data_root / self.data_options.folder

    def check_data(self) -> None:
        options = self.data_options
        unknown = [split for split in options.held_out if split not in HELD_OUT]
        if unknown or self.splits[0] not in options.held_out:
            raise DataProblem(
                f"data.held_out: must be {self.splits[0]} and others of {list(HELD_OUT)}, not "
                f"{options.held_out}"
            )
        make_data(options.make, MAKERS, self.root)
        check_subsets(self.root, [*options.train, *options.held_out])
        wanted = options.train_utterances
        if wanted is not None and len(self._train) != wanted:
            raise DataProblem(
                f"{self.root}: {len(self._train):,} utterances in {', '.join(options.train)}, but "
                f"there must be {wanted:,} (data.train_utterances); is the set complete?"
            )
        if self.epoch_units < self.context.micro:
            raise DataProblem(
                f"{self.root}: {self.epoch_units:,} utterances are fewer than a micro-batch has "
                f"(batch.micro={self.context.micro})"
            )
        for split in options.held_out:  # the manifests are then there for every worker
            assert len(self._held_out(split))

    @property
    def epoch_units(self) -> int:
        planned = self.data_options.train_utterances
        if planned is not None and not self.root.is_dir():
            return planned
        return len(self._kept)

    @property
    def steps_per_epoch(self) -> int:
        whole, rest = divmod(self.epoch_units, self.context.micro * self.context.slots)
        return whole + (self.data_options.fill_last_step and rest > 0)

    def trivial(self) -> tuple[str, dict[str, float]]:
        return "saying nothing", {f"{split}/wer": 100.0 for split in self.data_options.held_out}

    def about_data(self) -> str:
        if not self.root.is_dir():
            return ""
        samples = self._train.samples[self._kept]
        waste = padding_waste(self._lengths(0), self._slots(0))
        return (
            f"{len(self._kept):,} utterances, {samples.sum() / RATE / 3600:,.2f} hours "
            f"({len(self._train) - len(self._kept):,} left out by their length), padding "
            f"{100 * waste:.1f} %"
        )

    def meters(self, seconds: float, processes: int) -> dict[str, float]:
        heard, padded = self._heard, self._padded
        self._heard = self._padded = 0.0
        front_end = self._front_end.read()
        if not heard:
            return {}
        found = {
            "speed/audio_s_per_s": heard * processes / seconds,
            "speed/front_end_share": front_end / seconds,
            "speed/padding_share": 1 - heard / padded,
        }
        if self._impossible is not None:
            found["train/no_alignment"] = self._impossible.item()  # utterances since the start
        return found

    def build_model(self) -> nn.Module:
        return Jasper(self.model_options)

    def example_batch(self) -> Batch:
        rows, samples = self.context.micro, int(TYPICAL_S * RATE)
        tensors = {
            "sound": torch.zeros(rows, samples),
            "samples": torch.full((rows,), samples),
            "targets": torch.zeros(rows, 1, dtype=torch.int64),
            "target_lengths": torch.ones(rows, dtype=torch.int64),
            "index": torch.zeros(rows, dtype=torch.int64),
            "cuts": torch.zeros(rows, self._cuts, dtype=torch.float64),
        }
        return Utterances(tensors, rows, rows * TYPICAL_S, rows * TYPICAL_S)

    def train_stream(self, shard: Shard, position: int) -> Iterator[Batch]:
        slots, steps = self.context.slots, self.steps_per_epoch
        keys = slots_of_step(self._slots, steps, slots, shard, position)
        return self._load(self._training, keys)

    def eval_batches(self, split: str, shard: Shard) -> Iterator[Batch]:
        if split not in (*self.splits, *self.final_splits):
            known = (*self.splits, *self.final_splits)
            raise ValueError(f"LibriSpeech: split must be one of {known}, not {split!r}")
        manifest = self._held_out(split)
        own = np.argsort(manifest.samples, kind="stable")[shard.rank :: shard.world].tolist()
        size = self.context.eval_batch
        keys = (own[first : first + size] for first in range(0, len(own), size))
        return self._load(UtteranceBatches(manifest, self.context.seed), keys)

    def _load(
        self, source: UtteranceBatches, keys: Iterable[Sequence[Any]]
    ) -> Generator[Utterances]:
        allowed, files = self.data_options.max_unreadable, len(source.manifest)
        unreadable = Unreadable(allowed, files, "data.max_unreadable")
        unreadable.add(source.manifest.unreadable)
        for batch in load_batches(source, keys, self.context.data_workers, unreadable):
            samples = batch.tensors["samples"]
            padded = batch.tensors["sound"].numel() / RATE
            yield Utterances(batch.tensors, batch.units, samples.sum().item() / RATE, padded)

    def loss(self, model: nn.Module, batch: Batch, carry: Carry) -> LossOut:
        """Summed over utterances, not divided by the lengths of their texts."""
        assert isinstance(batch, Utterances)
        self._heard += batch.seconds
        self._padded += batch.padded_seconds
        log_p, lengths = self._listen(model, batch)
        out = ctc(log_p, lengths, batch.tensors["targets"], batch.tensors["target_lengths"])
        before = 0 if self._impossible is None else self._impossible
        self._impossible = out.impossible + before
        return LossOut(out.total, out.weight)

    def count(self, model: nn.Module, batch: Batch, carry: Carry) -> tuple[Counts, Carry]:
        tensors = batch.tensors
        log_p, lengths = self._listen(model, batch)
        out = ctc(log_p, lengths, tensors["targets"], tensors["target_lengths"])
        counts: Counts = {"utterances": out.weight, "loss": out.total.item()}
        counts["no_alignment"] = out.impossible.item()
        said = zip(tensors["targets"].tolist(), tensors["target_lengths"].tolist(), strict=True)
        for (target, length), heard in zip(said, greedy(log_p, lengths), strict=True):
            for name, value in count_errors(decode(target[:length]), heard).items():
                counts[name] = counts.get(name, 0.0) + value
        for name, lost in (("word", "lost_words"), ("character", "lost_characters")):
            missing = float(tensors.get(lost, 0))  # of sounds that can't be read: all wrong
            counts[f"{name}s"] += missing
            counts[f"{name}_edits"] += missing
        return counts, None

    def summarize(self, split: str, counts: Mapping[str, float]) -> dict[str, float]:
        return error_rates(counts) | {
            "loss": counts["loss"] / counts["utterances"],
            "no_alignment": counts["no_alignment"],
        }

    def _listen(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """log p of the letters over time; the front end runs on the model's device."""
        tensors, options = batch.tensors, self.data_options
        sound = tensors["sound"]
        if next(model.parameters()).dtype == torch.float64:
            sound = sound.double()
        with self._front_end.running(sound.device):
            features, lengths = log_mel(sound, tensors["samples"], dither=model.training)
            if self._cuts and "cuts" in tensors:
                features = cut_out(
                    features,
                    lengths,
                    tensors["cuts"],
                    bands=options.bands,
                    band_width=options.cut_width,
                    spans=options.spans,
                    span_width=options.cut_width,
                )
        log_p, lengths = model(features, lengths)
        return log_p, lengths

    @property
    def _cuts(self) -> int:
        return self.data_options.bands + self.data_options.spans

    @cached_property
    def _train(self) -> Manifest:
        return Manifest(self.root, self.data_options.train)

    def _held_out(self, split: str) -> Manifest:
        if split not in self._manifests:
            self._manifests[split] = Manifest(self.root, [split])
        return self._manifests[split]

    @cached_property
    def _manifests(self) -> dict[str, Manifest]:
        return {}

    @cached_property
    def _kept(self) -> np.ndarray:
        """Of the training utterances those that are neither too short nor too long."""
        options = self.data_options
        kept = self._train.within(options.shortest_s, options.longest_s)
        if not len(kept):
            raise DataProblem(
                f"{self.root}: no utterance in {', '.join(options.train)} has between "
                f"{options.shortest_s} and {options.longest_s} seconds"
            )
        return kept

    @cached_property
    def _training(self) -> UtteranceBatches:
        perturb = self.data_options.perturb_speed
        seed = self.context.seed
        return UtteranceBatches(self._train, seed, perturb_speed=perturb, cuts=self._cuts)

    def _lengths(self, epoch: int) -> np.ndarray:
        """Of all training utterances at their speeds of this epoch, in samples."""
        lengths: np.ndarray = self._train.samples / self._training.speeds(epoch)
        return lengths

    def _slots(self, epoch: int) -> list[Sequence[int]]:
        """Utterances of similar length in a slot, by their numbers in the manifest."""
        kept, context = self._kept, self.context
        slots = bucketed_slots(self._lengths(epoch)[kept], context.micro, context.seed)(epoch)
        wanted = self.steps_per_epoch * context.slots
        if self.data_options.fill_last_step and slots:
            slots = list(islice(cycle(slots), wanted))
        return [kept[np.asarray(slot)].tolist() for slot in slots]
