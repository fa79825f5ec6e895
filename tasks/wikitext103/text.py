"""Word-level text as numbers: a vocabulary of the training text, and memory maps made once.

Expected in the data set's folder: wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens, words
divided by white space. The end of every line, also of an empty one, is the word <eos>. Words are
numbered by how often they stand in the training text, which the adaptive softmax relies on; <eos>
has number 0. The numbers are kept in the user's cache, because the texts may be other people's.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np

from tasks.base import DataProblem
from tasks.caches import open_cache, state_of
from tasks.files import parse_json
from tasks.making import cache_folder

SPLITS = ("train", "valid", "test")
END = "<eos>"
UNKNOWN = "<unk>"
LINES_AT_ONCE = 50_000
SECONDS_BETWEEN_LINES = 10
VERSION = 2  # of the cached files


class Text:
    """The three splits as int32 arrays that lie on the disk, and the words."""

    def __init__(self, folder: Path, words: Sequence[str] | None = None) -> None:
        """With the words of the training text, or those of a trained model."""
        files = {split: folder / f"wiki.{split}.tokens" for split in SPLITS}
        check_files(folder)
        given = "" if words is None else sha256("\n".join(words).encode()).hexdigest()
        mark = sha256(os.fsencode(folder.absolute()) + given.encode()).hexdigest()[:16]
        place = cache_folder("text") / mark
        made_from = {"version": VERSION, "texts": state_of(*files.values()), "words": given}
        try:
            made = open_cache(
                place,
                made_from,
                lambda made: _encode(files, made, words),
                lambda text: print(text, flush=True),
            )
        except OSError as error:
            raise DataProblem(f"{place}: the words cannot be kept there: {error}") from error
        self.words: list[str] = parse_json((place / "words.json").read_text())
        self.splits: dict[str, np.ndarray] = {
            split: np.memmap(place / f"{split}.int32", dtype=np.int32, mode="r") for split in SPLITS
        }
        self.digests: dict[str, str] = {  # SHA-256 of the numbered words
            split: made["files"][f"{split}.int32"]["sha256"] for split in SPLITS
        }

    def most_common(self, count: int) -> None:
        """Keeps the words that stand most often in the training text; the others become <unk>."""
        if UNKNOWN not in self.words[:count]:
            raise DataProblem(
                f"data.most_common={count}: {UNKNOWN}, which has to stand for all other words, is "
                "not among the most common ones"
            )
        unknown = self.words.index(UNKNOWN)
        self.words = self.words[:count]
        self.splits = {
            split: np.where(numbers < count, numbers, np.int32(unknown))
            for split, numbers in self.splits.items()
        }


def check_files(folder: Path) -> None:
    """Raises DataProblem unless the three texts are there and not empty."""
    for split in SPLITS:
        file = folder / f"wiki.{split}.tokens"
        if not file.is_file():
            raise DataProblem(
                f"{file}: no such file. Expected {folder}/wiki.{{train,valid,test}}.tokens, words"
                " divided by spaces; `python -m scripts.prepare wikitext103` gets WikiText-103"
            )
        if file.stat().st_size == 0:
            raise DataProblem(f"{file}: it is empty")


def encode_file(file: Path, words: Sequence[str]) -> np.ndarray:
    """A text as numbers in the vocabulary of a trained model."""
    if not file.is_file():
        raise DataProblem(f"{file}: no such file; it must have words divided by spaces")
    number = {word: i for i, word in enumerate(words)}
    parts = [_numbers(some, number, file, "the model's vocabulary") for some in words_of(file)]
    text = np.concatenate(parts)
    if len(text) < 2:
        raise DataProblem(f"{file}: it is empty")
    return text


def words_of(file: Path) -> Iterator[list[str]]:
    """The words of some lines at a time, with <eos> at the end of each line."""
    some: list[str] = []
    with file.open(encoding="utf-8") as lines:
        try:
            for number, line in enumerate(lines, 1):
                some += line.split()
                some.append(END)
                if number % LINES_AT_ONCE == 0:
                    yield some
                    some = []
        except UnicodeDecodeError as error:
            raise DataProblem(f"{file}: not UTF-8: {error}") from error
    yield some


def _encode(files: dict[str, Path], made: Path, given: Sequence[str] | None) -> None:
    """Counts the words of train unless a model's are given, then writes every split."""
    words = _count_words(files["train"]) if given is None else [*given]
    vocabulary = files["train"].name if given is None else "the model's vocabulary"
    number = {word: i for i, word in enumerate(words)}
    for split, file in files.items():
        with (made / f"{split}.int32").open("wb") as out:
            for some in _with_progress(file, "numbering"):
                out.write(_numbers(some, number, file, vocabulary).tobytes())
    (made / "words.json").write_text(json.dumps(words))


def _count_words(train: Path) -> list[str]:
    """<eos>, then by how often they are used; equal counts as they came."""
    counts: Counter[str] = Counter()
    for some in _with_progress(train, "counting words of"):
        counts.update(some)
    counts.pop(END, None)
    return [END, *(word for word, _ in counts.most_common())]


def _numbers(words: list[str], number: dict[str, int], file: Path, vocabulary: str) -> np.ndarray:
    unknown = number.get(UNKNOWN, -1)
    encoded = np.fromiter((number.get(w, unknown) for w in words), np.int32, count=len(words))
    if encoded.size and encoded.min() < 0:
        strange = next(w for w in words if w not in number)
        raise DataProblem(
            f"{file}: {strange!r} is not a word of {vocabulary}, which has no {UNKNOWN} to stand"
            " for it"
        )
    return encoded


def _with_progress(file: Path, what: str) -> Iterator[list[str]]:
    told, seen = time.monotonic(), 0
    for some in words_of(file):
        yield some
        seen += len(some)
        if time.monotonic() - told > SECONDS_BETWEEN_LINES:
            told = time.monotonic()
            print(f"{what} {file.name}: {seen:,} so far", flush=True)
