"""Subword units: one byte pair encoding of both languages, by sentencepiece.

The text stays as it is: cased, not tokenised, no character replaced by another. Only white space,
of any kind and length, becomes one space, so that a decoded sentence is the text up to white space.
Characters that the units leave out are UNKNOWN.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import sentencepiece

from tasks.base import DataProblem

PAD, UNKNOWN, BEGIN, END = range(4)  # as YouTokenToMe, which the paper's units are from, has them
UNKNOWN_TEXT = " ⁇ "  # visible to a reader, and one word that matches none to a metric

# Of the 8,192 units of the paper's model 256 are single characters, the space among them: the
# alphabets of both languages and some of what else their web pages have. A share of the text
# instead (sentencepiece's character_coverage) would mean another number in every corpus, and in a
# small one letters that are needed: 0.9999 of Multi30k leaves out a quarter of its characters.
CHARACTERS = 256
LEAST_COVERAGE = 0.98  # the smallest that sentencepiece takes: fewer characters than CHARACTERS

SPACE = "▁"  # sentencepiece's own sign for it
NAMES = ("< pad >", "< unknown >", "< begin >", "< end >")  # no word has spaces: none is in a text
RESERVED = ("\0", "▅")  # sentencepiece does not learn from words with these
LONGEST_WORD = 1 << 14  # characters; sentencepiece ends the process at four times as many
QUIET = 2  # sentencepiece's level of what it writes to stderr: errors only


def train_units(sentences: Iterable[str], size: int, name: str = "the text") -> bytes:
    """A sentencepiece model of `size` units, the special ones included.

    It is a function of how often each word stands in the text: not of the order of the sentences,
    of the files that they come from, or of the machine. The sentences are read once, and only
    their different words are kept. Problems are said to be of `name`.
    """
    words = _count_words(sentences)
    characters = _most_frequent_characters(words)
    if not characters:
        raise DataProblem(f"{name}: no units can be learned from it, it has no words")
    fewest = len(NAMES) + 1 + len(characters)  # one for the space
    if size < fewest:
        raise DataProblem(
            f"{name}: {size:,} units cannot be learned from it, its characters need {fewest:,}"
        )
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_with_counts(words),
            model_writer=model,
            input_format="tsv",
            model_type="bpe",
            vocab_size=size,
            pad_id=PAD,
            unk_id=UNKNOWN,
            bos_id=BEGIN,
            eos_id=END,
            pad_piece=NAMES[PAD],
            unk_piece=NAMES[UNKNOWN],
            bos_piece=NAMES[BEGIN],
            eos_piece=NAMES[END],
            unk_surface=UNKNOWN_TEXT,
            normalization_rule_name="identity",
            required_chars=characters,
            character_coverage=LEAST_COVERAGE,
            input_sentence_size=0,  # all of them
            max_sentence_length=8 * LONGEST_WORD,  # bytes, with the count: none is longer
            num_threads=1,  # the model names it; it changes nothing else
            minloglevel=QUIET,
        )
    except RuntimeError as error:
        possible = re.search(r"too high .*<= (\d+)", str(error))
        reason = f"it gives at most {int(possible[1]):,}" if possible else str(error)
        raise DataProblem(f"{name}: {size:,} units cannot be learned from it, {reason}") from error
    return model.getvalue()


class Units:
    """Sentences to numbers of units and back."""

    def __init__(self, model: bytes | Path) -> None:
        self.model = model if isinstance(model, bytes) else model.read_bytes()
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=self.model)

    def __reduce__(self) -> tuple[type[Units], tuple[bytes]]:
        return Units, (self.model,)

    @property
    def size(self) -> int:
        return self._processor.get_piece_size()

    def encode(self, lines: Sequence[str], threads: int = 1) -> list[list[int]]:
        """The units of each line, without BEGIN and END; none for a line of white space."""
        spaced = [" ".join(_words(line)) for line in lines]
        encoded: list[list[int]] = self._processor.encode(spaced, out_type=int, num_threads=threads)
        return encoded

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """The text of each sentence, whose PAD, BEGIN and END say nothing."""
        silent = (PAD, BEGIN, END)
        kept = [[int(i) for i in sentence if i not in silent] for sentence in ids]
        return [" ".join(self._processor.decode(sentence).split()) for sentence in kept]


def _words(line: str) -> list[str]:
    return line.replace(SPACE, " ").split()


def _count_words(sentences: Iterable[str]) -> Counter[str]:
    words: Counter[str] = Counter()
    for sentence in sentences:
        words.update(_words(sentence))
    for word in [w for w in words if len(w) > LONGEST_WORD or any(c in w for c in RESERVED)]:
        del words[word]
    return words


def _most_frequent_characters(words: Counter[str]) -> str:
    counts: Counter[str] = Counter()
    for word, times in words.items():
        for character in word:
            counts[character] += times
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    return "".join(ranked[: CHARACTERS - 1])


def _with_counts(words: Counter[str]) -> Iterator[str]:
    """Sorted, to be the same whatever the order of the sentences was."""
    return (f"{word}\t{words[word]}" for word in sorted(words))
