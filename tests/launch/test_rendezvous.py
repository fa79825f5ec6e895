"""The rendezvous of launchers: they exchange values, notice lost nodes and end together."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from engine.config import ConfigProblem
from launch import supervise
from launch.rendezvous import Node, NodeLost, Rendezvous, RendezvousError, free_port, limit_silence


def meet(nodes: int, part, timeout_s: float = 20.0) -> list[object]:
    """What `part` makes of each node's rendezvous, or the exception that it ends with."""
    port = free_port()
    ends: list[object] = [None] * nodes

    def take_part(rank: int) -> None:
        try:
            with Rendezvous(Node(rank, nodes, "localhost", port), timeout_s) as rendezvous:
                ends[rank] = part(rendezvous)
        except (Exception, SystemExit) as error:
            ends[rank] = error

    threads = [threading.Thread(target=take_part, args=(rank,)) for rank in range(nodes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ends


def test_all_nodes_gather_all_values_in_the_order_of_nodes():
    def twice(rendezvous: Rendezvous) -> object:
        return rendezvous.gather({"rank": rendezvous.node.rank}), rendezvous.gather("end")

    assert meet(3, twice) == [([{"rank": 0}, {"rank": 1}, {"rank": 2}], ["end"] * 3)] * 3


def test_one_node_communicates_nothing():
    with Rendezvous(Node(), 1.0) as rendezvous:
        assert rendezvous.gather({"a": 1}) == [{"a": 1}]


@pytest.mark.parametrize("leaves", [0, 1])
def test_a_node_that_leaves_gives_the_others_its_exit_status(leaves):
    def leave(rendezvous: Rendezvous) -> None:
        rendezvous.gather("here")
        if rendezvous.node.rank == leaves:
            raise SystemExit(75)
        rendezvous.gather("still here")

    ends = meet(2, leave)
    assert isinstance(ends[leaves], SystemExit)
    other = ends[1 - leaves]
    assert isinstance(other, NodeLost)
    assert other.status == 75


@pytest.mark.parametrize("broken", [0, 1])
def test_a_problem_on_one_node_ends_the_run_on_all(monkeypatch, capsys, broken):
    nodes = threading.local()

    def complete(*_: object) -> str:
        if nodes.rank == broken:
            raise ConfigProblem(["no GPU is visible"])
        return "spec"

    def prepare(rendezvous: Rendezvous) -> object:
        nodes.rank = rendezvous.node.rank
        return supervise._complete_in_turn(None, {}, rendezvous)  # type: ignore[arg-type]

    monkeypatch.setattr(supervise, "complete_run_spec", complete)
    assert meet(3, prepare) == [None] * 3
    message = capsys.readouterr().err
    assert message.count("no GPU is visible") == 1
    assert f"node {broken} of 3: 1 problem" in message


def test_a_missing_heartbeat_is_noticed(monkeypatch):
    monkeypatch.setattr(Rendezvous, "SILENCE", 2.0)
    monkeypatch.setattr(Rendezvous, "FAREWELL", 0.1)
    noticed = threading.Event()

    def stop_beating(rendezvous: Rendezvous) -> None:
        rendezvous.gather("here")
        if rendezvous.node.rank == 1:
            rendezvous._ended.set()
            noticed.wait(60)
        try:
            rendezvous.gather("still here")
        finally:
            noticed.set()

    assert "node 1 of 2 does not respond" in str(meet(2, stop_beating)[0])


def test_nodes_that_cannot_join():
    port = free_port()
    first = Node(0, 2, "localhost", port)
    with Rendezvous(first, 0.5) as rendezvous:
        with pytest.raises(NodeLost, match=r"node 1 did not join within 0.5 s"):
            rendezvous.gather("")
        with pytest.raises(RendezvousError, match=f"MASTER_PORT={port} can't be used"):
            Rendezvous(first, 0.5).__enter__()
        second = Rendezvous(Node(1, 2, "localhost", port), 0.5)
        with second, pytest.raises(RendezvousError, match="NODE_RANK=1 is taken"):
            Rendezvous(Node(1, 2, "localhost", port), 0.5).__enter__()
    with pytest.raises(RendezvousError, match="the first node does not answer"):
        Rendezvous(Node(1, 2, "localhost", free_port()), 0.3).__enter__()


def test_the_environment_names_the_node(monkeypatch):
    for name in ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert Node.from_environment(1) == Node()
    with pytest.raises(ConfigProblem) as caught:
        Node.from_environment(2)
    about, *problems = caught.value.problems
    assert "hardware.nodes=2: run this command on each node with NODE_RANK" in about
    assert len(problems) == 3
    monkeypatch.setenv("NODE_RANK", "1")
    monkeypatch.setenv("MASTER_ADDR", "n0")
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert Node.from_environment(2) == Node(1, 2, "n0", 29500)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux only")
def test_a_connection_to_a_node_that_is_cut_off_does_not_wait_for_ever():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            before = len([*Path("/proc/self/fd").iterdir()])
            limit_silence(port, 30.0)
            assert len([*Path("/proc/self/fd").iterdir()]) == before
            assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
