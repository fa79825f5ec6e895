"""The paper's tokens for "Token-BLEU": Moses' English rules in the form of NeMo's `tokenize_en`.

They are applied to German too. Two things differ from Moses' own program: hyphens inside words are
always split (`@-@`), and there is no list of abbreviations, so that the final period of every word
is split. Characters are not escaped (`&amp;`), which changes no n-gram.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from functools import cache


@cache
def _rules() -> list[tuple[re.Pattern[str], str]]:
    """In this order. A match uses up the neighbours of a mark, as the reference's: the second
    apostrophe of "rock'n'roll" stays where it is.
    """
    # Superscripts, fractions and the like are of `\w`, but tokens of their own.
    numerals = (c for c in map(chr, range(sys.maxunicode)) if unicodedata.category(c) == "No")
    rules = [
        (r"\s+", " "),
        (r"[\x00-\x1f]", ""),
        (r"^ +| +$", ""),
        (rf"[^\s.'`,\-\w]|[_{''.join(numerals)}]", r" \g<0> "),
        (r"(?<=\w)-(?=\w)", " @-@ "),
        (r"\.{2,}", r" \g<0> "),
        (r"(\D),", r"\1 , "),  # but "5,300" is one token
        (r",(?!\d)", " , "),
        (r"([\W\d])'([\W\d])", r"\1 ' \2"),
        (r"(\W)'(.)", r"\1 ' \2"),
        (r"(.)'([\W\d])", r"\1 ' \2"),
        (r"(.)'(.)", r"\1 '\2"),
        (r"([\W\d])'s", r"\1 's"),
        (r"(?<!\S)(\S*[^\s.]\S*)\.(?!\S)", r"\1 ."),  # a word's last period; dots alone stay
        (r"\.'\s*$", " . '"),
    ]
    return [(re.compile(pattern), replacement) for pattern, replacement in rules]


def tokenize(line: str) -> str:
    """The tokens of a line, separated by single spaces."""
    line = line.strip()
    for pattern, replacement in _rules():
        line = pattern.sub(replacement, line)
    return " ".join(line.split())
