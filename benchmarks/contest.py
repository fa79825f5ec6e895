"""Contestants of a benchmark that take turns, so that all meet the same moments of a machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping


def take_turns(
    contestants: Mapping[str, Callable[[], float]], rounds: int, warm: int
) -> list[dict[str, float]]:
    """Seconds of everyone in each round, after some that do not count; the order rotates."""
    names = [*contestants]
    kept: list[dict[str, float]] = []
    for number in range(warm + rounds):
        turn = number % len(names)
        times = {name: contestants[name]() for name in names[turn:] + names[:turn]}
        if number >= warm:
            kept.append(times)
    return kept
