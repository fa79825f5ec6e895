"""The sound of the smoke scale: sung syllables in LibriSpeech's layout, each letter a tone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import soundfile  # type: ignore[import-untyped]

from tasks.base import DataProblem
from tasks.files import rename
from tasks.making import alone
from tasks.seeding import derive_seed, python_random

RATE = 16_000  # Hz
WORDS = ("DO", "RE", "MI", "FA", "SO", "LA", "TI")
LETTERS = "ADEFILMORST"
LOWEST = 300.0  # Hz, of the first letter
STEP = 2 ** (1 / 3)  # from one letter's tone to the next
TONE, GAP = 0.08, 0.04  # seconds of a letter, and of a space or an end
# Speakers of each subset, who differ in pitch, and the utterances of each.
SPEAKERS = {
    "train-clean-100": (range(1, 7), 20),
    "dev-clean": (range(7, 9), 6),
    "dev-other": (range(9, 11), 6),
    "test-clean": (range(11, 13), 6),
    "test-other": (range(13, 15), 6),
}


def make_made_up(root: Path) -> None:
    """Two to four words each, 0.4 to 0.9 s; the folder appears complete or not at all."""
    if root.exists():
        _check_whole(root)
        return
    with alone(root, print) as temporary:
        if root.exists():  # another process was quicker
            _check_whole(root)
            return
        made = temporary / root.name
        for path, lines in _transcripts().items():
            chapter = (made / path).parent
            chapter.mkdir(parents=True)
            for name, text in lines.items():
                samples = sing(text, name)
                soundfile.write(chapter / f"{name}.flac", samples, RATE, "PCM_16", format="FLAC")
            (made / path).write_text(_joined(lines))
        rename(made, root)


def sing(text: str, name: str) -> np.ndarray:
    """The tones of a text as 16-bit samples; `name` says who sings, and how much off the tone."""
    speaker = int(name.partition("-")[0])
    generator = np.random.Generator(np.random.Philox(derive_seed("made-up sound", name)))
    pitch = 1.01 ** (speaker - 7) * generator.uniform(0.99, 1.01)
    time = np.arange(round(TONE * RATE)) / RATE
    swell = np.sin(np.pi * time / TONE)  # no click at either end
    silence = np.zeros(round(GAP * RATE))
    pieces = [silence]
    for letter in text:
        tone = LOWEST * STEP ** LETTERS.find(letter) * pitch
        pieces.append(silence if letter == " " else swell * np.sin(2 * np.pi * tone * time))
    sound = np.concatenate([*pieces, silence])
    hiss = generator.uniform(-1, 1, len(sound))
    out: np.ndarray = np.round(8000 * sound + 20 * hiss).astype(np.int16)
    return out


def _transcripts() -> dict[str, dict[str, str]]:
    """Of each transcript's path the texts by utterance."""
    found = {}
    for subset, (speakers, count) in SPEAKERS.items():
        for speaker in speakers:
            random = python_random("made-up speech", speaker)
            found[f"{subset}/{speaker}/1/{speaker}-1.trans.txt"] = {
                f"{speaker}-1-{i:04d}": " ".join(random.choices(WORDS, k=random.randrange(2, 5)))
                for i in range(count)
            }
    return found


def _joined(lines: dict[str, str]) -> str:
    return "".join(f"{name} {text}\n" for name, text in lines.items())


def _check_whole(root: Path) -> None:
    for path, lines in _transcripts().items():
        file = root / path
        if not file.is_file() or file.read_bytes() != _joined(lines).encode():
            raise DataProblem(
                f"{file}: not the made-up speech; move {root} elsewhere to have it made"
            )
        for name in lines:
            sound = file.parent / f"{name}.flac"
            if not sound.is_file() or not sound.stat().st_size:
                raise DataProblem(
                    f"{sound}: missing or empty; move {root} elsewhere to have it made"
                )
