"""The processes and nodes of a run: the only file of the engine that knows torch.distributed.

`python -m engine.distributed …` is torchrun, but quieter when a worker fails.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from engine.config import ConfigProblem


class Group:
    """This process among the others. With one process nothing is communicated."""

    def __init__(self, rank: int, world: int, device: torch.device) -> None:
        self.rank = rank
        self.world = world
        self.device = device

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.world > 1:
            dist.all_reduce(tensor)
        return tensor

    def gather(self, value: Any) -> list[Any]:
        """Everybody's value, in the order of ranks, for everybody."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value)
        return values

    def gather_to_first(self, value: Any) -> list[Any]:
        """Everybody's value for the first process, an empty list for the others."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world if self.is_first else []
        dist.gather_object(value, values if self.is_first else None)
        return values

    def wait_for_all(self) -> None:
        if self.world > 1:
            dist.barrier()

    def average_buffers(self, module: nn.Module) -> None:
        """Makes floating-point buffers (batch-norm statistics) the mean over processes."""
        if self.world == 1:
            return
        buffers = [b for b in module.buffers() if b.is_floating_point()]
        if buffers:
            flat = torch.cat([b.detach().reshape(-1).double() for b in buffers])
            dist.all_reduce(flat)
            flat /= self.world
            sizes = [b.numel() for b in buffers]
            for buffer, part in zip(buffers, torch.split(flat, sizes), strict=True):
                buffer.copy_(part.reshape(buffer.shape))

    def wrap(self, model: nn.Module) -> nn.Module:
        """DDP around the model where there is more than one process."""
        if self.world == 1:
            return model
        ids = [self.device.index] if self.device.type == "cuda" else None
        # Statistics stay each process's own between evaluations: see average_buffers.
        return DistributedDataParallel(
            model, device_ids=ids, broadcast_buffers=False, gradient_as_bucket_view=True
        )

    def without_sync(self, model: nn.Module, last: bool) -> AbstractContextManager[Any]:
        """Gradients are communicated in the last micro-batch of a step only."""
        if self.world == 1 or last:
            return nullcontext()
        assert isinstance(model, DistributedDataParallel)
        return model.no_sync()


@contextmanager
def joined(device_type: str, timeout_s: float) -> Iterator[Group]:
    """The group that torchrun's environment variables describe."""
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    local = int(os.environ.get("LOCAL_RANK", 0))
    device = torch.device(device_type, local) if device_type == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if world > 1:
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
    try:
        yield Group(rank, world, device)
    finally:
        if world > 1:
            dist.destroy_process_group()


@dataclass(frozen=True)
class Node:
    """A machine of a run: its number, of how many, and where the first one is met."""

    rank: int = 0
    count: int = 1
    address: str = "localhost"
    port: int = 0

    @classmethod
    def of_environment(cls, count: int) -> Self:
        """This machine, from the variables that torchrun's users know."""
        names = ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
        rank, address, port = (os.environ.get(name, "") for name in names)
        if count == 1:
            return cls()
        problems = []
        if not rank.isdecimal() or int(rank) >= count:
            problems.append(f"NODE_RANK must be 0 to {count - 1}, not {rank!r}")
        if not address:
            problems.append("MASTER_ADDR must be the first node's name or address")
        if not port.isdecimal() or not 0 < int(port) < 1 << 16:
            problems.append(f"MASTER_PORT must be a free port of the first node, not {port!r}")
        if problems:
            about = f"hardware.nodes={count}: call this on each node with {', '.join(names)}"
            raise ConfigProblem([about, *problems])
        return cls(int(rank), count, address, int(port))

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def __str__(self) -> str:
        return f"node {self.rank} of {self.count}"


class MeetingProblem(Exception):
    """The nodes can't meet; the message is for the user."""


class NodeLost(Exception):
    """Another node's launcher is gone; `status` is the exit status that it left with, if any."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Meeting:
    """The launchers of all nodes, which tell each other things; the first one keeps the store.

    With one node nothing is communicated. Everybody calls `exchange` in the same order. A launcher
    that ends is noticed at once if it could say so, and otherwise by its silence.
    """

    BETWEEN_BEATS, BETWEEN_LOOKS = 1.0, 0.1  # seconds
    SILENCE = 30.0  # after which a node is lost
    FAREWELL = 10.0  # that the first node waits at the end until all have heard everything

    def __init__(self, node: Node, timeout_s: float) -> None:
        self.node = node
        self._timeout_s = timeout_s
        self._round = 0
        self._store: Any = None
        self._ended = threading.Event()
        self._heard: dict[int, tuple[bytes, float]] = {}  # the last beat of each, and when it came

    @property
    def is_first(self) -> bool:
        return self.node.is_first

    def __enter__(self) -> Self:
        if self.node.count > 1:
            self._join()
            threading.Thread(target=self._beat, daemon=True).start()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Says goodbye with an exit status, if there is a reason to leave before the others."""
        if self._store is None:
            return
        code = error.code if isinstance(error, SystemExit) else 1 if error is not None else 0
        with suppress(RuntimeError):
            self._store.set(f"left/{self.node.rank}", str(code))
            waits_until = time.monotonic() + self.FAREWELL if self.is_first else 0.0
            came = [rank for rank in self._others() if self._store.check([f"joined/{rank}"])]
            here = [f"left/{rank}" for rank in came]
            while time.monotonic() < waits_until and not self._store.check(here):
                time.sleep(self.BETWEEN_LOOKS)
        self._ended.set()

    def exchange(self, own: Any) -> list[Any]:
        """Everybody's value in the order of nodes, as JSON has it; waits for all."""
        if self._store is None:
            return [own]
        with _lost_store_is_lost_node():
            self._store.set(f"{self._round}/{self.node.rank}", json.dumps(own))
        while len(values := self.said()) < self.node.count:
            try:
                self.look_for_lost()
            except NodeLost:  # perhaps after it has said what is waited for, and heard all
                if len(values := self.said()) < self.node.count:
                    raise
                break
            time.sleep(self.BETWEEN_LOOKS)
        self._round += 1
        return [values[rank] for rank in range(self.node.count)]

    def said(self) -> dict[int, Any]:
        """What nodes have given to the next exchange already."""
        found = {}
        with _lost_store_is_lost_node():
            for rank in range(self.node.count if self._store is not None else 0):
                if self._store.check([key := f"{self._round}/{rank}"]):
                    found[rank] = json.loads(self._store.get(key))
        return found

    def look_for_lost(self) -> None:
        """Raises NodeLost if another node has left or is silent."""
        for rank in self._others() if self._store is not None else ():
            with _lost_store_is_lost_node():
                left = self._store.check([f"left/{rank}"])
                status = int(self._store.get(f"left/{rank}")) if left else None
                there = self._store.check([f"beat/{rank}"])
                beat = self._store.get(f"beat/{rank}") if there else b""
            if left:
                raise NodeLost(f"node {rank} of {self.node.count} has ended", status)
            now = time.monotonic()
            before, since = self._heard.setdefault(rank, (beat, now))
            if beat != before:
                self._heard[rank] = (beat, now)
            elif not there and now - since > self._timeout_s:
                raise NodeLost(f"node {rank} did not come within {self._timeout_s:g} s")
            elif there and now - since > self.SILENCE:
                raise NodeLost(f"node {rank} of {self.node.count} is silent")

    def _others(self) -> list[int]:
        return [rank for rank in range(self.node.count) if rank != self.node.rank]

    def _join(self) -> None:
        node, limit = self.node, time.monotonic() + self._timeout_s
        where = f"MASTER_ADDR={node.address}, MASTER_PORT={node.port}"
        while not node.is_first:  # by hand: torch would complain at every attempt
            with suppress(OSError), socket.create_connection((node.address, node.port), 1.0):
                break
            if time.monotonic() > limit:
                raise MeetingProblem(f"{where}: the first node does not answer")
            time.sleep(self.BETWEEN_LOOKS)
        try:
            self._store = dist.TCPStore(
                node.address,
                node.port,
                is_master=node.is_first,
                wait_for_workers=False,
                timeout=timedelta(seconds=self.SILENCE),
            )
            taken = self._store.add(f"joined/{node.rank}", 1) > 1
        except (RuntimeError, ValueError) as problem:
            words = str(problem).split(". ")[0]
            raise MeetingProblem(f"{where} can't be used on {node}: {words}") from problem
        if taken:
            self._store = None
            raise MeetingProblem(f"NODE_RANK={node.rank} is there already: each node has its own")

    def _beat(self) -> None:
        beats = 0
        with suppress(RuntimeError):  # the first node is gone: the next exchange says so
            while not self._ended.wait(self.BETWEEN_BEATS if beats else 0.0):
                beats += 1
                self._store.set(f"beat/{self.node.rank}", str(beats))


@contextmanager
def _lost_store_is_lost_node() -> Iterator[None]:
    try:
        yield
    except RuntimeError as problem:  # dist.DistError is one, too
        raise NodeLost("the first node is gone") from problem


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as found:
        found.bind(("", 0))
        return int(found.getsockname()[1])


def is_lost_contact(error: BaseException | None) -> bool:
    """True if another process is gone or silent: what is wrong is wrong there, not here."""
    while error is not None:
        # Gloo's are bare RuntimeErrors that begin with a place in its sources.
        from_gloo = isinstance(error, RuntimeError) and "/gloo/" in str(error)
        if from_gloo or isinstance(error, dist.DistError):
            return True
        error = error.__cause__ or error.__context__
    return False


def torchrun() -> int:
    """Without the traceback that torchrun ends with when a worker fails: it is torchrun's own."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main

    os.environ["TORCHRUN_PID"] = str(os.getpid())  # so that a worker knows its parent
    # Slurm sends these to every process of a job. Torchrun would end workers that save.
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    try:
        main()
    except (ChildFailedError, SignalException):
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(torchrun())
