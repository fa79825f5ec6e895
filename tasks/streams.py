"""The order of the data: sharded, endless, and resumable at any step without saved state.

An epoch is a sequence of micro-batches, each the examples of one micro-batch. A step takes the next
`slots_per_step` of them, whatever the number of ranks; what is left at the end of an epoch is left
out. So worlds of any size train on the same micro-batches, and a position is one integer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tasks.base import Shard
from tasks.seeding import permutation


class Item(NamedTuple):
    """One use of an example: its augmentation is a function of (seed, epoch, index)."""

    epoch: int
    index: int  # type: ignore[assignment]  # hides a tuple's method of that name


def micro_batches_of_step(
    epoch_micro_batches: Callable[[int], Sequence[Iterable[int]]],
    steps_per_epoch: int,
    slots_per_step: int,
    shard: Shard,
    position: int,
) -> Iterator[list[Item]]:
    """This rank's micro-batches from step `position` on, without end.

    `epoch_micro_batches(epoch)` gives the examples of every micro-batch of an epoch, in order.
    """
    if steps_per_epoch < 1:
        raise ValueError("an epoch has fewer examples than one step uses")
    own = slots_per_step // shard.world
    epoch, step = divmod(position, steps_per_epoch)
    while True:
        micro_batches = epoch_micro_batches(epoch)
        for t in range(step, steps_per_epoch):
            first = t * slots_per_step + shard.rank * own
            for micro_batch in micro_batches[first : first + own]:
                yield [Item(epoch, int(index)) for index in micro_batch]
        epoch, step = epoch + 1, 0


def examples_to_train_on(examples: int, every: int, validate_every: int | None) -> np.ndarray:
    """Indices: each n-th of those that are not validated on, which are 0, n, 2 n, …"""
    kept = np.arange(examples)
    if validate_every is not None:
        kept = kept[kept % validate_every != 0]
    # As long as examples / every, rounded down.
    return kept[: len(kept) // every * every : every]


def shuffled_micro_batches(
    examples: int, size: int, seed: int
) -> Callable[[int], list[Sequence[int]]]:
    """Slots of equal size from a new order of all examples in every epoch."""

    def micro_batches(epoch: int) -> list[Sequence[int]]:
        order = permutation(examples, "order", seed, epoch)
        return [order[i : i + size].tolist() for i in range(0, examples - size + 1, size)]

    return micro_batches


def bucketed_micro_batches(
    lengths: np.ndarray, size: int, seed: int, pool: int = 64
) -> Callable[[int], list[Sequence[int]]]:
    """Slots of equal size and of examples of similar length, from a new order in every epoch.

    The order is cut into pools of `pool` micro-batches; examples are sorted by length inside their
    pool only, so that a micro-batch has other examples in every epoch. Slots come in any order.
    """

    def micro_batches(epoch: int) -> list[Sequence[int]]:
        count = len(lengths) // size
        order = permutation(len(lengths), "order", seed, epoch)[: count * size]
        pools = np.arange(len(order)) // (pool * size)
        sorted_in_pools = order[np.lexsort((lengths[order], pools))].reshape(count, size)
        out: list[Sequence[int]]
        out = sorted_in_pools[permutation(count, "micro_batches", seed, epoch)].tolist()
        return out

    return micro_batches


def padding_waste(lengths: np.ndarray, micro_batches: Sequence[Sequence[int]]) -> float:
    """The share of padding when every micro-batch is padded to its longest example."""
    of_micro_batches = [lengths[np.asarray(micro_batch)] for micro_batch in micro_batches]
    padded = sum(len(some) * int(some.max()) for some in of_micro_batches)
    return 1 - sum(int(some.sum()) for some in of_micro_batches) / padded


def eval_micro_batches(examples: int, size: int, shard: Shard) -> Iterator[range]:
    """A rank's batches of a split: over all ranks every example exactly once.

    Batches are the same for any number of ranks, which take whole ones in turn: so are then all
    numbers calculated from them, to the bit.
    """
    for first in range(shard.rank * size, examples, shard.world * size):
        yield range(first, min(first + size, examples))
