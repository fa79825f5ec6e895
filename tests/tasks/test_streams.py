"""The order of the data, and a toy task on it that keeps the contract of all tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tasks.base import Batch, Carry, Context, Counts, Headline, LossOut, Shard, Task
from tasks.seeding import permutation, torch_generator
from tasks.streams import (
    Item,
    bucketed_micro_batches,
    eval_micro_batches,
    micro_batches_of_step,
    padding_waste,
    shuffled_micro_batches,
)
from tests.tasks import contract

EXAMPLES, SIZE, SLOTS, SEED = 107, 4, 6, 5
STEPS = EXAMPLES // (SIZE * SLOTS)  # 4 steps of 24 examples; 11 are left out


def micro_batches(
    world: int = 1, rank: int = 0, position: int = 0, count: int = 60
) -> list[list[Item]]:
    order = shuffled_micro_batches(EXAMPLES, SIZE, SEED)
    return list(
        islice(micro_batches_of_step(order, STEPS, SLOTS, Shard(rank, world), position), count)
    )


def test_an_epoch_uses_no_example_twice_and_leaves_the_rest_out():
    items = [item for micro_batch in micro_batches(count=2 * STEPS * SLOTS) for item in micro_batch]
    for epoch in (0, 1):
        indices = [index for e, index in items if e == epoch]
        assert len(indices) == len(set(indices)) == STEPS * SLOTS * SIZE
        assert set(indices) <= set(range(EXAMPLES))
    assert [i for e, i in items if e == 0] != [i for e, i in items if e == 1]


def test_every_example_is_left_out_at_some_time_only():
    """What an epoch leaves out is drawn anew, so no example is never used."""
    used = {
        index for micro_batch in micro_batches(count=5 * STEPS * SLOTS) for _, index in micro_batch
    }
    assert used == set(range(EXAMPLES))


@pytest.mark.parametrize("position", [0, 1, STEPS - 1, STEPS, STEPS + 1, 3 * STEPS + 2])
@pytest.mark.parametrize(("world", "rank"), [(1, 0), (3, 2)])
def test_resumed_is_uninterrupted(position: int, world: int, rank: int):
    skipped = position * SLOTS // world
    whole = micro_batches(world, rank, count=skipped + 20)
    assert micro_batches(world, rank, position, count=20) == whole[skipped:]


@pytest.mark.parametrize("world", [2, 3, 6])
def test_worlds_see_the_same_slots_in_the_order_of_ranks(world: int):
    steps, own = STEPS + 2, SLOTS // world
    ranks = [micro_batches(world, rank, count=steps * own) for rank in range(world)]
    union = [s for t in range(steps) for r in ranks for s in r[t * own : (t + 1) * own]]
    assert union == micro_batches(count=steps * SLOTS)


def test_indices_are_plain_integers():
    """They go to other processes and into seeds, where numpy's would be another text."""
    assert all(type(part) is int for item in micro_batches(count=1)[0] for part in item)


def test_a_seed_gives_another_order():
    assert list(shuffled_micro_batches(10, 5, 0)(0)[0]) != list(
        shuffled_micro_batches(10, 5, 1)(0)[0]
    )


LENGTHS = np.random.default_rng(0).integers(1, 1000, EXAMPLES)


def test_buckets_use_no_example_twice_and_leave_an_incomplete_slot_out():
    order = bucketed_micro_batches(LENGTHS, SIZE, SEED, pool=5)
    used = set()
    for epoch in range(5):
        micro_batches = order(epoch)
        indices = [i for micro_batch in micro_batches for i in micro_batch]
        assert {len(micro_batch) for micro_batch in micro_batches} == {SIZE}
        assert len(indices) == len(set(indices)) == EXAMPLES // SIZE * SIZE
        assert all(type(i) is int for i in indices)
        used |= set(indices)
    assert used == set(range(EXAMPLES))  # also the longest: no example is never used


def test_buckets_are_sorted_inside_pools_and_come_in_any_order():
    micro_batches = bucketed_micro_batches(LENGTHS, SIZE, SEED, pool=5)(3)
    pools = permutation(EXAMPLES, "order", SEED, 3)[: len(micro_batches) * SIZE]
    expected = [
        list(some[i : i + SIZE])
        for first in range(0, len(pools), 5 * SIZE)
        for some in [sorted(pools[first : first + 5 * SIZE], key=lambda i: LENGTHS[i])]
        for i in range(0, len(some), SIZE)
    ]

    def by_length(micro_batches):
        return sorted(sorted(LENGTHS[micro_batch].tolist()) for micro_batch in micro_batches)

    assert by_length(micro_batches) == by_length(expected)
    longest = [LENGTHS[micro_batch].max() for micro_batch in micro_batches]
    ordered = [LENGTHS[micro_batch].max() for micro_batch in expected]
    assert longest != ordered
    assert sorted(longest) == sorted(ordered)


def test_buckets_are_a_function_of_seed_and_epoch():
    order = bucketed_micro_batches(LENGTHS, SIZE, SEED)
    assert order(2) == bucketed_micro_batches(LENGTHS, SIZE, SEED)(2) == order(2)
    assert {frozenset(micro_batch) for micro_batch in order(2)} != {
        frozenset(micro_batch) for micro_batch in order(3)
    }
    assert order(2) != bucketed_micro_batches(LENGTHS, SIZE, SEED + 1)(2)


def test_padding_waste():
    lengths = np.array([1, 2, 3, 10])
    assert padding_waste(lengths, [[0, 3], [1, 2]]) == 1 - 16 / 26
    assert padding_waste(lengths, [[2], [3]]) == 0
    long = np.random.default_rng(1).integers(1, 1000, 10_000)
    shuffled = padding_waste(long, shuffled_micro_batches(len(long), 32, 0)(0))
    waste = [
        padding_waste(long, bucketed_micro_batches(long, 32, 0, pool)(0)) for pool in (1, 8, 64)
    ]
    assert waste[0] == pytest.approx(shuffled)
    assert waste == sorted(waste, reverse=True)
    assert shuffled > 0.4
    assert waste[-1] < 0.03


def test_too_few_examples_are_an_error():
    with pytest.raises(ValueError, match="fewer examples than one step"):
        next(micro_batches_of_step(shuffled_micro_batches(3, 4, 0), 0, 1, Shard(), 0))


@pytest.mark.parametrize("world", [1, 2, 3, 8])
@pytest.mark.parametrize("size", [1, 7, 64])
@pytest.mark.parametrize("examples", [0, 5, 107])
def test_evaluation_takes_each_example_once(examples: int, size: int, world: int):
    batches = [
        b for rank in range(world) for b in eval_micro_batches(examples, size, Shard(rank, world))
    ]
    assert sorted(i for batch in batches for i in batch) == list(range(examples))
    assert all(1 <= len(batch) <= size for batch in batches)
    assert sorted(batches, key=lambda b: b.start) == list(
        eval_micro_batches(examples, size, Shard())
    )


@dataclass
class NoOptions:
    pass


class Toy(Task):
    """Squared errors of a linear model on noisy numbers."""

    unit = "number"
    headline = Headline("val", "error", higher_is_better=False)
    splits = ("val",)
    ModelOptions = DataOptions = NoOptions
    epoch_units = 50

    def prepare_data(self) -> None:
        pass

    def build_model(self) -> nn.Module:
        return nn.Linear(1, 1)

    def example_batch(self) -> Batch:
        return self.batch([Item(0, 0)])

    def batch(self, items: Iterable[Item]) -> Batch:
        draws = [torch.randn(1, generator=torch_generator(*item)) for item in items]
        return Batch({"x": torch.stack(draws)}, len(draws))

    def train_stream(self, shard: Shard, position: int) -> Iterator[Batch]:
        context = self.context
        order = shuffled_micro_batches(self.epoch_units, context.micro, context.seed)
        steps = self.steps_per_epoch
        return map(
            self.batch, micro_batches_of_step(order, steps, context.micro_batches, shard, position)
        )

    def eval_batches(self, split: str, shard: Shard) -> Iterator[Batch]:
        for indices in eval_micro_batches(70, self.context.eval_batch, shard):
            yield self.batch(Item(0, index) for index in indices)

    def loss(self, model: nn.Module, batch: Batch, carry: Carry) -> LossOut:
        errors = model(batch.tensors["x"].to(next(model.parameters()).dtype)) ** 2
        return LossOut(errors.sum(), float(len(errors)))

    def count(self, model: nn.Module, batch: Batch, carry: Carry) -> tuple[Counts, Carry]:
        total, weight, _ = self.loss(model, batch, None)
        return {"numbers": float(weight), "error": total.item()}, None

    def summarize(self, split: str, counts: Mapping[str, float]) -> dict[str, float]:
        return {"error": counts["error"] / counts["numbers"]}


class MeanLoss(Toy):
    def loss(self, model: nn.Module, batch: Batch, carry: Carry) -> LossOut:
        total, weight, _ = super().loss(model, batch, carry)
        return LossOut(total / weight, weight)


class EveryRankEvaluatesAll(Toy):
    def eval_batches(self, split: str, shard: Shard) -> Iterator[Batch]:
        return super().eval_batches(split, Shard())


class CountsAMean(Toy):
    def count(self, model: nn.Module, batch: Batch, carry: Carry) -> tuple[Counts, Carry]:
        counts, _ = super().count(model, batch, carry)
        return counts | {"error": counts["error"] / counts["numbers"]}, None


class StartsAnew(Toy):
    def train_stream(self, shard: Shard, position: int) -> Iterator[Batch]:
        return super().train_stream(shard, 0)


class RanksTakeTurns(Toy):
    def train_stream(self, shard: Shard, position: int) -> Iterator[Batch]:
        return islice(super().train_stream(Shard(), position), shard.rank, None, shard.world)


class WorkersDiffer(Toy):
    def batch(self, items: Iterable[Item]) -> Batch:
        return super().batch(Item(e + self.context.data_workers, i) for e, i in items)


class DrawsFromTheGlobalState(Toy):
    def batch(self, items: Iterable[Item]) -> Batch:
        return Batch({"x": torch.randn(len(list(items)), 1)}, 1)


def toys(kind: type[Toy]) -> contract.MakeTask:
    def make(**fields: int) -> Toy:
        known: dict[str, Any] = {
            "seed": 0,
            "micro": 4,
            "micro_batches": 4,
            "eval_batch": 8,
            "data_workers": 0,
        } | fields
        return kind(NoOptions(), NoOptions(), Context(data_root=Path(), **known))

    return make


def test_the_toy_keeps_the_contract():
    contract.assert_task_contract(toys(Toy))


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        (MeanLoss, lambda make: contract.assert_loss_adds_up(make, contract.halves_of_rows)),
        (EveryRankEvaluatesAll, lambda m: contract.assert_counts_add_up(m, contract.bytes_of_rows)),
        (CountsAMean, lambda make: contract.assert_counts_add_up(make, contract.bytes_of_rows)),
        (StartsAnew, contract.assert_stream_resumes),
        (RanksTakeTurns, contract.assert_worlds_agree),
        (WorkersDiffer, contract.assert_workers_agree),
        (DrawsFromTheGlobalState, contract.assert_global_randomness_untouched),
    ],
)
def test_the_contract_can_be_broken(kind: type[Toy], part: Callable[[contract.MakeTask], None]):
    part(toys(Toy))
    with pytest.raises(AssertionError):
        part(toys(kind))
