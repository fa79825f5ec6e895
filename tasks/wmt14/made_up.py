"""The sentence pairs of the smoke scale, in two made-up languages."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from random import Random

from tasks.base import DataProblem
from tasks.files import rename
from tasks.seeding import python_random

PAIRS = {"train": 600, "valid": 40, "test": 40}
WORDS = {"noun": 24, "verb": 12, "adjective": 12}  # in each language
SYLLABLES = {
    "en": ("ba", "do", "fen", "gi", "lor", "mip", "nu", "sal"),
    "de": ("chu", "gra", "klö", "pfe", "schi", "trü", "wau", "zen"),
}
ARTICLES = {"en": "the", "de": "das"}


def make_made_up(root: Path) -> None:
    """Writes {train,valid,test}.{en,de}; the folder appears complete or not at all.

    Every word has one translation. In the second language the verb comes last and nouns have a
    capital, so that a small model learns it in a short time. No sentence comes twice.
    """
    texts = _texts()
    if root.exists():
        for name, text in texts.items():
            file = root / name
            if not file.is_file() or file.read_bytes() != text:
                raise DataProblem(
                    f"{file}: not the made-up text; move {root} elsewhere to have it made"
                )
        return
    root.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{root.name}-", dir=root.parent))
    try:
        for name, text in texts.items():
            (temporary / name).write_bytes(text)
        rename(temporary, root)
    except OSError:
        if not root.exists():  # otherwise another process was quicker
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _texts() -> dict[str, bytes]:
    """What is in each file."""
    random = python_random("made-up translations")
    dictionary = _dictionary(random)
    pairs: dict[tuple[str, str], None] = {}
    while len(pairs) < sum(PAIRS.values()):
        pairs[_pair(random, dictionary)] = None
    drawn = iter(pairs)
    texts = {}
    for split, count in PAIRS.items():
        sides = zip(*(next(drawn) for _ in range(count)), strict=True)
        for language, sentences in zip(("en", "de"), sides, strict=True):
            texts[f"{split}.{language}"] = "".join(f"{s}\n" for s in sentences).encode()
    return texts


def _dictionary(random: Random) -> dict[str, list[tuple[str, str]]]:
    """Words of two syllables and their translations, by kind."""
    count = sum(WORDS.values())
    columns = []
    for syllables in SYLLABLES.values():
        words = [first + second for first in syllables for second in syllables]
        columns.append(random.sample(words, count))
    entries = iter(zip(*columns, strict=True))
    return {kind: [next(entries) for _ in range(n)] for kind, n in WORDS.items()}


def _pair(random: Random, dictionary: dict[str, list[tuple[str, str]]]) -> tuple[str, str]:
    """Subject, verb, object; subject, object, verb."""
    subject, thing = (_noun_phrase(random, dictionary) for _ in range(2))
    verb = random.choice(dictionary["verb"])
    english = [*subject[0], verb[0], *thing[0]]
    german = [*subject[1], *thing[1], verb[1]]
    return _sentence(english), _sentence(german)


def _noun_phrase(
    random: Random, dictionary: dict[str, list[tuple[str, str]]]
) -> tuple[list[str], list[str]]:
    """An article, none to two adjectives and a noun, in both languages."""
    adjectives = random.sample(dictionary["adjective"], random.randrange(3))
    noun = random.choice(dictionary["noun"])
    english = [ARTICLES["en"], *(word for word, _ in adjectives), noun[0]]
    german = [ARTICLES["de"], *(word for _, word in adjectives), noun[1].capitalize()]
    return english, german


def _sentence(words: list[str]) -> str:
    text = " ".join(words)
    return f"{text[0].upper()}{text[1:]}."
