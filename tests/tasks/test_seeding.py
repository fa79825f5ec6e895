"""Seeds are functions of their parts and of nothing else."""

from __future__ import annotations

import numpy as np
import torch

from tasks.seeding import derive_seed, permutation, torch_generator


def test_a_seed_depends_on_every_part_and_their_order():
    seeds = [
        derive_seed(*parts)
        for parts in ((1, 2), (2, 1), (12,), (1,), (1, 2, 0), ("a", "bc"), ("ab", "c"), ())
    ]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_seeds_stay_what_they_were():
    """Runs of different versions are comparable only as long as these do not change."""
    assert derive_seed(0, "augment", 3, 1_281_166) == 639408724028229881
    assert permutation(8, "order", 0, 1).tolist() == [2, 5, 7, 4, 1, 0, 6, 3]
    assert torch.randint(1000, (3,), generator=torch_generator(7)).tolist() == [258, 446, 199]


def test_a_permutation_is_one_and_repeats():
    order = permutation(1000, "order", 0, 0)
    assert sorted(order) == list(range(1000))
    assert np.array_equal(order, permutation(1000, "order", 0, 0))
    assert not np.array_equal(order, permutation(1000, "order", 0, 1))
    assert permutation(0, "order").tolist() == []


def test_global_states_are_neither_used_nor_moved():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = torch.rand(4, generator=torch_generator(3, "x"))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(first, torch.rand(4, generator=torch_generator(3, "x")))
