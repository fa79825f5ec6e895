"""Pairs of sentences as numbers: units of the training text, and memory maps made once.

Expected in the data set's folder: {train,valid,test}.{en,de}, UTF-8, one sentence a line, raw: with
upper case and without tokenisation. Line i of one language translates line i of the other. Units
are learned from both sides of train. Its pairs are filtered as the paper's code did and kept in the
user's cache, because the texts may be other people's; valid and test are never filtered.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from tasks.base import DataProblem
from tasks.caches import open_cache, state_of
from tasks.download import Report
from tasks.making import cache_folder
from tasks.wmt14.units import BEGIN, END, Units, train_units

SOURCE, TARGET = LANGUAGES = ("en", "de")
SPLITS = ("train", "valid", "test")
RULES = ("empty", "same", "short", "long", "difference", "ratio")  # the first that hits counts
KEPT = -1  # no rule hits

# Tokens: of every pair the source, then the target. Offsets: where each pair begins, and the end.
ARRAYS = ("tokens", "offsets", "source_lengths", "target_lengths")

VERSION = 2  # of the cached files; another one makes them anew
PAIRS_AT_ONCE = 20_000
BYTES_BETWEEN_REPORTS = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Which pairs are trained on; lengths are tokens with BEGIN and END. The default is NeMo's.

    A pair whose two sides are the same text is not a translation, and is left out too.
    """

    shortest: int = 3
    longest: int = 128
    difference: int = 25  # of the two lengths, at most
    ratio: float = 2.5  # of the two lengths without BEGIN and END, larger over smaller, at most

    def broken(self, source: np.ndarray, target: np.ndarray, same: np.ndarray) -> np.ndarray:
        """For each pair the place in RULES of the first rule that it breaks, or KEPT."""
        small, large = np.minimum(source, target), np.maximum(source, target)
        breaks = (
            small <= 2,
            same,
            small < self.shortest,
            large > self.longest,
            large - small > self.difference,
            (large - 2) / np.maximum(small - 2, 1) > self.ratio,
        )
        return np.select(breaks, range(len(RULES)), default=KEPT)


@dataclass(frozen=True)
class HeldOut:
    """A split for evaluation: the texts as they are, and as tokens, BEGIN … END."""

    sources: list[str]
    references: list[str]
    source_tokens: list[np.ndarray]
    target_tokens: list[np.ndarray]

    def __len__(self) -> int:
        return len(self.sources)


class Pairs:
    """Training pairs in memory maps that all processes share; pickled as the folder's name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        kinds = (np.int32, np.int64, np.int32, np.int32)
        self.tokens, self.offsets, self.source_lengths, self.target_lengths = (
            np.asarray(np.memmap(folder / name, dtype=kind, mode="r"))
            for name, kind in zip(ARRAYS, kinds, strict=True)
        )

    def __reduce__(self) -> tuple[type[Pairs], tuple[Path]]:
        return Pairs, (self.folder,)

    def __len__(self) -> int:
        return len(self.source_lengths)

    def source(self, i: int) -> np.ndarray:
        """Tokens of the English sentence, BEGIN … END."""
        start = self.offsets[i]
        return self.tokens[start : start + self.source_lengths[i]]

    def target(self, i: int) -> np.ndarray:
        """Tokens of the German sentence, BEGIN … END."""
        start = self.offsets[i] + self.source_lengths[i]
        return self.tokens[start : start + self.target_lengths[i]]


class Corpus:
    """A folder of texts, opened; for the first time, its training pairs are encoded."""

    def __init__(
        self,
        root: Path,
        vocabulary: int,
        limits: Limits | None = None,
        report: Report | None = None,
        units: Units | None = None,
    ) -> None:
        """With a vocabulary of its own training text, or with the `units` of a trained model."""
        check_files(root)
        self.root = root
        limits = limits or Limits()
        place = _place(root, vocabulary, limits, units)
        made_from = {
            "version": VERSION,
            "sentencepiece": sentencepiece.__version__,
            "vocabulary": vocabulary,
            "limits": asdict(limits),
            "units": "" if units is None else sha256(units.model).hexdigest(),
            "texts": state_of(*(_file(root, "train", language) for language in LANGUAGES)),
        }
        report = report or (lambda *_: None)
        try:
            made = open_cache(
                place,
                made_from,
                lambda folder: _write(folder, root, vocabulary, limits, report, units),
                lambda text: print(text, flush=True),
            )
        except OSError as error:
            raise DataProblem(f"{place}: the pairs cannot be kept there: {error}") from error
        self.statistics: dict[str, int] = made["about"]
        self.digest: str = made["files"]["pairs/tokens"]["sha256"]  # of the encoded training pairs
        self.units = Units(place / "units.model")
        self.train = Pairs(place / "pairs")
        self._held_out: dict[str, HeldOut] = {}

    def held_out(self, split: str) -> HeldOut:
        """All pairs of valid or test, encoded when they are first asked for."""
        if split not in SPLITS[1:]:
            raise ValueError(f"split must be one of {SPLITS[1:]}, not {split!r}")
        if split not in self._held_out:
            self._held_out[split] = read_held_out(self.root, split, self.units)
        return self._held_out[split]


def read_held_out(root: Path, split: str, units: Units) -> HeldOut:
    """All pairs of a split, encoded."""
    check_files(root, (split,))
    source, target = ([*lines_of(_file(root, split, lang))] for lang in LANGUAGES)
    _check_equal(root, split, len(source), len(target))
    tokens = (
        [np.array([BEGIN, *ids, END], np.int32) for ids in units.encode(lines)]
        for lines in (source, target)
    )
    return HeldOut(source, target, *tokens)


def check_files(root: Path, splits: Sequence[str] = SPLITS) -> None:
    """Raises DataProblem unless the texts of some splits are there and not empty."""
    for file in (_file(root, split, language) for split in splits for language in LANGUAGES):
        if not file.is_file():
            raise DataProblem(
                f"{file}: no such file. Expected {root}/{{{','.join(splits)}}}.{{en,de}}: raw text,"
                " one sentence a line, the same number of lines in both languages;"
                " `python -m scripts.prepare wmt14 --from PATH` makes it of what you have"
            )
        if file.stat().st_size == 0:
            raise DataProblem(f"{file}: it is empty")


def lines_of(file: Path, count: Callable[[int], None] | None = None) -> Iterator[str]:
    r"""Lines without their end, which is \n or \r\n alone; `count` is told the bytes of each.

    Other ends of lines that Unicode knows, as U+2028, are part of sentences in these texts.
    """
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if count is not None:
                count(len(line))
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                raise DataProblem(f"{file}: line {number:,} is not UTF-8: {error}") from error
            yield text.removesuffix("\n").removesuffix("\r")


# Where it is kept.


def _file(root: Path, split: str, language: str) -> Path:
    return root / f"{split}.{language}"


def _place(root: Path, vocabulary: int, limits: Limits, units: Units | None) -> Path:
    """One for each folder of texts and each choice of options."""
    options: tuple[Any, ...] = (str(root.absolute()), vocabulary, sorted(asdict(limits).items()))
    if units is not None:
        options += (sha256(units.model).hexdigest(),)
    return cache_folder("wmt14") / sha256(repr(options).encode()).hexdigest()[:16]


# How it is made.


def _write(
    folder: Path, root: Path, vocabulary: int, limits: Limits, report: Report, units: Units | None
) -> dict[str, int]:
    """The vocabulary and the pairs; what is counted on the way."""
    (folder / "pairs").mkdir(parents=True)
    if units is None:
        sentences = _both_sides(root, _Progress("learning the vocabulary of", root, report))
        units = Units(train_units(sentences, vocabulary, str(root / "train.*")))
    (folder / "units.model").write_bytes(units.model)
    statistics = _write_pairs(folder / "pairs", root, units, limits, report)
    if not statistics["kept"]:
        raise DataProblem(f"{root}: {limits} leaves none of {statistics['pairs']:,} pairs")
    return statistics


def _both_sides(root: Path, count: Callable[[int], None]) -> Iterator[str]:
    """Every sentence of train; at their end it is known whether they are pairs."""
    numbers = dict.fromkeys(LANGUAGES, 0)
    for language in LANGUAGES:
        for line in lines_of(_file(root, "train", language), count):
            numbers[language] += 1
            yield line
    _check_equal(root, "train", *numbers.values())


def _write_pairs(
    folder: Path, root: Path, units: Units, limits: Limits, report: Report
) -> dict[str, int]:
    progress = _Progress("encoding", root, report)
    files = (_file(root, "train", language) for language in LANGUAGES)
    texts = zip(*(lines_of(file, progress) for file in files), strict=True)
    threads = len(os.sched_getaffinity(0))  # they change nothing but the time
    lengths, broken = [], []
    with (folder / "tokens").open("wb") as tokens:
        while some := list(islice(texts, PAIRS_AT_ONCE)):
            encoded = units.encode([*chain.from_iterable(some)], threads)
            sizes = np.fromiter(map(len, encoded), np.int32, len(encoded)).reshape(-1, 2) + 2
            same = np.fromiter((a.split() == b.split() for a, b in some), bool, len(some))
            broken.append(limits.broken(sizes[:, 0], sizes[:, 1], same))
            kept = np.flatnonzero(broken[-1] == KEPT)
            lengths.append(sizes[kept])
            sides = (encoded[side] for pair in kept.tolist() for side in (2 * pair, 2 * pair + 1))
            flat = chain.from_iterable((BEGIN, *ids, END) for ids in sides)
            np.fromiter(flat, np.int32, lengths[-1].sum()).tofile(tokens)
    source, target = np.concatenate(lengths).T
    offsets = np.concatenate([[0], np.cumsum(source + target, dtype=np.int64)])
    for name, array in zip(ARRAYS[1:], (offsets, source, target), strict=True):
        (folder / name).write_bytes(array.tobytes())
    reasons = np.concatenate(broken)
    return {
        "pairs": len(reasons),
        "kept": len(source),
        **{f"dropped_{rule}": int((reasons == i).sum()) for i, rule in enumerate(RULES)},
        "source_tokens": int(source.sum()),
        "target_tokens": int(target.sum()),
    }


def _check_equal(root: Path, split: str, source: int, target: int) -> None:
    if source != target:
        raise DataProblem(
            f"{_file(root, split, TARGET)}: {target:,} lines, but {split}.{SOURCE} has {source:,};"
            " line i of one must translate line i of the other"
        )


class _Progress:
    """Adds up the bytes that were read of both sides of train."""

    def __init__(self, what: str, root: Path, report: Report) -> None:
        self.what, self.report = f"{what} {root.name}", report
        self.total = sum(_file(root, "train", lang).stat().st_size for lang in LANGUAGES)
        self.done = self.told = 0

    def __call__(self, read: int) -> None:
        self.done += read
        if self.done - self.told >= BYTES_BETWEEN_REPORTS or self.done == self.total:
            self.told = self.done
            self.report(self.what, self.done, self.total)
