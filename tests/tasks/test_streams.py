"""The order of the data: the same micro-batches in any world, from any step on."""

from __future__ import annotations

from itertools import islice

import pytest

from tasks.base import Shard
from tasks.streams import Item, eval_slots, shuffled_slots, slots_of_step

EXAMPLES, SIZE, SLOTS, SEED = 107, 4, 6, 5
STEPS = EXAMPLES // (SIZE * SLOTS)  # 4 steps of 24 examples; 11 are left out


def slots(world: int = 1, rank: int = 0, position: int = 0, count: int = 60) -> list[list[Item]]:
    order = shuffled_slots(EXAMPLES, SIZE, SEED)
    return list(islice(slots_of_step(order, STEPS, SLOTS, Shard(rank, world), position), count))


def test_an_epoch_uses_no_example_twice_and_leaves_the_rest_out():
    items = [item for slot in slots(count=2 * STEPS * SLOTS) for item in slot]
    for epoch in (0, 1):
        indices = [index for e, index in items if e == epoch]
        assert len(indices) == len(set(indices)) == STEPS * SLOTS * SIZE
        assert set(indices) <= set(range(EXAMPLES))
    assert [i for e, i in items if e == 0] != [i for e, i in items if e == 1]


def test_every_example_is_left_out_at_some_time_only():
    """What an epoch leaves out is drawn anew, so no example is never used."""
    used = {index for slot in slots(count=5 * STEPS * SLOTS) for _, index in slot}
    assert used == set(range(EXAMPLES))


@pytest.mark.parametrize("position", [0, 1, STEPS - 1, STEPS, STEPS + 1, 3 * STEPS + 2])
@pytest.mark.parametrize(("world", "rank"), [(1, 0), (3, 2)])
def test_resumed_is_uninterrupted(position: int, world: int, rank: int):
    skipped = position * SLOTS // world
    whole = slots(world, rank, count=skipped + 20)
    assert slots(world, rank, position, count=20) == whole[skipped:]


@pytest.mark.parametrize("world", [2, 3, 6])
def test_worlds_see_the_same_slots_in_the_order_of_ranks(world: int):
    steps, own = STEPS + 2, SLOTS // world
    ranks = [slots(world, rank, count=steps * own) for rank in range(world)]
    union = [s for t in range(steps) for r in ranks for s in r[t * own : (t + 1) * own]]
    assert union == slots(count=steps * SLOTS)


def test_indices_are_plain_integers():
    """They go to other processes and into seeds, where numpy's would be another text."""
    assert all(type(part) is int for item in slots(count=1)[0] for part in item)


def test_a_seed_gives_another_order():
    assert list(shuffled_slots(10, 5, 0)(0)[0]) != list(shuffled_slots(10, 5, 1)(0)[0])


def test_too_few_examples_are_an_error():
    with pytest.raises(ValueError, match="fewer examples than one step"):
        next(slots_of_step(shuffled_slots(3, 4, 0), 0, 1, Shard(), 0))


@pytest.mark.parametrize("world", [1, 2, 3, 8])
@pytest.mark.parametrize("size", [1, 7, 64])
@pytest.mark.parametrize("examples", [0, 5, 107])
def test_evaluation_takes_each_example_once(examples: int, size: int, world: int):
    batches = [b for rank in range(world) for b in eval_slots(examples, size, Shard(rank, world))]
    assert [i for batch in batches for i in batch] == list(range(examples))
    assert all(1 <= len(batch) <= size for batch in batches)
