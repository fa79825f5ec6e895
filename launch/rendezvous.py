"""The rendezvous of the launchers of a run's nodes: they agree before and after each attempt.

Torchrun's own rendezvous joins the workers of one attempt. What it can't do, the launchers do over
a TCPStore of theirs: refuse a run for all nodes if one can't take part, prepare data on the first
node before the others, check that all have the same run and share its folder, end with one exit
status everywhere, and notice a lost node within seconds rather than after a collective's timeout.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

from engine.config import ConfigProblem


@dataclass(frozen=True)
class Node:
    """A machine of a run: its rank, the number of nodes, and the first one's address."""

    rank: int = 0
    count: int = 1
    address: str = "localhost"
    port: int = 0

    @classmethod
    def from_environment(cls, count: int) -> Self:
        """This machine, from the variables that torchrun's users know."""
        names = ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
        rank, address, port = (os.environ.get(name, "") for name in names)
        if count == 1:
            return cls()
        right = {
            f"NODE_RANK must be 0 to {count - 1}, not {rank!r}": rank in map(str, range(count)),
            "MASTER_ADDR must be the first node's name or address": address,
            f"MASTER_PORT must be a free port of the first node, not {port!r}": (
                port.isdecimal() and 0 < int(port) < 1 << 16
            ),
        }
        if problems := [message for message, is_right in right.items() if not is_right]:
            about = f"hardware.nodes={count}: run this command on each node with {', '.join(names)}"
            raise ConfigProblem([about, *problems])
        return cls(int(rank), count, address, int(port))

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def __str__(self) -> str:
        return f"node {self.rank} of {self.count}"


class RendezvousError(Exception):
    """The nodes can't find each other; the message is for the user."""


class NodeLost(Exception):
    """Another node's launcher is gone; `status` is the exit status that it left, if any."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Rendezvous:
    """The launchers of all nodes; the first one hosts the store.

    With one node nothing is communicated. All call `gather` in the same order. A launcher that ends
    leaves its exit status in the store; one that is killed is noticed by its missing heartbeat.
    """

    BETWEEN_BEATS, BETWEEN_POLLS = 1.0, 0.1  # seconds
    SILENCE = 30.0  # seconds without a heartbeat after which a node is lost
    FAREWELL = 10.0  # seconds that the first node's store outlives its run, for the others to read

    def __init__(self, node: Node, timeout_s: float) -> None:
        self.node = node
        self._timeout_s = timeout_s
        self._round = 0
        self._store: Any = None
        self._ended = threading.Event()
        self._beats: dict[int, tuple[bytes | None, float]] = {}  # the last, and when it came

    def __enter__(self) -> Self:
        if self.node.count > 1:
            self._join()
            threading.Thread(target=self._beat, daemon=True).start()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Leaves the exit status for the others."""
        if self.node.count == 1:
            return
        code = error.code if isinstance(error, SystemExit) else 1 if error is not None else 0
        with suppress(RuntimeError):
            self._store.set(f"left/{self.node.rank}", str(code))
            came = [rank for rank in self._others() if self._store.check([f"joined/{rank}"])]
            if self.node.is_first and came:
                left = [f"left/{rank}" for rank in came]
                self._store.wait(left, timedelta(seconds=self.FAREWELL))
        self._ended.set()

    def gather(self, own: Any) -> list[Any]:
        """Every node's value (JSON) in the order of nodes; waits for all."""
        if self.node.count == 1:
            return [own]
        with _store_errors_as_node_lost():
            self._store.set(f"{self._round}/{self.node.rank}", json.dumps(own))
        while len(values := self.gathered()) < self.node.count:
            try:
                self.check_others()
            except NodeLost:  # which may have given its value, and left after reading all
                if len(values := self.gathered()) < self.node.count:
                    raise
                break
            time.sleep(self.BETWEEN_POLLS)
        self._round += 1
        return [values[rank] for rank in range(self.node.count)]

    def gathered(self) -> dict[int, Any]:
        """The values that nodes have given to the next `gather` already, by rank."""
        given = {rank: self._read(f"{self._round}/{rank}") for rank in range(self.node.count)}
        return {rank: json.loads(value) for rank, value in given.items() if value is not None}

    def check_others(self) -> None:
        """Raises NodeLost if another node has left or its heartbeat has stopped."""
        for rank in self._others():
            if (status := self._read(f"left/{rank}")) is not None:
                raise NodeLost(f"node {rank} of {self.node.count} has ended", int(status))
            beat, now = self._read(f"beat/{rank}"), time.monotonic()
            before, since = self._beats.setdefault(rank, (beat, now))
            if beat != before:
                self._beats[rank] = (beat, now)
            elif beat is None and now - since > self._timeout_s:
                raise NodeLost(f"node {rank} did not join within {self._timeout_s:g} s")
            elif beat is not None and now - since > self.SILENCE:
                raise NodeLost(f"node {rank} of {self.node.count} does not respond")

    def _read(self, key: str) -> bytes | None:
        """A value of the store; None until it is set."""
        with _store_errors_as_node_lost():
            return self._store.get(key) if self._store.check([key]) else None

    def _others(self) -> list[int]:
        return [rank for rank in range(self.node.count) if rank != self.node.rank]

    def _join(self) -> None:
        node, limit = self.node, time.monotonic() + self._timeout_s
        where = f"MASTER_ADDR={node.address}, MASTER_PORT={node.port}"
        while not node.is_first:  # torch would log a warning at every attempt
            with suppress(OSError), socket.create_connection((node.address, node.port), 1.0):
                break
            if time.monotonic() > limit:
                raise RendezvousError(f"{where}: the first node does not answer")
            time.sleep(self.BETWEEN_POLLS)
        from torch.distributed import TCPStore

        try:
            self._store = TCPStore(
                node.address,
                node.port,
                is_master=node.is_first,
                wait_for_workers=False,
                timeout=timedelta(seconds=self.SILENCE),
            )
            limit_silence(node.port, self.SILENCE)
            taken = self._store.add(f"joined/{node.rank}", 1) > 1
        except (RuntimeError, ValueError) as problem:
            reason = str(problem).split(". ")[0]
            raise RendezvousError(f"{where} can't be used on {node}: {reason}") from problem
        if taken:
            raise RendezvousError(f"NODE_RANK={node.rank} is taken: each node needs its own")

    def _beat(self) -> None:
        beats = 0
        with suppress(RuntimeError):  # the first node is gone: the next `gather` raises NodeLost
            while not self._ended.wait(self.BETWEEN_BEATS if beats else 0.0):
                beats += 1
                self._store.set(f"beat/{self.node.rank}", str(beats))


def limit_silence(port: int, seconds: float) -> None:
    """Has connections to a port fail when nothing sent is acknowledged for so long.

    The store waits for answers without a limit of its own, and TCP gives up after 15 minutes only
    where a cable is cut.
    """
    if not hasattr(socket, "TCP_USER_TIMEOUT"):  # not on macOS
        return
    limit, streams = round(1000 * seconds), (socket.AF_INET, socket.SOCK_STREAM)
    for path in [p for p in Path("/proc/self/fd").iterdir() if p.is_socket()]:
        with suppress(OSError), socket.fromfd(int(path.name), *streams) as found:
            if found.getpeername()[1] == port:
                found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limit)


@contextmanager
def _store_errors_as_node_lost() -> Iterator[None]:
    try:
        yield
    except RuntimeError as problem:  # torch.distributed.DistError is one, too
        raise NodeLost("the first node is gone") from problem


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as found:
        found.bind(("", 0))
        return int(found.getsockname()[1])
