"""Micro-batches of pairs of similar lengths: as many as fit into a number of padded tokens.

Pairs lie along a line that depends on their lengths only, which is cut into micro-batches greedily.
So every epoch has micro-batches of the same shapes. What changes is which of the pairs of equal
lengths stands where, and the order of the micro-batches.
"""

from __future__ import annotations

import numpy as np

from tasks.base import DataProblem
from tasks.seeding import permutation


class Packing:
    """Slots of n pairs with n · (longest source + longest target) ≤ budget.

    n is a multiple of `multiple`, unless fewer than that fit; what is left at the end of the line
    is one micro-batch more, so that every pair is in a micro-batch.
    """

    def __init__(
        self,
        source_lengths: np.ndarray,
        target_lengths: np.ndarray,
        budget: int,
        multiple: int = 8,
    ) -> None:
        source, target = source_lengths.astype(np.int64), target_lengths.astype(np.int64)
        _check_widest(source, target, budget)
        self._places = _places(source, target)
        order = np.argsort(self._places, kind="stable")
        self._ends, self.padded = _cut(source[order], target[order], budget, multiple)
        self.tokens = int(source.sum() + target.sum())

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def pairs(self) -> int:
        return len(self._places)

    @property
    def waste(self) -> float:
        """The share of padding in all micro-batches."""
        return 1 - self.tokens / self.padded

    def micro_batches(self, seed: int, epoch: int) -> list[np.ndarray]:
        """The pairs of every micro-batch: all pairs once, a function of (seed, epoch)."""
        shuffled = permutation(len(self._places), "pairs", seed, epoch)
        line = shuffled[np.argsort(self._places[shuffled], kind="stable")]
        micro_batches = np.split(line, self._ends[:-1])
        return [
            micro_batches[i] for i in permutation(len(micro_batches), "micro_batches", seed, epoch)
        ]


def _check_widest(source: np.ndarray, target: np.ndarray, budget: int) -> None:
    if not len(source):
        raise DataProblem("there are no pairs to train on")
    widest = int(np.argmax(source + target))
    width = int(source[widest] + target[widest])
    if width > budget:
        raise DataProblem(
            f"batch.micro: {budget:,} tokens are too few for the pair of {source[widest]} and"
            f" {target[widest]} tokens; it must be {width:,} at least, or data.longest smaller"
        )


def _places(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Where a pair lies on the line; pairs of equal lengths lie in one place, and only they.

    The line goes through all lengths by the longer of the two, and for each such length from one
    language's being the longer to the other's, next time back: neighbours are alike in both.
    """
    longer, difference = np.maximum(source, target), source - target
    turned = np.where(longer % 2 == 0, difference, -difference)
    reach = int(longer.max())
    places: np.ndarray = longer * (2 * reach + 1) + turned + reach
    kind = np.min_scalar_type(int(places.max()))  # numbers of 16 bits are sorted quickly
    return places.astype(kind)


def _cut(
    source: np.ndarray, target: np.ndarray, budget: int, multiple: int
) -> tuple[np.ndarray, int]:
    """Where each micro-batch ends on the line, and the tokens of all of them with their padding."""
    ends, padded, start = [], 0, 0
    while start < len(source):
        most = budget // int(source[start] + target[start])
        near = slice(start, start + most)
        widths = np.maximum.accumulate(source[near]) + np.maximum.accumulate(target[near])
        sizes = widths * np.arange(1, len(widths) + 1)
        fitting = int(np.searchsorted(sizes, budget, side="right"))
        if fitting > multiple:
            fitting -= fitting % multiple
        padded += int(sizes[fitting - 1])
        start += fitting
        ends.append(start)
    return np.array(ends), padded
