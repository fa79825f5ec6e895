"""Contiguous columns of a text, cut into segments that follow one another.

A column is a run of the text; its segments come in order, and the memory of one is there for the
next. Columns belong to the global batch, not to a process: another number of processes reads the
same ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from tasks.base import Batch, Shard
from tasks.streams import eval_micro_batches

NO_TARGET = -1


@dataclass(frozen=True)
class Protocol:
    """How a text is read: words at a time, words remembered, and the attention's options."""

    segment: int
    memory: int
    clamp: int | None = None  # greater distances count as this one
    same_length: bool = False  # every word sees the same number of others


@dataclass
class Segment(Batch):
    """One segment of some columns; `fresh` ones begin their columns, without a memory."""

    fresh: bool = False
    protocol: Protocol | None = None
    split: str = ""  # in evaluation


@dataclass(frozen=True)
class TrainingColumns:
    """All columns of a training text, of equal length; a rest of the text is left out."""

    text: np.ndarray
    columns: int
    protocol: Protocol

    @property
    def length(self) -> int:
        """Words that a column has; all but the first are predicted."""
        return len(self.text) // self.columns

    @property
    def words(self) -> int:
        """Predicted in one pass over all columns."""
        return self.columns * max(0, self.length - 1)

    @property
    def segments(self) -> int:
        """Of one pass; the last may be shorter."""
        return -(-max(0, self.length - 1) // self.protocol.segment)

    def read(self, first: int, count: int, segment: int) -> Segment:
        """Segment number `segment` of the columns [first, first + count)."""
        start = segment * self.protocol.segment
        stop = min(start + self.protocol.segment, self.length - 1)
        begins = [column * self.length for column in range(first, first + count)]
        rows = np.stack([self.text[b + start : b + stop + 1] for b in begins]).astype(np.int64)
        return _segment(rows, segment == 0, self.protocol)

    def stream(self, micro_batches: int, shard: Shard, position: int) -> Iterator[Segment]:
        """This rank's segments from step `position` on, a micro-batch at a time, without end."""
        own, width = micro_batches // shard.world, self.columns // micro_batches
        step = position
        while True:
            segment = step % self.segments
            for micro_batch in range(shard.rank * own, (shard.rank + 1) * own):
                yield self.read(micro_batch * width, width, segment)
            step += 1


def evaluation_segments(
    text: np.ndarray, columns: int, at_once: int, protocol: Protocol, shard: Shard
) -> Iterator[Segment]:
    """A rank's columns of a text, some at once; over all ranks every word but the first is scored.

    A column's first word is predicted from the word before it, the last one of another column.
    Columns differ by one word at most: where one is shorter there is NO_TARGET. `position` is
    where in the text the first target of each row is.

    Groups of columns are the same for any number of ranks, which take whole ones in turn. There
    are two at least, so that two ranks share the work.
    """
    targets = len(text) - 1
    columns = max(1, min(columns, targets))
    bounds = [1 + targets * i // columns for i in range(columns + 1)]
    for group in eval_micro_batches(columns, min(at_once, -(-columns // 2)), shard):
        longest = max(bounds[i + 1] - bounds[i] for i in group)
        for start in range(0, longest, protocol.segment):
            width = min(protocol.segment, longest - start)
            rows = np.full((len(group), width + 1), NO_TARGET, dtype=np.int64)
            for row, i in zip(rows, group, strict=True):
                begin = bounds[i] - 1 + start
                there = text[begin : min(begin + width + 1, bounds[i + 1])]
                row[: len(there)] = there
            segment = _segment(rows, start == 0, protocol)
            segment.tensors["position"] = torch.tensor([bounds[i] + start for i in group])
            yield segment


def _segment(rows: np.ndarray, fresh: bool, protocol: Protocol) -> Segment:
    words = torch.from_numpy(rows)
    targets = words[:, 1:].contiguous()
    tensors = {"tokens": words[:, :-1].clamp(min=0), "targets": targets}
    return Segment(tensors, int((targets != NO_TARGET).sum()), fresh, protocol)
