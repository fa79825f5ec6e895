"""Text as the model spells it, and how far what it spells is from what was said."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from tasks.base import Counts

CHARACTERS = " abcdefghijklmnopqrstuvwxyz'"
BLANK = len(CHARACTERS)  # the last class
CLASSES = BLANK + 1
_PLACES = {character: place for place, character in enumerate(CHARACTERS)}


def encode(text: str) -> list[int]:
    """The classes of a text's characters, upper case as lower case."""
    text = text.lower()
    unknown = sorted(set(text) - _PLACES.keys())
    if unknown:
        raise ValueError(
            f"encode: the alphabet is {CHARACTERS!r}; it has no {', '.join(map(repr, unknown))}"
            f" as in {text!r}"
        )
    return [_PLACES[character] for character in text]


def decode(classes: Iterable[int]) -> str:
    """The text of classes without blanks."""
    return "".join(CHARACTERS[place] for place in classes)


def greedy(log_probabilities: Tensor, lengths: Tensor) -> list[str]:
    """Of (B, T, classes): the likeliest class of each frame, repeats as one, without blanks."""
    best = log_probabilities.argmax(-1)
    keep = best != BLANK
    keep[:, 1:] &= best[:, 1:] != best[:, :-1]
    keep &= torch.arange(best.shape[1], device=best.device) < lengths.to(best.device)[:, None]
    best, keep = best.cpu(), keep.cpu()
    return [decode(row[kept].tolist()) for row, kept in zip(best, keep, strict=True)]


def edits(reference: Sequence[Hashable], hypothesis: Sequence[Hashable]) -> int:
    """Levenshtein's distance: the fewest insertions, deletions and substitutions.

    Myers's algorithm (1999) in Hyyrö's form (2003). A column of the table of distances is two
    integers with a bit per row, of where it rises and where it falls by one to the next row.
    """
    if not reference:
        return len(hypothesis)
    places: dict[Hashable, int] = {}
    for i, symbol in enumerate(reference):
        places[symbol] = places.get(symbol, 0) | 1 << i
    last = 1 << (len(reference) - 1)
    all_rows = 2 * last - 1
    rises, falls = all_rows, 0
    distance = len(reference)
    for symbol in hypothesis:
        equal = places.get(symbol, 0)
        diagonal = (((equal & rises) + rises) ^ rises) | equal | falls
        grows = falls | ~(diagonal | rises)  # from the column before, in the same row
        shrinks = rises & diagonal
        if grows & last:
            distance += 1
        elif shrinks & last:
            distance -= 1
        grows = grows << 1 | 1  # above the first row the distance grows with every symbol
        shrinks <<= 1
        rises = (shrinks | ~(diagonal | grows)) & all_rows
        falls = grows & diagonal & all_rows
    return distance


def count_errors(reference: str, hypothesis: str) -> Counts:
    """Edits of words and of characters, and how many of both the reference has; they add up."""
    words = reference.split()
    return {
        "word_edits": float(edits(words, hypothesis.split())),
        "words": float(len(words)),
        "character_edits": float(edits(reference, hypothesis)),
        "characters": float(len(reference)),
    }


def error_rates(counts: Mapping[str, float]) -> dict[str, float]:
    """Of a whole corpus in percent: all edits per all that was said."""
    return {
        "wer": 100 * counts["word_edits"] / counts["words"],
        "cer": 100 * counts["character_edits"] / counts["characters"],
    }
