"""Batches made by other processes, and files among the data that can't be read."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from tasks.base import Batch, DataProblem

PREFETCH = 2  # batches that each loading process makes ahead


class Loaded(NamedTuple):
    """A batch as it comes from a loading process."""

    tensors: dict[str, Tensor]
    units: int
    unreadable: dict[str, str]  # files that were left out, with the reason


class BatchSource(Protocol):
    """Makes the batch of some keys; a function of the keys alone."""

    def __getitems__(self, keys: list[Any]) -> Loaded | DataProblem:
        """A problem is returned: raised in a worker, it would come with the worker's traceback."""


class Unreadable:
    """Names every file that can't be read once, and ends the run when there are too many."""

    def __init__(self, allowed: float, files: int, option: str) -> None:
        self.limit, self.files, self.option = int(allowed * files), files, option
        self.names: set[str] = set()

    def add(self, found: dict[str, str]) -> None:
        for name, reason in found.items():
            if name in self.names:
                continue
            self.names.add(name)
            if len(self.names) > self.limit:
                raise DataProblem(
                    f"{name}: cannot be read: {reason}. That makes {len(self.names)} unreadable "
                    f"of {self.files:,} files, and {self.option} allows {self.limit}"
                )
            print(
                f"{name}: cannot be read, left out: {reason} ({len(self.names)} of at most "
                f"{self.limit})",
                file=sys.stderr,
                flush=True,
            )


def check_max_unreadable(allowed: float) -> None:
    """DataProblem unless it is a share; 2 would allow twice as many as there are."""
    if not 0 <= allowed <= 1:
        raise DataProblem(
            f"data.max_unreadable: must be between 0 and 1, a share of the files, not {allowed:g}"
        )


def load_batches(
    source: BatchSource,
    keys: Iterable[Sequence[Any]],
    workers: int,
    unreadable: Unreadable,
) -> Generator[Batch]:
    """The batches of `keys`, in order; an endless `keys` is read only a few batches ahead."""
    loader: DataLoader[Any] = DataLoader(
        source,  # type: ignore[arg-type]
        batch_sampler=keys,  # type: ignore[arg-type]
        num_workers=workers,
        collate_fn=_as_it_is,
        pin_memory=torch.cuda.is_available(),
        worker_init_fn=_start_worker,
        prefetch_factor=PREFETCH if workers else None,
        generator=torch.Generator(),  # otherwise a number is drawn from the global one
    )
    try:
        for loaded in _started(loader):
            if isinstance(loaded, DataProblem):
                raise loaded
            unreadable.add(loaded.unreadable)
            yield Batch(loaded.tensors, loaded.units)
    except (EOFError, ConnectionError) as error:
        # Killed while it passed a tensor on, and not yet known to torch as dead.
        raise RuntimeError(f"DataLoader worker (pid unknown) was lost: {error!r}") from error


def _started(loader: DataLoader[Any]) -> Iterator[Any]:
    """Its iterator, without the handler of SIGCHLD that torch sets with the first worker.

    When a worker dies that handler raises in whatever the main thread does then, in a save or in
    the handling of another error. Without it the next batch raises the same, seconds later.
    """
    if threading.current_thread() is not threading.main_thread():  # where torch sets none
        return iter(loader)
    before = signal.getsignal(signal.SIGCHLD)
    batches = iter(loader)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL if before is None else before)
    return batches


def _as_it_is(loaded: Any) -> Any:
    return loaded


def _start_worker(_: int) -> None:
    """Leaves signals to the parent: to stop well it may need batches after one to the whole group.

    The parent's own SIGTERM must still end the worker. Torch and multiprocessing send it where
    their orderly end fails (a stream in a reference cycle, an exit with a stream open), and then
    wait for the worker.
    """
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):  # not on macOS
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_end_by_parent, daemon=True).start()


def _end_by_parent() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)
