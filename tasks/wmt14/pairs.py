"""Pairs of sentences that small data sets are made of: no text in two splits, one line each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

SPLITS = ("train", "valid", "test")
LANGUAGES = ("en", "de")


class Pair(NamedTuple):
    """One text in both languages."""

    en: str
    de: str


def without_repeats(splits: Mapping[str, list[Pair]]) -> dict[str, list[Pair]]:
    """Without texts of valid, in either language, in other splits, and those of test in train.

    Texts are the same if they are so without case and punctuation.
    """
    kept: dict[str, list[Pair]] = {}
    held_out: set[str] = set()
    for split in ("valid", "test", "train"):
        kept[split] = [pair for pair in splits[split] if held_out.isdisjoint(_words_only(pair))]
        held_out.update(words for pair in kept[split] for words in _words_only(pair))
    return {split: kept[split] for split in SPLITS}


def _words_only(pair: Pair) -> Iterator[str]:
    for text in pair:
        yield " ".join(re.findall(r"\w+", text.casefold()))


def write_pairs(folder: Path, splits: Mapping[str, list[Pair]]) -> None:
    """Files {train,valid,test}.{en,de}, one text a line."""
    folder.mkdir()
    for split, pairs in splits.items():
        for language in LANGUAGES:
            text = "".join(f"{getattr(pair, language)}\n" for pair in pairs)
            (folder / f"{split}.{language}").write_bytes(text.encode())
