"""Messages of a computer program in English and German, for small scales: Gramps, for genealogy.

They are short and alike ("Include dates of birth", "Matches people with a note"), so that a small
Transformer learns to translate them from some hundreds of pairs. The catalogue is in gramps' wheel;
nothing else of it is read.
"""

from __future__ import annotations

import gettext
import hashlib
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from tasks.base import DataProblem
from tasks.making import Say
from tasks.wheels import Member
from tasks.wmt14.pairs import Pair, Splits, make_pairs, without_repeats

HELD_OUT = 800  # pairs of valid and of test
FEWEST, MOST = 3, 14  # words of an English message; a German one may have two
MARKUP = re.compile(r"[<>{}\\=@#*\n]")  # tags, several lines; placeholders such as %(place)s stay
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
                "train.en": "c83dc041a2d6b69d5863771bbd59bc724cdb9a708283eb454cd02f528662f33a",
                "train.de": "8684ea275cd3c57ea8d229fda3fe0a375c0fb15b20cb5d0ec73a10a17e353da3",
                "valid.en": "2fb35b11fcb50dd7c6b448095345d5500723455c5a4a8a05c64862d497bbe7eb",
                "valid.de": "2fc75fdcc5a2aad6f7627adea11ca0c1d2d8b88409d6cf23be0aeb93940cde12",
                "test.en": "312123051e9c4d88f9141f7cd05b7a93d26e812cfafb883172258fbee70c4958",
                "test.de": "0f7fde16cab4d80a27651f2e040d4ea1594de91c09314c70e2e213d943669069",
            }
        )
    )


def make_messages(root: Path, say: Say = print, source: Source | None = None) -> bool:
    """Writes the pairs to `root`, unless they are there (False); complete or not at all."""
    source = source or Source()
    return make_pairs(
        root,
        say,
        lambda catalogue: split_messages(read_catalogue(catalogue), source.held_out),
        what="program messages",
        package=source.package,
        megabytes=17,
        members=(source.catalogue,),
        sums=source.sha256,
    )


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
    return FEWEST <= len(pair.en.split()) <= MOST and 2 <= len(pair.de.split()) <= MOST


def split_messages(pairs: list[Pair], held_out: int) -> Splits:
    """Drawn by the SHA-256 of the English text, and in that order: any part is a random one."""
    drawn = sorted(pairs, key=lambda pair: hashlib.sha256(pair.en.encode()).digest())
    return without_repeats(
        {
            "valid": drawn[:held_out],
            "test": drawn[held_out : 2 * held_out],
            "train": drawn[2 * held_out :],
        }
    )
