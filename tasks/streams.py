"""The order of the data: sharded, endless, and resumable at any step without saved state.

An epoch is a sequence of slots, each the examples of one micro-batch. A step takes the next
`slots_per_step` of them, whatever the number of ranks; what is left at the end of an epoch is left
out. So worlds of any size train on the same micro-batches, and a position is one integer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from tasks.base import Shard
from tasks.seeding import permutation


class Item(NamedTuple):
    """One use of an example: its augmentation is a function of (seed, epoch, index)."""

    epoch: int
    index: int  # type: ignore[assignment]  # hides a tuple's method of that name


def slots_of_step(
    epoch_slots: Callable[[int], Sequence[Sequence[int]]],
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


def shuffled_slots(examples: int, size: int, seed: int) -> Callable[[int], list[Sequence[int]]]:
    """Slots of equal size from a new order of all examples in every epoch."""

    def slots(epoch: int) -> list[Sequence[int]]:
        order = permutation(examples, "order", seed, epoch)
        return [order[i : i + size].tolist() for i in range(0, examples - size + 1, size)]

    return slots


def eval_slots(examples: int, size: int, shard: Shard) -> Iterator[range]:
    """Batches of a rank's contiguous part of a split; the parts cover it exactly once."""
    start = examples * shard.rank // shard.world
    stop = examples * (shard.rank + 1) // shard.world
    for first in range(start, stop, size):
        yield range(first, min(first + size, stop))
