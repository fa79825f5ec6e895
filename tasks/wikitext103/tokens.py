"""Words as WikiText has them: punctuation apart, and what joins two parts of a word as @-@.

WikiText was tokenised with the Moses scripts; these are the rules of theirs that English prose
needs.
"""

from __future__ import annotations

import re
from unicodedata import category, normalize

# A full stop after these does not end the sentence; after the second kind not before a number.
_SHORT = re.compile(
    "Adj|Adm|Adv|Bros|Brig|Capt|Cmdr|Col|Comdr|Corp|Cpl|Dr|Drs|Ens|Fr|Gen|Gov|Hon|Hosp|Insp|Jr|Lt"
    "|Maj|Messrs|Mlle|Mme|Mr|Mrs|Ms|Msgr|Mt|Op|Pfc|Ph|Prof|Pvt|Rep|Reps|Res|Rev|Rt|Sen|Sens|Sgt|Sr"
    "|St|Supt|Surg|Inc|Ltd|Co|vs|etc|rev|c|ca|cf|al|v|pp|p|[A-Z]"
)
_SHORT_BEFORE_NUMBER = re.compile("No|Nos|Art|Nr|Vol|Jan|Feb|Aug|Sept|Oct|Nov|Dec")
_PLAIN_QUOTES = str.maketrans("“”„«»‘’", '"""""\'\'')
_APART = re.compile(r"[^\w\s.'`,\-\ue000@]")


def tokenize(text: str) -> list[str]:
    """The words of a line."""
    text = normalize("NFC", text).translate(_PLAIN_QUOTES).replace("<formula>", " \ue000 ")
    text = re.sub(r"(\.{2,})", r" \1 ", text)
    text = _APART.sub(
        lambda found: found[0] if category(found[0])[0] == "M" else f" {found[0]} ", text
    )
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", " @,@ ", text)
    text = re.sub(r"(?<=\d)\.(?=\d)", " @.@ ", text)
    text = re.sub(r"(?<=\w)-(?=\w)", " @-@ ", text)
    text = re.sub(r"(?<!@),(?!@)", " , ", text)
    text = re.sub(r"(?<![\w.])'|'(?!\w)|(?<=\.)'(?!s\b)|`", " ' ", text)
    # don 't, Boyle 's, the 1990 's
    text = re.sub(r"(?<=[^\W\d_])'(?=[^\W\d_])|(?<=[\d.])'(?=s\b)", " '", text)
    words = text.split()
    parts = [
        part for i, word in enumerate(words) for part in _full_stop(word, words[i + 1 : i + 2])
    ]
    return [part.replace("\ue000", "<formula>") for part in parts]


def _full_stop(word: str, following: list[str]) -> list[str]:
    """A stop that ends a sentence is a word of its own; that of an abbreviation is not."""
    if not word.endswith(".") or not word.strip("."):
        return [word]
    stem, next_character = word[:-1], following[0][0] if following else ""
    has_stop = "." in stem and any(character.isalpha() for character in stem)  # U.S.
    is_short = (
        _SHORT.fullmatch(stem)
        or (_SHORT_BEFORE_NUMBER.fullmatch(stem) and next_character.isdigit())
        or next_character.islower()
    )
    return [word] if has_stop or (is_short and following) else [stem, "."]
