"""What every task must satisfy."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np
import pytest
import torch

from tasks.base import Batch, Counts, Shard, Task

SLOTS = 4
WORLDS_OF_TRAINING = (1, 2, 4)
WORLDS_OF_EVALUATION = (1, 2, 3)
EVAL_BATCHES = (1, 7, 64)

# Called with fields of Context by name (micro_batches, eval_batch, …); the rest is the maker's.
# One epoch should be a few steps of SLOTS micro-batches, and a split a few batches of 64.
MakeTask = Callable[..., Task]


def assert_task_contract(
    make_task: MakeTask,
    halves: Callable[[Batch], list[Batch]] | None = None,
    examples: Callable[[Batch], list[bytes]] | None = None,
) -> None:
    """`halves` and `examples` are for batches whose tensors are not (examples, …), unpadded."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on batches of one, more would only wait for each other
    try:
        assert_consistent(make_task)
        assert_loss_adds_up(make_task, halves or halves_of_rows)
        assert_counts_add_up(make_task, examples or bytes_of_rows)
        assert_stream_resumes(make_task)
        assert_worlds_agree(make_task)
        assert_workers_agree(make_task)
        assert_global_randomness_untouched(make_task)
    finally:
        torch.set_num_threads(threads)


def assert_consistent(make_task: MakeTask) -> None:
    task = make_task(micro_batches=SLOTS)
    task.prepare_data()
    assert task.headline.split == task.splits[0]
    assert task.steps_per_epoch >= 2, "make the epoch longer: the contract crosses its end"
    (batch,) = take(task.train_stream(Shard(), 0), 1)
    example = task.example_batch()
    assert {k: t.dtype for k, t in example.tensors.items()} == {
        k: t.dtype for k, t in batch.tensors.items()
    }
    out = task.loss(float64_model(task), example, None)
    assert out.total.shape == ()
    assert out.weight > 0


def assert_loss_adds_up(make_task: MakeTask, halves: Callable[[Batch], list[Batch]]) -> None:
    """In eval mode, where no layer looks at the whole batch, parts sum to the whole."""
    task = make_task(micro_batches=SLOTS)
    model = float64_model(task)
    for batch in take(task.train_stream(Shard(), 0), 2):
        whole = task.loss(model, batch, None)
        parts = [task.loss(model, part, None) for part in halves(batch)]
        assert len(parts) > 1
        assert whole.total.dtype == torch.float64
        assert sum(p.total.item() for p in parts) == pytest.approx(whole.total.item(), rel=1e-12)
        assert sum(float(p.weight) for p in parts) == float(whole.weight)


def assert_counts_add_up(make_task: MakeTask, examples: Callable[[Batch], list[bytes]]) -> None:
    """Whatever the sharding and the batch: the same examples, once each, and the same counts."""
    model = float64_model(make_task(micro_batches=SLOTS))
    for split in make_task(micro_batches=SLOTS).splits:
        reference: tuple[Counter[bytes], Counts] | None = None
        for size in EVAL_BATCHES:
            task = make_task(micro_batches=SLOTS, eval_batch=size)
            for world in WORLDS_OF_EVALUATION:
                found = evaluate(task, model, split, world, examples)
                if reference is None:
                    reference = found
                assert found[0] == reference[0], f"other examples with {world} ranks of {size}"
                assert_same_counts(found[1], reference[1])
        assert reference is not None
        metrics = task.summarize(split, reference[1])
        assert all(isinstance(value, float) for value in metrics.values())
        if split == task.headline.split:
            assert task.headline.metric in metrics


def evaluate(
    task: Task,
    model: torch.nn.Module,
    split: str,
    world: int,
    examples: Callable[[Batch], list[bytes]],
) -> tuple[Counter[bytes], Counts]:
    seen: Counter[bytes] = Counter()
    totals: Counts = {}
    for rank in range(world):
        carry = None
        for batch in task.eval_batches(split, Shard(rank, world)):
            seen.update(examples(batch))
            with torch.inference_mode():
                counts, carry = task.count(model, batch, carry)
            for name, value in counts.items():
                totals[name] = totals.get(name, 0.0) + value
    return seen, totals


def assert_same_counts(found: Counts, reference: Counts) -> None:
    assert found.keys() == reference.keys()
    for name, value in reference.items():
        if float(value).is_integer():
            assert found[name] == value, name
        else:
            assert found[name] == pytest.approx(value, rel=1e-10), name


def assert_stream_resumes(make_task: MakeTask) -> None:
    """Started at any step, across the end of an epoch: the rest of the uninterrupted stream."""
    task = make_task(micro_batches=SLOTS)
    epoch = task.steps_per_epoch
    last = epoch + 2
    for shard in (Shard(), Shard(1, 2)):
        own = SLOTS // shard.world
        whole = take(task.train_stream(shard, 0), last * own)
        for position in sorted({1, epoch - 1, epoch, epoch + 1}):
            rest = take(task.train_stream(shard, position), (last - position) * own)
            assert_same_batches(rest, whole[position * own :])


def assert_worlds_agree(make_task: MakeTask) -> None:
    """A step has the same micro-batches, in the order of the ranks, in a world of any size."""
    task = make_task(micro_batches=SLOTS)
    steps = task.steps_per_epoch + 1
    reference: list[Batch] | None = None
    for world in WORLDS_OF_TRAINING:
        own = SLOTS // world
        ranks = [take(task.train_stream(Shard(r, world), 0), steps * own) for r in range(world)]
        union = [b for t in range(steps) for rank in ranks for b in rank[t * own : (t + 1) * own]]
        reference = reference or union
        assert_same_batches(union, reference)


def assert_workers_agree(make_task: MakeTask) -> None:
    """Loading in other processes changes nothing."""
    alone, helped = (make_task(micro_batches=SLOTS, data_workers=workers) for workers in (0, 2))
    position = alone.steps_per_epoch - 1
    assert_same_batches(
        *(take(task.train_stream(Shard(), position), 2 * SLOTS) for task in (alone, helped))
    )
    for split in alone.splits:
        assert_same_batches(*(list(t.eval_batches(split, Shard())) for t in (alone, helped)))


def assert_global_randomness_untouched(make_task: MakeTask) -> None:
    """Data neither reads nor moves the states that the model's own draws come from."""
    for workers in (0, 1):
        task = make_task(micro_batches=SLOTS, data_workers=workers)
        batches = []
        for seed in (1, 2):
            random.seed(seed)
            np.random.seed(seed)
            torch.manual_seed(seed)
            before = random_states()
            batches.append(take(task.train_stream(Shard(), 0), 2))
            list(islice(task.eval_batches(task.splits[0], Shard()), 1))
            assert random_states() == before
        assert_same_batches(*batches)


def random_states() -> tuple[object, ...]:
    numpys = np.random.get_state(legacy=False)
    return random.getstate(), repr(numpys), torch.get_rng_state().numpy().tobytes()


def float64_model(task: Task) -> torch.nn.Module:
    torch.manual_seed(0)
    return task.build_model().double().eval()


def take(stream: Iterator[Batch], count: int) -> list[Batch]:
    """The first batches; a stream that can be closed is closed, to end its processes."""
    taken = list(islice(stream, count))
    assert len(taken) == count
    close = getattr(stream, "close", None)
    if close is not None:
        close()
    return taken


def halves_of_rows(batch: Batch) -> list[Batch]:
    rows = len(next(iter(batch.tensors.values())))
    cut = rows // 2 + 1
    return [
        Batch({k: t[part] for k, t in batch.tensors.items()}, len(range(rows)[part]))
        for part in (slice(0, cut), slice(cut, rows))
    ]


def bytes_of_rows(batch: Batch) -> list[bytes]:
    rows = zip(*batch.tensors.values(), strict=True)
    return [b"".join(tensor.numpy().tobytes() for tensor in row) for row in rows]


def assert_same_batches(found: list[Batch], expected: list[Batch]) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert a.units == b.units
        assert a.tensors.keys() == b.tensors.keys()
        assert all(torch.equal(a.tensors[name], b.tensors[name]) for name in a.tensors)
