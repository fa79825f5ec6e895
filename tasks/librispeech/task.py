"""LibriSpeech: what is said, letter by letter, and how many words of it are wrong."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tasks.base import Batch, Carry, Context, Counts, DataProblem, Headline, LossOut, Shard
from tasks.librispeech.alphabet import count_errors, decode, error_rates, greedy
from tasks.librispeech.batches import UtteranceBatches, Utterances, silence
from tasks.librispeech.commands import make_commands, make_many_commands
from tasks.librispeech.features import RATE, SPEEDS, cut_out, frame_counts, log_mel
from tasks.librispeech.loss import CtcOut, ctc
from tasks.librispeech.made_up import make_made_up
from tasks.librispeech.manifest import Manifest, check_subsets
from tasks.librispeech.model import Jasper, JasperOptions, output_lengths
from tasks.librispeech.options import HELD_OUT, LibriSpeechDataOptions, check_options
from tasks.librispeech.predict import SpeechPredictions
from tasks.librispeech.prepare import official_counts
from tasks.librispeech.stopwatch import Stopwatch
from tasks.loading import Unreadable, load_batches
from tasks.making import Makers, make_data
from tasks.manifests import describe_data
from tasks.streams import (
    bucketed_micro_batches,
    eval_micro_batches,
    examples_to_train_on,
    micro_batches_of_step,
    padding_waste,
    shuffled_micro_batches,
)

MAKERS: Makers = {
    "made_up": make_made_up,
    "commands": make_commands,
    "many_commands": make_many_commands,
}
PAPER = "librispeech"  # the data set of the paper
TYPICAL_S = 12.0  # of an utterance of LibriSpeech


class LibriSpeech(SpeechPredictions):
    """Tables 4 and 5, Figure 1."""

    unit = "utterance"
    headline = Headline("dev-clean", "wer", higher_is_better=False)
    splits = ("dev-clean",)
    can_checkpoint_activations = True
    normalises_batches = True
    loads_in_processes = True
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

    def prepare_data(self) -> None:
        options = self.data_options
        check_options(options)
        make_data(options.make, MAKERS, self.root)
        check_subsets(self.root, [*options.train, *options.held_out])
        wanted = options.train_utterances
        if wanted is not None and len(self._train) != wanted:
            raise DataProblem(
                f"{self.root}: {len(self._train):,} utterances in {', '.join(options.train)}, but "
                f"there must be {wanted:,} (data.train_utterances); is the set complete?"
            )
        kept = len(self._kept_in(0))
        if kept < self.context.micro:
            raise DataProblem(
                f"{self.root}: {kept:,} utterances are fewer than a micro-batch has "
                f"(batch.micro={self.context.micro})"
            )
        for split in options.held_out:  # the manifests are then there for every worker
            assert len(self._held_out(split))

    def prepare_evaluation(self, splits: Sequence[str]) -> None:
        make_data(self.data_options.make, MAKERS, self.root)
        for split in splits:
            assert len(self._held_out(split))

    @property
    def epoch_units(self) -> int:
        planned = self.data_options.train_utterances
        if planned is not None and not self.root.is_dir():
            options = self.data_options
            return len(examples_to_train_on(planned, options.train_every, options.validate_every))
        # The reference that filters by the length at an epoch's speed counts before it does.
        played = self.data_options.filter_by == "played"
        return len(self._trained_on if played else self._kept)

    @property
    def steps_per_epoch(self) -> int:
        whole, rest = divmod(self.epoch_units, self.context.micro * self.context.micro_batches)
        return whole + (self.data_options.fill_last_step and rest > 0)

    def baseline_metrics(self) -> tuple[str, dict[str, float]]:
        return "saying nothing", {f"{split}/wer": 100.0 for split in self.data_options.held_out}

    def about_data(self) -> str:
        if not self.root.is_dir():
            return ""
        kept = self._kept_in(0)
        hours = self._train.samples[kept].sum() / RATE / 3600
        left_out = len(self._trained_on) - len(kept)
        return (
            f"{len(kept):,} utterances, {hours:,.2f} hours "
            f"({left_out:,} left out by their length), {self._about_padding()}"
        )

    def _about_padding(self) -> str:
        """What share of a batch is padding, and what batches of similar lengths would save."""
        lengths = self._lengths(0)
        waste = padding_waste(lengths, self._slots(0))
        if self.data_options.batching == "similar":
            return f"padding {100 * waste:.1f} %"
        least = padding_waste(lengths, self._batches_of(self._kept_in(0), 0, "similar"))
        return (
            f"padding {100 * waste:.1f} % in random batches: {(1 - least) / (1 - waste):.2f} times "
            f"the work of batches of similar lengths ({100 * least:.1f} %, data.batching=similar)"
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

    def data_manifest(self) -> dict[str, Any]:
        name, held_out = self.data_options.name, self.data_options.held_out
        manifests = {"train": self._train} | {split: self._held_out(split) for split in held_out}
        counts = {split: {"utterances": len(self._validated_on(split))} for split in held_out}
        counts = {"train": {"utterances": len(self._train)}} | counts
        sums = {split: found.digest() for split, found in manifests.items()}
        official = official_counts(held_out) if name == PAPER else {}
        return describe_data(self.root, name, counts, sums, official)

    def build_model(self) -> nn.Module:
        again = self.context.checkpoint_activations
        return Jasper(self.model_options, checkpoint_activations=again)

    def example_batch(self) -> Batch:
        """Of one length, at all speeds."""
        speeds = SPEEDS if self.data_options.perturb_speed else ()
        return silence(self.context.micro, TYPICAL_S, speeds, self._cuts)

    def largest_batch(self) -> Batch:
        speeds = (min(SPEEDS),) if self.data_options.perturb_speed else ()
        seconds = self.data_options.longest_s / min(speeds, default=1.0)
        return silence(self.context.micro, seconds, speeds, self._cuts)

    def train_stream(self, shard: Shard, position: int) -> Iterator[Batch]:
        micro_batches, steps = self.context.micro_batches, self.steps_per_epoch
        keys = micro_batches_of_step(self._slots, steps, micro_batches, shard, position)
        return self._load(self._training, keys)

    def eval_batches(self, split: str, shard: Shard) -> Iterator[Batch]:
        if split not in (*self.splits, *self.final_splits):
            known = (*self.splits, *self.final_splits)
            raise ValueError(f"LibriSpeech: split must be one of {known}, not {split!r}")
        manifest, chosen = self._held_out(split), self._validated_on(split)
        order = chosen[np.argsort(manifest.samples[chosen], kind="stable")]
        micro_batches = eval_micro_batches(len(order), self.context.eval_batch, shard)
        keys = (order[micro_batch].tolist() for micro_batch in micro_batches)
        batches = self._load(UtteranceBatches(manifest, self.context.seed), keys)
        return (replace(batch, split=split) for batch in batches)

    def _load(
        self, source: UtteranceBatches, keys: Iterable[Sequence[Any]]
    ) -> Generator[Utterances]:
        allowed, files = self.data_options.max_unreadable, len(source.manifest)
        unreadable = Unreadable(allowed, files, "data.max_unreadable")
        unreadable.add(source.manifest.unreadable)
        for batch in load_batches(source, keys, self.context.data_workers, unreadable):
            samples = batch.tensors["samples"]
            padded = len(samples) * samples.max().item() / RATE
            yield Utterances(batch.tensors, batch.units, samples.sum().item() / RATE, padded)

    def loss(self, model: nn.Module, batch: Batch, carry: Carry) -> LossOut:
        """Summed over utterances, not divided by the lengths of their texts."""
        assert isinstance(batch, Utterances)
        self._heard += batch.seconds
        self._padded += batch.padded_seconds
        log_p, _ = self.listen(model, batch)
        out = self._ctc(log_p, batch)
        before = 0 if self._impossible is None else self._impossible
        self._impossible = out.impossible + before
        return LossOut(out.total, out.weight)

    def count(self, model: nn.Module, batch: Batch, carry: Carry) -> tuple[Counts, Carry]:
        tensors = batch.tensors
        assert isinstance(batch, Utterances)
        log_p, lengths = self.listen(model, batch)
        out = self._ctc(log_p, batch)
        counts: Counts = {"utterances": out.weight, "loss": out.total.item()}
        counts["no_alignment"] = out.impossible.item()
        said = zip(*(batch.at_host(n).tolist() for n in ("targets", "target_lengths")), strict=True)
        heard = greedy(log_p, lengths)
        if self.predictions is not None:
            self.keep(batch, heard, self._held_out(batch.split))
        for (target, length), hypothesis in zip(said, heard, strict=True):
            for name, value in count_errors(decode(target[:length]), hypothesis).items():
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

    def _ctc(self, log_p: Tensor, batch: Utterances) -> CtcOut:
        frames = frame_counts(batch.at_host("samples"))
        lengths = output_lengths(frames, self.model_options.stride)
        return ctc(log_p, lengths, batch.at_host("targets"), batch.at_host("target_lengths"))

    def listen(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """log p of the letters over time; the front end runs on the model's device."""
        assert isinstance(batch, Utterances)
        tensors, options = batch.tensors, self.data_options
        with self._front_end.running(tensors["sound"].device):
            sound = batch.played()
            if next(model.parameters()).dtype == torch.float64:
                sound = sound.double()
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
                    anywhere=options.masks_over == "batch",
                )
        log_p, lengths = model(features, lengths)
        return log_p, lengths

    @property
    def _cuts(self) -> int:
        return self.data_options.bands + self.data_options.spans

    @cached_property
    def _train(self) -> Manifest:
        return Manifest(self.root, self.data_options.train)

    @cached_property
    def _trained_on(self) -> np.ndarray:
        """Of the training utterances, whatever their lengths."""
        options = self.data_options
        return examples_to_train_on(len(self._train), options.train_every, options.validate_every)

    def _validated_on(self, split: str) -> np.ndarray:
        """Which utterances of the split's manifest are evaluated."""
        every = self.data_options.validate_every
        if split != self.splits[0]:
            every = None
        return np.arange(0, len(self._held_out(split)), every or 1)

    def _held_out(self, split: str) -> Manifest:
        if self.data_options.validate_every is not None and split == self.splits[0]:
            return self._train
        if split not in self._manifests:
            self._manifests[split] = Manifest(self.root, [split])
        return self._manifests[split]

    @cached_property
    def _manifests(self) -> dict[str, Manifest]:
        return {}

    @cached_property
    def _kept(self) -> np.ndarray:
        """Of the training utterances those that were recorded neither too short nor too long."""
        options = self.data_options
        fits = self._train.within(options.shortest_s, options.longest_s)
        kept = np.intersect1d(fits, self._trained_on)
        if not len(kept):
            raise DataProblem(
                f"{self.root}: no utterance in {', '.join(options.train)} has between "
                f"{options.shortest_s} and {options.longest_s} seconds"
            )
        return kept

    def _kept_in(self, epoch: int) -> np.ndarray:
        """Those that an epoch trains on."""
        options = self.data_options
        if options.filter_by == "recorded":
            return self._kept
        seconds = self._lengths(epoch) / RATE
        fits = (seconds >= options.shortest_s) & (seconds <= options.longest_s)
        fits &= self._train.samples > 0  # 0 if unreadable
        kept: np.ndarray = self._trained_on[fits[self._trained_on]]
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
        """The micro-batches of an epoch, by their utterances' numbers in the manifest."""
        micro_batches = self._batches_of(self._kept_in(epoch), epoch, self.data_options.batching)
        if self.data_options.fill_last_step or self.data_options.filter_by == "played":
            micro_batches = list(
                islice(cycle(micro_batches), self.steps_per_epoch * self.context.micro_batches)
            )
        return micro_batches

    def _batches_of(self, kept: np.ndarray, epoch: int, batching: str) -> list[Sequence[int]]:
        micro, seed = self.context.micro, self.context.seed
        if batching == "random":
            micro_batches = shuffled_micro_batches(len(kept), micro, seed)(epoch)
        else:
            micro_batches = bucketed_micro_batches(self._lengths(epoch)[kept], micro, seed)(epoch)
        return [kept[np.asarray(micro_batch)].tolist() for micro_batch in micro_batches]
