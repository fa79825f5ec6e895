"""Batches of utterances: sound as it will be heard, and what is said in it as classes."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from soundfile import LibsndfileError, SoundFile  # type: ignore[import-untyped]
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from tasks.base import DataProblem
from tasks.librispeech.alphabet import encode
from tasks.librispeech.features import RATE, SHORTEST, SPEEDS, speed_perturb
from tasks.librispeech.manifest import Manifest, UnreadableSound
from tasks.loading import Loaded
from tasks.seeding import permutation, python_random
from tasks.streams import Item


class UtteranceBatches:
    """An Item gives its utterance at a speed of its own, a plain index as it was spoken.

    The tensors of a batch, padded with zeros to the longest:

        sound           float32 (B, N)  full scale is 1; at another speed the samples are no whole
                                        numbers any more
        samples         int64 (B,)
        targets         int64 (B, S)
        target_lengths  int64 (B,)
        index           int64 (B,)      in the manifest
        cuts            float64 (B, C)  of Items: draws from [0, 1), as `cut_out` takes them
        lost_words, lost_characters     of plain indices, if there are unreadable ones: how many of
                                        both were said in them
    """

    def __init__(
        self, manifest: Manifest, seed: int, *, perturb_speed: bool = False, cuts: int = 0
    ) -> None:
        self.manifest, self.seed = manifest, seed
        self.perturb_speed, self.cuts = perturb_speed, cuts

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
        targets = [torch.tensor(encode(self.manifest.text(i))) for i in indices]
        tensors = {
            "sound": pad_sequence(sounds, batch_first=True),
            "samples": torch.tensor([len(sound) for sound in sounds]),
            "targets": pad_sequence(targets, batch_first=True),
            "target_lengths": torch.tensor([len(target) for target in targets]),
            "index": torch.tensor(indices),
        }
        places = [self.places(key) for key in heard if isinstance(key, Item)]
        if places:
            tensors["cuts"] = torch.tensor(places, dtype=torch.float64)
        elif unreadable:
            tensors["lost_words"] = torch.tensor(lost_words)
            tensors["lost_characters"] = torch.tensor(lost_characters)
        return Loaded(tensors, len(keys), unreadable)

    def sound(self, key: Item | int) -> Tensor:
        """float32 (N,), with as many samples as features need."""
        sound = torch.from_numpy(read_sound(self.manifest.path(_index(key))))
        if isinstance(key, Item):
            sound = speed_perturb(sound, self.speed(key))
        if len(sound) < SHORTEST:
            raise UnreadableSound(f"too short: {len(sound)} samples, must be {SHORTEST} at least")
        return sound

    def speed(self, key: Item) -> float:
        """How many times as fast an utterance is played."""
        if not self.perturb_speed:
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


def read_sound(path: str) -> np.ndarray:
    """float32 (N,) in [-1, 1), all that the header promises."""
    try:
        with SoundFile(path) as file:
            rate, channels, promised = file.samplerate, file.channels, file.frames
            sound: np.ndarray = file.read(dtype="float32")
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
