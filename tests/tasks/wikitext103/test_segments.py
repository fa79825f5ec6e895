"""Columns and segments: the same words for any number of processes, each once."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from tasks.base import Shard
from tasks.wikitext103.segments import (
    NO_TARGET,
    Protocol,
    Segment,
    TrainingColumns,
    evaluation_segments,
)


def test_columns_are_runs_of_the_text_in_order():
    columns = TrainingColumns(np.arange(103, dtype=np.int32), 4, Protocol(10, 5))
    assert (columns.length, columns.words, columns.segments) == (25, 96, 3)
    for segment, (start, stop) in enumerate([(0, 10), (10, 20), (20, 24)]):  # the last is shorter
        batch = columns.read(1, 2, segment)
        assert batch.tensors["tokens"].tolist() == [
            list(range(b + start, b + stop)) for b in (25, 50)
        ]
        assert (batch.tensors["targets"] == batch.tensors["tokens"] + 1).all()
        assert batch.fresh == (segment == 0)
        assert batch.units == 2 * (stop - start)


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("position", [0, 2, 3, 7])
def test_a_slot_keeps_its_columns(world: int, position: int):
    columns = TrainingColumns(np.arange(200, dtype=np.int32), 8, Protocol(10, 5))
    steps = []
    for rank in range(world):
        stream = columns.stream(4, Shard(rank, world), position)
        own = 4 // world
        steps.append([[next(stream) for _ in range(own)] for _ in range(5)])
    for t in range(5):
        batches = [batch for rank in steps for batch in rank[t]]
        segment = (position + t) % columns.segments
        for micro_batch, batch in enumerate(batches):
            expected = columns.read(2 * micro_batch, 2, segment)
            assert batch.tensors["tokens"].equal(expected.tensors["tokens"])
            assert batch.fresh == (segment == 0)


def targets(batches: list[Segment]) -> list[int]:
    return sorted(t for b in batches for t in b.tensors["targets"].flatten().tolist() if t >= 0)


@pytest.mark.parametrize("length", [2, 11, 97, 100, 101, 103])
@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("at_once", [1, 4, 64])
def test_every_word_but_the_first_is_scored_once(length: int, world: int, at_once: int):
    text = np.arange(length, dtype=np.int32)
    batches = [
        batch
        for rank in range(world)
        for batch in evaluation_segments(text, 10, at_once, Protocol(4, 8), Shard(rank, world))
    ]
    assert targets(batches) == list(range(1, length))
    assert sum(batch.units for batch in batches) == length - 1
    for batch in batches:
        tokens, wanted = batch.tensors["tokens"], batch.tensors["targets"]
        there = wanted != NO_TARGET
        assert (tokens[there] == wanted[there] - 1).all()
        assert (tokens >= 0).all()
        assert not (there[:, 1:] & ~there[:, :-1]).any()  # only at the end


def test_evaluation_has_the_same_batches_on_any_number_of_ranks():
    text, protocol = np.arange(97, dtype=np.int32), Protocol(4, 8)

    def batches(world: int) -> set[bytes]:
        return {
            b"".join(t.numpy().tobytes() for t in batch.tensors.values())
            for rank in range(world)
            for batch in evaluation_segments(text, 10, 64, protocol, Shard(rank, world))
        }

    assert batches(1) == batches(2) == batches(3)


def test_segments_of_a_column_follow_one_another():
    text = np.arange(1000, dtype=np.int32)
    batches = list(islice(evaluation_segments(text, 3, 2, Protocol(50, 8), Shard()), 7))
    assert [batch.fresh for batch in batches] == [True] + [False] * 6
    firsts = [int(batch.tensors["tokens"][0, 0]) for batch in batches]
    assert firsts == [50 * i for i in range(7)]
