from __future__ import annotations

from collections import Counter

import pytest
import torch

from tasks.wikitext103.predict import TextOptions, draw

P = torch.tensor([0.1, 0.4, 0.2, 0.25, 0.05], dtype=torch.float64)
DRAWS = 4000


def drawn(**options: float) -> Counter[int]:
    generator = torch.Generator().manual_seed(1)
    chosen = TextOptions(**options)  # type: ignore[arg-type]
    return Counter(draw(P.log(), chosen, generator) for _ in range(DRAWS))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, P),
        ({"temperature": 0.5}, P.square()),  # p^(1/T)
        ({"top_k": 2}, torch.tensor([0, 0.4, 0, 0.25, 0])),
        # The likeliest words until they have the probability: 0.4 < 0.6, then 0.65.
        ({"top_p": 0.6}, torch.tensor([0, 0.4, 0, 0.25, 0])),
        ({"top_p": 0.3}, torch.tensor([0, 1.0, 0, 0, 0])),
        # Of the two that are left the first has 0.4 / 0.65 > 0.6.
        ({"top_k": 2, "top_p": 0.6}, torch.tensor([0, 1.0, 0, 0, 0])),
        ({"temperature": 0.0}, torch.tensor([0, 1.0, 0, 0, 0])),
    ],
)
def test_words_are_drawn_from_the_distribution(options: dict[str, float], expected: torch.Tensor):
    found, expected = drawn(**options), expected.double() / expected.double().sum()
    for word, p in enumerate(expected.tolist()):
        deviation = (DRAWS * p * (1 - p)) ** 0.5  # of a binomial count
        assert abs(found[word] - DRAWS * p) <= 5 * deviation


def test_of_equal_words_the_first_is_the_likelier():
    options = TextOptions(temperature=0)
    assert draw(torch.zeros(9), options, torch.Generator()) == 0
