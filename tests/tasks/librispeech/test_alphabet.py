"""Spelling, decoding, and edits against a recursion that tries everything."""

from __future__ import annotations

import itertools
import random
from collections.abc import Hashable, Sequence
from functools import cache

import pytest
import torch

from tasks.librispeech.alphabet import (
    BLANK,
    CHARACTERS,
    CLASSES,
    count_errors,
    decode,
    edits,
    encode,
    error_rates,
    greedy,
)


def brute_force(reference: Sequence[Hashable], hypothesis: Sequence[Hashable]) -> int:
    @cache
    def rest(i: int, j: int) -> int:
        if i == len(reference) or j == len(hypothesis):
            return len(reference) - i + len(hypothesis) - j
        replace = rest(i + 1, j + 1) + (reference[i] != hypothesis[j])
        return min(replace, rest(i + 1, j) + 1, rest(i, j + 1) + 1)

    return rest(0, 0)


def test_the_alphabet():
    assert len(CHARACTERS) == len(set(CHARACTERS)) == BLANK == 28
    assert CLASSES == 29
    assert encode("AZ it's") == [1, 26, 0, 9, 20, 27, 19]
    assert decode(encode("WHO'S there")) == "who's there"
    assert encode("") == []


def test_unknown_characters_are_named():
    with pytest.raises(ValueError, match=r"it has no '-', 'é' as in 'café-bar'"):
        encode("café-bar")


def test_greedy():
    blank = CHARACTERS + "_"  # with a sign for the blank
    paths = ["__hee_l_lloo_", "aa  bb_b''xyz", "_____________", "a_a_a________"]
    best = torch.tensor([[blank.index(c) for c in path] for path in paths])
    scores = torch.randn(*best.shape, CLASSES).log_softmax(-1)
    scores.scatter_(-1, best[..., None], 1.0)
    assert greedy(scores, torch.tensor([13, 10, 13, 3])) == ["hello", "a bb'", "", "aa"]


def test_greedy_on_anything():
    scores = torch.randn(5, 40, CLASSES)
    scores[..., BLANK] += 2
    scores[..., 1] += 2
    lengths = [40, 1, 17, 0, 33]
    expected = []
    for row, length in zip(scores, lengths, strict=True):
        runs = [symbol for symbol, _ in itertools.groupby(row.argmax(-1).tolist()[:length])]
        expected.append("".join(CHARACTERS[s] for s in runs if s != BLANK))
    assert greedy(scores, torch.tensor(lengths)) == expected


def test_edits_are_the_fewest():
    draw = random.Random(0)
    for _ in range(2000):
        symbols = "abcdef"[: draw.randint(1, 6)]
        a, b = (draw.choices(symbols, k=draw.randint(0, 9)) for _ in range(2))
        assert edits(a, b) == brute_force(a, b), (a, b)


def test_edits_of_long_texts():
    """More symbols than a machine word has bits."""
    draw = random.Random(1)
    for length in (63, 64, 65, 130, 200):
        a = draw.choices("abcd", k=length)
        b = [c for c in a if draw.random() > 0.1]
        assert edits(a, b) == len(a) - len(b)
        draw.shuffle(b)
        assert edits(a, b) == edits(b, a) == brute_force(a, b)


def test_a_corpus_is_the_sum_of_its_utterances():
    """Not the mean of their rates."""
    pairs = [("the cat sat", "the cat"), ("a", "oh a b"), ("it is", "it is")]
    total = {"word_edits": 0.0, "words": 0.0, "character_edits": 0.0, "characters": 0.0}
    for reference, hypothesis in pairs:
        for name, value in count_errors(reference, hypothesis).items():
            total[name] += value
    assert total == {"word_edits": 3, "words": 6, "character_edits": 9, "characters": 17}
    assert error_rates(total) == {"wer": 50.0, "cer": 100 * 9 / 17}
    assert count_errors("x", "")["word_edits"] == 1
