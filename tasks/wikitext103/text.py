"""Word-level text as numbers: a vocabulary of the training text, and memory maps made once.

Expected in the data set's folder: wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens, words
divided by white space. The end of every line, also of an empty one, is the word <eos>. Words are
numbered by how often they stand in the training text, which the adaptive softmax relies on; <eos>
has number 0. The numbers are kept in the user's cache, because the texts may be other people's.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import numpy as np

from tasks.base import DataProblem
from tasks.making import cache_folder

SPLITS = ("train", "valid", "test")
END = "<eos>"
UNKNOWN = "<unk>"
LINES_AT_ONCE = 50_000
SECONDS_BETWEEN_LINES = 10


class Text:
    """The three splits as int32 arrays that lie on the disk, and the words."""

    def __init__(self, folder: Path) -> None:
        files = {split: folder / f"wiki.{split}.tokens" for split in SPLITS}
        check_files(folder)
        place = _cache_folder(files)
        if not (place / "words.json").exists():
            _encode(files, place)
        self.words: list[str] = json.loads((place / "words.json").read_text())
        self.splits: dict[str, np.ndarray] = {
            split: np.memmap(place / f"{split}.int32", dtype=np.int32, mode="r") for split in SPLITS
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


def _cache_folder(files: dict[str, Path]) -> Path:
    """One for each state of the texts: another size or time of a file is another text."""
    stats = [(str(f.absolute()), f.stat().st_size, f.stat().st_mtime_ns) for f in files.values()]
    mark = sha256(repr(stats).encode()).hexdigest()[:16]
    return cache_folder("text") / mark


def _encode(files: dict[str, Path], place: Path) -> None:
    """Counts the words of train, then writes every split; appears complete or not at all."""
    place.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    try:
        counts: Counter[str] = Counter()
        for some in _with_progress(files["train"], "counting words of"):
            counts.update(some)
        counts.pop(END, None)
        words = [END, *(word for word, _ in counts.most_common())]  # equal counts: as they came
        number = {word: i for i, word in enumerate(words)}
        unknown = number.get(UNKNOWN, -1)
        for split, file in files.items():
            with (made / f"{split}.int32").open("wb") as out:
                for some in _with_progress(file, "numbering"):
                    encoded = np.fromiter(
                        (number.get(w, unknown) for w in some), np.int32, count=len(some)
                    )
                    if encoded.size and encoded.min() < 0:
                        strange = next(w for w in some if w not in number)
                        raise DataProblem(
                            f"{file}: {strange!r} is not a word of {files['train'].name}, which has"
                            f" no {UNKNOWN} to stand for it"
                        )
                    out.write(encoded.tobytes())
        (made / "words.json").write_text(json.dumps(words))
        try:
            made.rename(place)
        except OSError:
            if not (place / "words.json").exists():
                raise
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _with_progress(file: Path, what: str) -> Iterator[list[str]]:
    told, seen = time.monotonic(), 0
    for some in words_of(file):
        yield some
        seen += len(some)
        if time.monotonic() - told > SECONDS_BETWEEN_LINES:
            told = time.monotonic()
            print(f"{what} {file.name}: {seen:,} so far", flush=True)
