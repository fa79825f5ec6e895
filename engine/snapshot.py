"""The state of a run on the host: taken quickly, and written while the training continues."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any

import torch
from torch import Tensor

from engine.distributed import Group


def map_tensors(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Nested lists, tuples and dicts with every tensor replaced; everything else as it is."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, list | tuple):
        return type(value)(map_tensors(function, item) for item in value)
    if isinstance(value, dict):
        return {key: map_tensors(function, item) for key, item in value.items()}
    return value


def on_host(value: Any) -> Any:
    """Copies in the CPU's memory, also of what lies there, as some optimizers' step counts do."""
    return map_tensors(lambda t: t.detach().to("cpu", copy=True), value)


def gather_carries(group: Group, carries: list[Any]) -> list[Any]:
    """The carries of all processes in the order of ranks, for the first; empty for the others.

    Tensors travel as they are, and what is left of the structure pickled, which is little.
    """
    tensors: list[Tensor] = []

    def take_out(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return torch.empty(0)

    structures = group.gather_to_first(map_tensors(take_out, carries))
    gathered = group.gather_tensors_to_first(tensors)
    whole: list[Any] = []
    for structure, own in zip(structures, gathered, strict=True):
        whole += map_tensors(_next_of(iter(own)), structure)
    return whole


def _next_of(tensors: Iterator[Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda _: next(tensors)


class BackgroundWriter:
    """One write at a time in a thread; what it raises is raised by the next call."""

    def __init__(self) -> None:
        self._thread: Thread | None = None
        self._error: BaseException | None = None

    def start(self, write: Callable[[], object]) -> None:
        """Waits for the write before; `write` must not look at anything that training changes."""
        self.wait()
        self._thread = Thread(target=self._run, args=(write,), name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, write: Callable[[], object]) -> None:
        try:
            write()
        except BaseException as error:
            self._error = error
