"""What the fake back end counts is what the formulas say."""

from __future__ import annotations

from benchmarks.scaling import TALLY, count_row, count_step


def test_a_step_reduces_its_gradients_once_and_a_few_bytes_more_in_any_world():
    two, many = count_step(2), count_step(1024)
    assert two["bytes"] == two["gradient_bytes"] + 8 * TALLY
    assert {**two, "world": 0} == {**many, "world": 0}


def test_a_row_is_counted_without_memory_for_it():
    row = count_row("imagenet/novograd_100ep")
    assert (row["parameters"], row["tensors"]) == (25_549_352, 153)
    assert (row["micro_batches"], row["carry_bytes"]) == (8, 0)
