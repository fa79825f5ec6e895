"""The order of the data: sharded, endless, and resumable at any step without saved state.

An epoch is a sequence of slots, each the examples of one micro-batch. A step takes the next
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


def slots_of_step(
    epoch_slots: Callable[[int], Sequence[Iterable[int]]],
    steps_per_epoch: int,
    slots_per_step: int,
    shard: Shard,
    position: int,
) -> Iterator[list[Item]]:
    """This rank's slots from step `position` on, without end.

    `epoch_slots(epoch)` gives the examples of every slot of an epoch, in order.
    """
    if steps_per_epoch < 1:
        raise ValueError("an epoch has fewer examples than one step uses")
    own = slots_per_step // shard.world
    epoch, step = divmod(position, steps_per_epoch)
    while True:
        slots = epoch_slots(epoch)
        for t in range(step, steps_per_epoch):
            first = t * slots_per_step + shard.rank * own
            for slot in slots[first : first + own]:
                yield [Item(epoch, int(index)) for index in slot]
        epoch, step = epoch + 1, 0


def shuffled_slots(
    examples: int, size: int, seed: int, every: int = 1
) -> Callable[[int], list[Sequence[int]]]:
    """Slots of equal size from a new order of all examples in every epoch; of each n-th one."""

    def slots(epoch: int) -> list[Sequence[int]]:
        order = permutation(examples, "order", seed, epoch) * every
        return [order[i : i + size].tolist() for i in range(0, examples - size + 1, size)]

    return slots


def bucketed_slots(
    lengths: np.ndarray, size: int, seed: int, pool: int = 64
) -> Callable[[int], list[Sequence[int]]]:
    """Slots of equal size and of examples of similar length, from a new order in every epoch.

    The order is cut into pools of `pool` slots, and examples are sorted by length inside their
    pool only, so that a slot has other examples in every epoch. Slots come in any order.
    """

    def slots(epoch: int) -> list[Sequence[int]]:
        count = len(lengths) // size
        order = permutation(len(lengths), "order", seed, epoch)[: count * size]
        pools = np.arange(len(order)) // (pool * size)
        sorted_in_pools = order[np.lexsort((lengths[order], pools))].reshape(count, size)
        out: list[Sequence[int]]
        out = sorted_in_pools[permutation(count, "slots", seed, epoch)].tolist()
        return out

    return slots


def padding_waste(lengths: np.ndarray, slots: Sequence[Sequence[int]]) -> float:
    """The share of padding when every slot is padded to its longest example."""
    of_slots = [lengths[np.asarray(slot)] for slot in slots]
    padded = sum(len(some) * int(some.max()) for some in of_slots)
    return 1 - sum(int(some.sum()) for some in of_slots) / padded


def eval_slots(examples: int, size: int, shard: Shard) -> Iterator[range]:
    """Batches of a rank's contiguous part of a split; the parts cover it exactly once."""
    start = examples * shard.rank // shard.world
    stop = examples * (shard.rank + 1) // shard.world
    for first in range(start, stop, size):
        yield range(first, min(first + size, stop))
