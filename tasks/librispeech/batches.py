"""Batches of utterances: sound as it was recorded, and what is said in it as classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import cycle, islice
from typing import Any

import numpy as np
import torch
from soundfile import LibsndfileError, SoundFile  # type: ignore[import-untyped]
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from tasks.base import Batch, DataProblem
from tasks.librispeech.alphabet import encode
from tasks.librispeech.features import RATE, SHORTEST, SPEEDS, as_float, play, played_samples
from tasks.librispeech.manifest import Manifest, UnreadableSound
from tasks.loading import Loaded
from tasks.seeding import permutation, python_random
from tasks.streams import Item

KEPT_BYTES = 1 << 26  # of decoded sounds in each loading process: all of a small set
READ_ON_HOST = ("samples", "recorded", "speeds", "targets", "target_lengths")  # of a batch


@dataclass
class Utterances(Batch):
    """How long a batch is, counted where no device need be asked."""

    seconds: float = 0.0
    padded_seconds: float = 0.0
    split: str = ""  # in evaluation
    on_host: dict[str, Tensor] = field(default_factory=dict)  # of a batch on another device

    def to(self, device: Any) -> Utterances:
        """Keeps on the host what is read there, so that it need not wait for a copy."""
        kept = {name: self.at_host(name) for name in READ_ON_HOST if name in self.tensors}
        moved = super().to(device)
        assert isinstance(moved, Utterances)
        return moved if torch.device(device).type == "cpu" else replace(moved, on_host=kept)

    def at_host(self, name: str) -> Tensor:
        return self.on_host.get(name, self.tensors[name])

    def played(self) -> Tensor:
        """The sound as it is heard: floating-point numbers, at the utterances' speeds."""
        if "speeds" not in self.tensors:
            return as_float(self.tensors["sound"])
        recorded, speeds = (self.at_host(name).tolist() for name in ("recorded", "speeds"))
        return play(self.tensors["sound"], recorded, speeds)


class UtteranceBatches:
    """An Item gives its utterance at a speed of its own, a plain index as it was spoken.

    The tensors of a batch, padded with zeros to the longest:

        sound           int16 (B, N)    as recorded; float32 of full scale 1 if a file of the batch
                                        has other samples than those of 16 bits
        samples         int64 (B,)      at their speeds
        targets         int64 (B, S)
        target_lengths  int64 (B,)
        index           int64 (B,)      in the manifest
        cuts            float64 (B, C)  of Items: draws from [0, 1), as `cut_out` takes them
        recorded        int64 (B,)      samples at speed 1; of Items, if speeds are perturbed
        speeds          float64 (B,)    of the same
        lost_words, lost_characters     of plain indices, if there are unreadable ones: how many of
                                        both were said in them

    `features.play` changes speeds, where the features are made: half the bytes come that far, and
    resampling is about half of the work of loading.
    """

    def __init__(
        self, manifest: Manifest, seed: int, *, perturb_speed: bool = False, cuts: int = 0
    ) -> None:
        self.manifest, self.seed = manifest, seed
        self.perturb_speed, self.cuts = perturb_speed, cuts
        self._sounds: dict[int, Tensor] = {}
        self._kept_bytes = 0

    def __getitems__(self, keys: list[Item] | list[int]) -> Loaded | DataProblem:
        """Unreadable utterances are left out, which the loss's weight accounts for."""
        sounds: list[Tensor] = []
        heard: list[Item | int] = []
        unreadable: dict[str, str] = {}
        lost_words = lost_characters = 0
        for key in keys:
            try:
                sounds.append(self.sound(key))
                heard.append(key)
            except UnreadableSound as problem:
                unreadable[self.manifest.path(_index(key))] = str(problem)
                text = self.manifest.text(_index(key))
                lost_words += len(text.split())
                lost_characters += len(text)
        if not heard:
            name, reason = next(iter(unreadable.items()))
            return DataProblem(f"{name}: cannot be read, as all sounds of its batch: {reason}")
        indices = [_index(key) for key in heard]
        recorded, speeds = [len(sound) for sound in sounds], [self.speed(key) for key in heard]
        if any(sound.dtype != torch.int16 for sound in sounds):
            sounds = [as_float(sound) for sound in sounds]
        targets = [torch.tensor(encode(self.manifest.text(i))) for i in indices]
        tensors = {
            "sound": pad_sequence(sounds, batch_first=True),
            "samples": torch.tensor(list(map(played_samples, recorded, speeds))),
            "targets": pad_sequence(targets, batch_first=True),
            "target_lengths": torch.tensor([len(target) for target in targets]),
            "index": torch.tensor(indices),
        }
        places = [self.places(key) for key in heard if isinstance(key, Item)]
        if places:
            tensors["cuts"] = torch.tensor(places, dtype=torch.float64)
            if self.perturb_speed:
                tensors["recorded"] = torch.tensor(recorded)
                tensors["speeds"] = torch.tensor(speeds, dtype=torch.float64)
        elif unreadable:
            tensors["lost_words"] = torch.tensor(lost_words)
            tensors["lost_characters"] = torch.tensor(lost_characters)
        return Loaded(tensors, len(keys), unreadable)

    def sound(self, key: Item | int) -> Tensor:
        """int16 or float32 (N,) as recorded, with as many samples as features need."""
        sound = self._recorded(_index(key))
        played = played_samples(len(sound), self.speed(key))
        if played < SHORTEST:
            raise UnreadableSound(f"too short: {played} samples, must be {SHORTEST} at least")
        return sound

    def _recorded(self, index: int) -> Tensor:
        sound = self._sounds.get(index)
        if sound is None:
            sound = torch.from_numpy(read_sound(self.manifest.path(index)))
            if self._kept_bytes + sound.nbytes <= KEPT_BYTES:
                self._sounds[index] = sound
                self._kept_bytes += sound.nbytes
        return sound

    def speed(self, key: Item | int) -> float:
        """How many times as fast an utterance is played."""
        if not self.perturb_speed or not isinstance(key, Item):
            return 1.0
        return float(self.speeds(key.epoch)[key.index])

    def speeds(self, epoch: int) -> np.ndarray:
        """Of all utterances of the manifest, float64; who makes batches sorts by what they become.

        Drawn at once, as a draw of its own for each would take a quarter of a minute.
        """
        if not self.perturb_speed:
            return np.ones(len(self.manifest))
        return _speeds(len(self.manifest), self.seed, epoch)

    def places(self, key: Item) -> list[float]:
        """Where an utterance is cut out: draws from [0, 1)."""
        random = python_random(self.seed, "cut", key.epoch, key.index)
        return [random.random() for _ in range(self.cuts)]


def silence(rows: int, seconds: float, speeds: Sequence[float], cuts: int) -> Utterances:
    """A training batch for counting and timing: equally long, at the given speeds by turns."""
    samples, of_rows = int(seconds * RATE), list(islice(cycle(speeds or (1.0,)), rows))
    recorded = [int(samples * speed) for speed in of_rows]
    tensors = {
        "sound": torch.zeros(rows, max(recorded), dtype=torch.int16),
        "samples": torch.tensor(
            [played_samples(*each) for each in zip(recorded, of_rows, strict=True)]
        ),
        "targets": torch.zeros(rows, 1, dtype=torch.int64),
        "target_lengths": torch.ones(rows, dtype=torch.int64),
        "index": torch.zeros(rows, dtype=torch.int64),
        "cuts": torch.zeros(rows, cuts, dtype=torch.float64),
    }
    if speeds:
        tensors["recorded"] = torch.tensor(recorded)
        tensors["speeds"] = torch.tensor(of_rows, dtype=torch.float64)
    return Utterances(tensors, rows, rows * seconds, rows * seconds)


def read_sound(path: str) -> np.ndarray:
    """All that the header promises: int16 (N,) if the file has 16-bit samples, else float32."""
    try:
        with SoundFile(path) as file:
            rate, channels, promised = file.samplerate, file.channels, file.frames
            dtype = "int16" if file.subtype == "PCM_16" else "float32"
            sound: np.ndarray = file.read(dtype=dtype)
    except LibsndfileError as error:
        raise UnreadableSound(error.error_string) from error
    if (rate, channels) != (RATE, 1):  # the manifest's file was another
        raise UnreadableSound(f"{rate:,} samples per second in {channels} channels")
    if len(sound) != promised:
        raise UnreadableSound(f"truncated: {len(sound):,} of {promised:,} samples")
    return sound


@lru_cache(maxsize=2)  # an epoch's, and the next one's at its end
def _speeds(utterances: int, seed: int, epoch: int) -> np.ndarray:
    drawn: np.ndarray = np.array(SPEEDS)[
        permutation(utterances, "speed", seed, epoch) % len(SPEEDS)
    ]
    return drawn


def _index(key: Item | int) -> int:
    return key.index if isinstance(key, Item) else key
