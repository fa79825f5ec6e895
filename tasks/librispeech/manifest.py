"""Which utterances there are, how long they are and what is said in them, read once.

Expected under the data set's root, as LibriSpeech's archives have it:

    <subset>/<speaker>/<chapter>/<speaker>-<chapter>-<nnnn>.flac   (or .wav)
    <subset>/<speaker>/<chapter>/<speaker>-<chapter>.trans.txt     <utterance id> WHAT IS SAID
"""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np
from soundfile import LibsndfileError, SoundFile  # type: ignore[import-untyped]

from tasks.base import DataProblem
from tasks.caches import open_cache
from tasks.librispeech.alphabet import encode
from tasks.librispeech.features import RATE
from tasks.making import Say, cache_folder

SUFFIXES = (".flac", ".wav")  # of two files for one utterance the first is read
VERSION = 2  # of the cached files
WORTH_KEEPING = 20  # chapters; a subset of LibriSpeech has at least 87
THREADS = 16  # mostly wait for the disk
SECONDS_BETWEEN_LINES = 10
MOST_SAMPLES = 1 << 36  # that FLAC's header can say


class UnreadableSound(Exception):
    """Why a file can't be heard."""


class _Subset(NamedTuple):
    """Utterances in the order of their paths.

    Texts are kept in one array of bytes: Python's strings would be copied into every loading
    process as their reference counts change.
    """

    names: np.ndarray  # bytes, <speaker>/<chapter>/<utterance id>.<flac or wav>
    samples: np.ndarray  # int64, 0 where the header can't be read
    texts: np.ndarray  # uint8, one after the other
    starts: np.ndarray  # int64, of each text, and the end of the last

    @classmethod
    def of(cls, utterances: Sequence[tuple[str, int, str]]) -> _Subset:
        """Of names, samples and texts."""
        names, samples, texts = zip(*utterances, strict=True)
        encoded = [text.encode() for text in texts]
        return cls(
            np.array([os.fsencode(name) for name in names]),
            np.array(samples, dtype=np.int64),
            np.frombuffer(b"".join(encoded), dtype=np.uint8),
            np.cumsum([0, *map(len, encoded)], dtype=np.int64),
        )


class Manifest:
    """Utterances of some subsets, in their order, and in a subset in the order of paths."""

    def __init__(self, root: Path, subsets: Sequence[str], say: Say = print) -> None:
        check_subsets(root, subsets)
        self._folders = [root / subset for subset in subsets]
        self._subsets = [_open(folder, say) for folder in self._folders]
        self._firsts = np.cumsum([0, *(len(s.samples) for s in self._subsets)]).tolist()
        self.samples = np.concatenate([s.samples for s in self._subsets])  # int64, by the headers
        self.unreadable: dict[str, str] = {}  # paths, with the reason; of these `samples` is 0
        for i in np.flatnonzero(self.samples == 0).tolist():
            try:  # at every start: the file may have been repaired in its place
                self.samples[i] = samples_of(self.path(i))
            except UnreadableSound as problem:
                self.unreadable[self.path(i)] = str(problem)

    def __len__(self) -> int:
        return len(self.samples)

    def id(self, index: int) -> str:
        return self._name(index).rpartition("/")[2].rpartition(".")[0]

    def path(self, index: int) -> str:
        folder = self._folders[self._place(index)[0]]
        return f"{folder}/{self._name(index)}"

    def text(self, index: int) -> str:
        """In lower case, words divided by one space."""
        number, i = self._place(index)
        subset = self._subsets[number]
        start, stop = subset.starts[i : i + 2]
        return subset.texts[start:stop].tobytes().decode()

    def digest(self) -> str:
        """SHA-256 of what was read: ids, lengths and texts, whatever the files' format."""
        hashed = sha256()
        for subset in self._subsets:
            ids = [os.fsencode(os.fsdecode(name).rpartition(".")[0]) for name in subset.names]
            hashed.update(b"\0".join(ids))
            for array in (subset.samples, subset.texts, subset.starts):
                hashed.update(array.tobytes())
        return hashed.hexdigest()

    def within(self, shortest_s: float, longest_s: float) -> np.ndarray:
        """Indices of the readable utterances that last so many seconds, both ends included."""
        shortest = max(1, round(shortest_s * RATE))
        longest = round(longest_s * RATE)
        return np.flatnonzero((self.samples >= shortest) & (self.samples <= longest))

    def _place(self, index: int) -> tuple[int, int]:
        """The number of an utterance's subset, and its own there."""
        if not 0 <= index < len(self):
            raise IndexError(f"utterance {index} of {len(self)}")
        subset = bisect_right(self._firsts, index) - 1
        return subset, index - self._firsts[subset]

    def _name(self, index: int) -> str:
        subset, i = self._place(index)
        return os.fsdecode(self._subsets[subset].names[i])


def check_subsets(root: Path, subsets: Sequence[str]) -> None:
    """Raises DataProblem unless there is a folder for each; does not look into them."""
    for subset in subsets:
        if not (root / subset).is_dir():
            raise DataProblem(
                f"{root / subset}: no such folder. Expected {root}/{subset}/<speaker>/<chapter>/"
                f"*{SUFFIXES[0]} with a <speaker>-<chapter>.trans.txt beside them;"
                " `python -m scripts.prepare librispeech --from PATH` makes it of what you have"
            )


def samples_of(path: str) -> int:
    """How long a sound is by its header; DataProblem if it is of another kind than the others."""
    try:
        with SoundFile(path) as file:
            rate, channels, samples = file.samplerate, file.channels, int(file.frames)
    except LibsndfileError as error:
        raise UnreadableSound(error.error_string) from error
    if (rate, channels) != (RATE, 1):
        raise DataProblem(
            f"{path}: {rate:,} samples per second in {channels} channels; must be {RATE:,} in one"
        )
    if not 0 < samples < MOST_SAMPLES:
        raise UnreadableSound("its header does not say how long it is")
    return samples


# A subset, from the cache or from the files.


def _open(folder: Path, say: Say) -> _Subset:
    """Read by one process, while others that need it wait; from the cache afterwards."""
    chapters = [f"{s}/{c}" for s in _folders_in(folder) for c in _folders_in(folder / s)]
    if len(chapters) < WORTH_KEEPING:
        return _read(folder, chapters, say)
    mark = sha256(os.fsencode(folder.absolute())).hexdigest()[:16]
    place = cache_folder("librispeech") / f"{mark}-{folder.name}"
    made_from = {"version": VERSION, "state": _state(folder, chapters)}

    def make(cache: Path) -> None:
        for name, array in _read(folder, chapters, say)._asdict().items():
            np.save(cache / f"{name}.npy", array, allow_pickle=False)

    try:
        open_cache(place, made_from, make, say)
        return _Subset(
            *(np.load(place / f"{name}.npy", allow_pickle=False) for name in _Subset._fields)
        )
    except (OSError, ValueError, NotImplementedError):  # no cache, or one whose disk has no locks
        return _read(folder, chapters, say)


def _folders_in(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))


def _state(folder: Path, chapters: Sequence[str]) -> str:
    """Changes when a file comes, goes or is renamed, or a transcript is written anew."""
    hashed = sha256()
    for chapter in chapters:
        hashed.update(f"\0{chapter}\0{(folder / chapter).stat().st_mtime_ns}".encode())
        transcript = transcript_of(folder / chapter)
        if transcript.is_file():
            status = transcript.stat()
            hashed.update(f"\0{status.st_size}\0{status.st_mtime_ns}".encode())
    return hashed.hexdigest()


def _read(folder: Path, chapters: Sequence[str], say: Say) -> _Subset:
    utterances: list[tuple[str, int, str]] = []
    told = time.monotonic()
    pool = ThreadPoolExecutor(THREADS)
    try:
        read = pool.map(lambda chapter: _read_chapter(folder, chapter), chapters)
        for done, of_chapter in enumerate(read, 1):
            utterances += of_chapter
            if time.monotonic() - told > SECONDS_BETWEEN_LINES:
                told = time.monotonic()
                say(
                    f"{folder}: headers of {len(utterances):,} utterances in {done:,} of"
                    f" {len(chapters):,} chapters so far"
                )
    finally:
        pool.shutdown(cancel_futures=True)
    if not utterances:
        raise DataProblem(f"{folder}: no <speaker>/<chapter>/*{SUFFIXES[0]} in it")
    return _Subset.of(utterances)


def _read_chapter(folder: Path, chapter: str) -> list[tuple[str, int, str]]:
    """Names, samples and texts."""
    place = folder / chapter
    files = sounds_in(place)
    transcript = transcript_of(place)
    texts = _read_transcript(transcript)
    without_text = sorted(files.keys() - texts.keys())
    if without_text:
        raise DataProblem(
            f"{place / files[without_text[0]]}: {transcript} has no line for it; there must be one"
        )
    without_sound = sorted(texts.keys() - files.keys())
    if without_sound:
        raise DataProblem(
            f"{place / without_sound[0]}{SUFFIXES[0]}: no such file, but {transcript} has a line"
            " for it"
        )
    return [
        (f"{chapter}/{file}", _samples_or_0(f"{place}/{file}"), texts[name])
        for name, file in files.items()
    ]


def sounds_in(chapter: Path) -> dict[str, str]:
    """Names of sound files by utterance id, in the order that FLAC files of these ids have."""
    with os.scandir(chapter) as entries:
        names = [e.name for e in entries if e.name.endswith(SUFFIXES) and e.name[0] != "."]
    found: dict[str, str] = {}
    for name in sorted(names, key=lambda name: (name.rpartition(".")[0] + SUFFIXES[0], name)):
        found.setdefault(name.rpartition(".")[0], name)
    return found


def _samples_or_0(path: str) -> int:
    """Why it can't be read is asked later: what libsndfile says may be another thread's reason."""
    try:
        return samples_of(path)
    except UnreadableSound:
        return 0


def transcript_of(chapter: Path) -> Path:
    """Where a chapter's texts are."""
    return chapter / f"{chapter.parent.name}-{chapter.name}.trans.txt"


def _read_transcript(file: Path) -> dict[str, str]:
    """Texts by utterance."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise DataProblem(
            f"{file}: no such file; it must have a line `<utterance id> WHAT IS SAID` for each of"
            f" {file.parent}/*{SUFFIXES[0]}"
        ) from None
    except UnicodeDecodeError as error:
        raise DataProblem(f"{file}: not UTF-8: {error}") from error
    texts: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        name, *words = line.split() or [""]
        if not name:
            continue
        if not words or name in texts:
            wrong = "a second line for" if words else "nothing is said in"
            raise DataProblem(f"{file}: line {number}: {wrong} {name}; must be one line with text")
        texts[name] = " ".join(words).lower()
        try:
            encode(texts[name])
        except ValueError as error:
            reason = str(error).removeprefix("encode: ")
            raise DataProblem(f"{file}: line {number}: {reason}") from error
    return texts
