"""The data options of LibriSpeech, and what may be wrong with them."""

from __future__ import annotations

from dataclasses import dataclass, field

from tasks.base import DataProblem
from tasks.loading import check_max_unreadable

HELD_OUT = ("dev-clean", "dev-other", "test-clean", "test-other")
CHOICES = {
    "batching": ("random", "similar"),
    "filter_by": ("recorded", "played"),
    "masks_over": ("utterance", "batch"),
}


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
    batching: str = "similar"  # lengths in a micro-batch; or "random", whatever their lengths
    filter_by: str = (
        "recorded"  # length; or "played": at an epoch's speed, and the rest fills it up
    )
    masks_over: str = "utterance"  # frames; or "batch": those of its padding too
    max_unreadable: float = 0.0001  # share of the files; more of them end the run
    train_utterances: int | None = None  # how many there must be, and are planned with if none are
    train_every: int = 1  # of these, only every n-th
    # Every n-th training utterance is validated on, instead of dev-clean's, and never trained on.
    validate_every: int | None = None


def check_options(options: LibriSpeechDataOptions) -> None:
    """Raises DataProblem where a value, or two of them together, can't be used."""
    check_max_unreadable(options.max_unreadable)
    unknown = [split for split in options.held_out if split not in HELD_OUT]
    if unknown or HELD_OUT[0] not in options.held_out:
        raise DataProblem(
            f"data.held_out: must be {HELD_OUT[0]} and others of {list(HELD_OUT)}, not "
            f"{options.held_out}"
        )
    for name, known in CHOICES.items():
        chosen = getattr(options, name)
        if chosen not in known:
            raise DataProblem(f"data.{name}: must be one of {', '.join(known)}, not {chosen!r}")
    every, validate = options.train_every, options.validate_every
    if every < 1:
        raise DataProblem(f"data.train_every: must be at least 1, not {every}")
    if validate is not None and validate < 2:
        raise DataProblem(f"data.validate_every: must be at least 2 or null, not {validate}")
