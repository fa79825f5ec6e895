"""Slots: who is in them, how large they are, and when they are the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.base import DataProblem
from tasks.wmt14.packing import Packing

lengths = st.lists(st.tuples(st.integers(3, 30), st.integers(3, 30)), min_size=1, max_size=300)


def some_lengths(pairs: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    source = random.integers(3, 40, pairs)
    return source, np.clip(source + random.integers(-6, 7, pairs), 3, 40)


def shapes(
    micro_batches: list[np.ndarray], source: np.ndarray, target: np.ndarray
) -> list[tuple[int, ...]]:
    return [
        (len(micro_batch), int(source[micro_batch].max()), int(target[micro_batch].max()))
        for micro_batch in micro_batches
    ]


@given(lengths, st.integers(60, 700), st.sampled_from([1, 4, 8]), st.integers(0, 3))
@settings(deadline=None)
def test_every_pair_is_once_in_a_slot_that_fits(pairs, budget, multiple, epoch):
    source, target = np.array(pairs).T
    packing = Packing(source, target, budget, multiple)
    micro_batches = packing.micro_batches(1, epoch)
    assert len(micro_batches) == len(packing)
    assert sorted(np.concatenate(micro_batches)) == [*range(len(pairs))]
    padded, odd = 0, 0
    for number, widest_source, widest_target in shapes(micro_batches, source, target):
        width = widest_source + widest_target
        assert number * width <= budget
        padded += number * width
        odd += number % multiple > 0 and multiple * width <= budget  # more would have fitted
    assert odd <= 1  # the end of the line
    assert packing.padded == padded
    assert packing.tokens == sum(map(sum, pairs))
    assert packing.waste == 1 - packing.tokens / padded


@given(lengths, st.integers(0, 9), st.integers(0, 9))
@settings(deadline=None)
def test_epochs_have_equal_shapes(pairs, seed, epoch):
    source, target = np.array(pairs).T
    packing = Packing(source, target, 300)
    here, there = packing.micro_batches(seed, epoch), packing.micro_batches(5, 0)
    assert sorted(shapes(here, source, target)) == sorted(shapes(there, source, target))

    def widths(micro_batches):  # of the pairs of each micro-batch, in the order of the line
        return sorted(
            [(int(source[i]), int(target[i])) for i in micro_batch] for micro_batch in micro_batches
        )

    assert widths(here) == widths(there)


def test_the_order_is_a_function_of_seed_and_epoch():
    source, target = some_lengths(3000)

    def order(seed, epoch):
        micro_batches = Packing(source, target, 600).micro_batches(seed, epoch)
        return [micro_batch.tolist() for micro_batch in micro_batches]

    first = order(1, 0)
    assert order(1, 0) == first
    for seed, epoch in ((1, 1), (2, 0)):
        other = order(seed, epoch)
        assert [*map(len, other)] != [*map(len, first)]  # micro-batches are elsewhere
        together = {frozenset(micro_batch) for micro_batch in first}
        assert (
            sum(frozenset(micro_batch) in together for micro_batch in other) < len(first) / 4
        )  # and changed


def test_a_pair_that_does_not_fit_is_told():
    source, target = np.array([5, 60, 7]), np.array([6, 50, 5])
    assert len(Packing(source, target, 110)) == 2
    with pytest.raises(
        DataProblem, match=r"batch.micro: 100 .* 60 and 50 .* must be 110 .* or data.longest"
    ):
        Packing(source, target, 100)
    with pytest.raises(DataProblem, match="no pairs"):
        Packing(source[:0], target[:0], 100)


def test_less_is_wasted_than_along_one_length():
    """Compared with pairs by their source's length, whose targets come in any order."""
    source, target = some_lengths(20_000)
    order, start, padded = np.argsort(source, kind="stable"), 0, 0
    while start < len(order):
        number = 8
        while (
            number * (source[order[start:][:number]].max() + target[order[start:][:number]].max())
            <= 2048
        ):
            number += 8
        pairs = order[start:][: number - 8]
        padded += len(pairs) * (source[pairs].max() + target[pairs].max())
        start += len(pairs)
    packing = Packing(source, target, 2048)
    assert packing.waste < (1 - packing.tokens / padded) / 4
