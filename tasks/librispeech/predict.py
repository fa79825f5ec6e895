"""What a model of speech predicts: for the examples of an evaluation, and for any sound file."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from soundfile import LibsndfileError, SoundFile  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torchaudio.functional import resample  # type: ignore[import-untyped]

from tasks.base import BadInput, Batch, DataProblem, HubFacts, Input, Prediction, Task
from tasks.librispeech.alphabet import CHARACTERS, count_errors, greedy
from tasks.librispeech.batches import Utterances
from tasks.librispeech.features import (
    HOP,
    LOG_FLOOR,
    MELS,
    N_FFT,
    PRE_EMPHASIS,
    RATE,
    SHORTEST,
    WINDOW,
)
from tasks.librispeech.manifest import Manifest

FILE = "alphabet.json"


class SpeechPredictions(Task):
    """The part of the task that writes down what it hears."""

    hub = HubFacts(
        "automatic-speech-recognition",
        {"wer": ("wer", "word error rate (%)"), "cer": ("cer", "character error rate (%)")},
        languages=("en",),
        example="recording.flac",
    )

    @property
    @abstractmethod
    def root(self) -> Path:
        """The data set's folder."""

    @abstractmethod
    def listen(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """log p of the characters over time, (B, T, classes), and the lengths."""

    def model_files(self) -> dict[str, bytes]:
        """The blank of CTC is the class after the last character."""
        return {FILE: (json.dumps([*CHARACTERS]) + "\n").encode()}

    def use_model_files(self, files: Mapping[str, bytes]) -> None:
        """The alphabet is part of the code; another one would be another model."""
        if files.get(FILE) != self.model_files()[FILE]:
            raise DataProblem(f"{FILE}: must be the {len(CHARACTERS)} characters {CHARACTERS!r}")

    def protocol(self, split: str) -> str:
        return "greedy CTC decoding without a language model; errors of words in lower case"

    def preprocessing(self) -> dict[str, Any]:
        return {
            "sample_rate": RATE,
            "pre_emphasis": PRE_EMPHASIS,
            "n_fft": N_FFT,
            "window_samples": WINDOW,
            "hop_samples": HOP,
            "mel_filters": MELS,
            "mel_scale": "slaney",
            "log_floor": LOG_FLOOR,
            "normalisation": "mean 0 and deviation 1 of each feature over the utterance",
        }

    def keep(self, batch: Batch, heard: Sequence[str], manifest: Manifest) -> None:
        """Adds the wanted ones of a batch to the predictions."""
        assert self.predictions is not None
        for index, hypothesis in zip(batch.tensors["index"].tolist(), heard, strict=True):
            if self.predictions.wants(index):
                reference = manifest.text(index)
                self.predictions.rows[index] = {
                    "id": manifest.id(index),
                    "file": Path(manifest.path(index)).relative_to(self.root).as_posix(),
                    "reference": reference,
                    "hypothesis": hypothesis,
                    **{n: int(c) for n, c in count_errors(reference, hypothesis).items()},
                }

    def read_inputs(self, sources: Sequence[str], options: Any) -> Iterator[Input]:
        if not sources:
            yield Input("sounds", BadInput("no sound files were given"))
        for source in sources:
            try:
                yield Input(source, read_any_sound(source))
            except BadInput as problem:
                yield Input(source, problem)

    def predict(self, model: nn.Module, inputs: Sequence[Any], options: Any) -> list[Prediction]:
        device = next(model.parameters()).device
        tensors = {
            "sound": pad_sequence(list(inputs), batch_first=True),
            "samples": torch.tensor([len(sound) for sound in inputs]),
        }
        log_p, lengths = self.listen(model, Utterances(tensors, len(inputs)).to(device))
        return [
            {"hypothesis": text, "seconds": len(sound) / RATE, "text": text}
            for text, sound in zip(greedy(log_p, lengths), inputs, strict=True)
        ]


def read_any_sound(path: str) -> Tensor:
    """float32 (N,) at 16 kHz: the mean of all channels, resampled."""
    if not Path(path).is_file():
        raise BadInput("no such file")
    try:
        with SoundFile(path) as file:
            rate, sound = int(file.samplerate), file.read(dtype="float32", always_2d=True)
    except (LibsndfileError, OSError) as error:
        reason = getattr(error, "error_string", str(error))
        raise BadInput(f"no sound that can be read: {reason}") from None
    if not len(sound):
        raise BadInput("the sound lasts 0 s")
    if not np.isfinite(sound).all():
        raise BadInput("has samples that are no finite numbers")
    mono = torch.from_numpy(sound).mean(1)
    if rate != RATE:
        mono = resample(mono, rate, RATE)
    if len(mono) < SHORTEST:
        shortest = SHORTEST / RATE
        raise BadInput(f"the sound lasts {len(sound) / rate:.4f} s; at least {shortest:.3f} s")
    return mono
