"""Several nodes: launchers on loopback that meet, train, stop and end together."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest
import torch

from engine.config import ConfigProblem, HardwareConfig
from engine.distributed import Meeting, MeetingProblem, Node, NodeLost, free_port
from scripts import launch as launcher
from scripts.supervise import Requests
from scripts.train import be_killed_with_parent
from tests.scripts.launching import (
    ENDLESS,
    ROOT,
    command,
    is_alive,
    result,
    run_folder,
    started,
    status,
    wait_for_end,
    wait_for_rows,
    worker_pid,
    worker_pids,
)


def start_nodes(folder: Path, *words: str) -> list[subprocess.Popen[str]]:
    """A launcher for each of two nodes, as a user calls them."""
    place = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
    nodes = []
    for rank in ("0", "1"):
        node = subprocess.Popen(
            command(folder, "hardware.processes=2", *words, "hardware.nodes=2"),
            cwd=ROOT,
            env=os.environ | place | {"NODE_RANK": rank},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=be_killed_with_parent,
        )
        nodes.append(node)
        started.append(node)
    return nodes


def wait_for_both(nodes: list[subprocess.Popen[str]]) -> tuple[list[int], list[str]]:
    output = [node.communicate()[0] for node in nodes]
    return [node.returncode for node in nodes], output


def weights(folder: Path) -> dict[str, torch.Tensor]:
    path = run_folder(folder) / "checkpoints" / "step-00000046.pt"
    found: dict[str, torch.Tensor] = torch.load(path, weights_only=True)["model"]
    return found


@pytest.mark.slow  # half a minute of one core, and part of the next test
def test_two_nodes_stop_together(tmp_path):
    stop_second_node(tmp_path, ENDLESS)


def stop_second_node(folder: Path, *words: str) -> None:
    """The one that does not hold the run's folder."""
    nodes = start_nodes(folder, *words)
    wait_for_rows(folder, 1, nodes[0])
    pids = worker_pids(folder)
    nodes[1].send_signal(signal.SIGTERM)
    codes, output = wait_for_both(nodes)
    assert codes == [75, 75], output
    assert "2 × cpu of 2 nodes" in output[0]
    stopped = f"preempted: stopped on request after step {status(folder)['step']}, and saved"
    assert all(stopped in words for words in output), output
    assert not any("Traceback" in words for words in output)
    assert len(pids) == 2
    assert not any(map(is_alive, pids))


@pytest.mark.slow
def test_two_nodes_that_were_stopped_end_as_one(undisturbed_pair, tmp_path):
    stop_second_node(tmp_path)
    codes, output = wait_for_both(start_nodes(tmp_path))
    assert codes == [0, 0], output
    assert "resuming" in output[0]
    assert result(tmp_path) == result(undisturbed_pair[0])
    ours, theirs = weights(tmp_path), weights(undisturbed_pair[0])
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.slow
def test_a_killed_worker_of_the_second_node_is_replaced(undisturbed_pair, tmp_path):
    nodes = start_nodes(tmp_path)
    wait_for_rows(tmp_path, 2, nodes[0])
    os.kill(worker_pid(tmp_path, 1), signal.SIGKILL)
    codes, output = wait_for_both(nodes)
    assert codes == [0, 0], output
    assert all("a worker was lost; restart 1 of 3" in words for words in output)
    assert result(tmp_path) == result(undisturbed_pair[0])


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1])
def test_without_one_node_the_other_ends(tmp_path, lost):
    nodes = start_nodes(tmp_path, ENDLESS)
    wait_for_rows(tmp_path, 1, nodes[0])
    pids = worker_pids(tmp_path)
    nodes[lost].kill()
    codes, output = wait_for_both(nodes)
    assert codes[1 - lost] == 1, output
    expected = "is silent" if lost else "the first node is gone"
    assert f"{expected}; the same commands go on from the last checkpoint" in output[1 - lost]
    wait_for_end(pids)


# Without training


def meet(nodes: int, part, timeout_s: float = 20.0) -> list[object]:
    """What `part` makes of each node's meeting, or the exception that it ends with."""
    port = free_port()
    ends: list[object] = [None] * nodes

    def take_part(rank: int) -> None:
        try:
            with Meeting(Node(rank, nodes, "localhost", port), timeout_s) as meeting:
                ends[rank] = part(meeting)
        except (Exception, SystemExit) as error:
            ends[rank] = error

    threads = [threading.Thread(target=take_part, args=(rank,)) for rank in range(nodes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ends


def test_everybody_hears_everybody_in_the_order_of_nodes():
    def twice(meeting: Meeting) -> object:
        return meeting.exchange({"rank": meeting.node.rank}), meeting.exchange("end")

    assert meet(3, twice) == [([{"rank": 0}, {"rank": 1}, {"rank": 2}], ["end"] * 3)] * 3


def test_one_node_meets_nobody():
    with Meeting(Node(), 1.0) as meeting:
        assert meeting.exchange({"a": 1}) == [{"a": 1}]


@pytest.mark.parametrize("leaves", [0, 1])
def test_who_leaves_tells_the_others_with_which_status(leaves):
    def leave(meeting: Meeting) -> None:
        meeting.exchange("here")
        if meeting.node.rank == leaves:
            raise SystemExit(75)
        meeting.exchange("still here")

    ends = meet(2, leave)
    assert isinstance(ends[leaves], SystemExit)
    other = ends[1 - leaves]
    assert isinstance(other, NodeLost)
    assert other.status == 75


@pytest.mark.parametrize("broken", [0, 1])
def test_a_problem_of_one_node_is_the_end_for_all(monkeypatch, capsys, broken):
    nodes = threading.local()

    def complete(_: object) -> str:
        if nodes.rank == broken:
            raise ConfigProblem(["no GPU is visible"])
        return "prepared"

    def prepare(meeting: Meeting) -> object:
        nodes.rank = meeting.node.rank
        return launcher._complete_in_turn(None, meeting)  # type: ignore[arg-type]

    monkeypatch.setattr(launcher, "complete", complete)
    assert meet(3, prepare) == [None] * 3
    message = capsys.readouterr().err
    assert message.count("no GPU is visible") == 1
    assert f"node {broken} of 3: 1 problem" in message


def test_silence_is_noticed(monkeypatch):
    monkeypatch.setattr(Meeting, "SILENCE", 2.0)
    monkeypatch.setattr(Meeting, "FAREWELL", 0.0)
    noticed = threading.Event()

    def fall_silent(meeting: Meeting) -> None:
        meeting.exchange("here")
        if meeting.node.rank == 1:
            meeting._ended.set()  # its heart
            noticed.wait(60)
        try:
            meeting.exchange("still here")
        finally:
            noticed.set()

    assert "node 1 of 2 is silent" in str(meet(2, fall_silent)[0])


def test_nodes_that_cannot_meet():
    port = free_port()
    first = Node(0, 2, "localhost", port)
    with Meeting(first, 0.5) as meeting:
        with pytest.raises(NodeLost, match=r"node 1 did not come within 0.5 s"):
            meeting.exchange("")
        with pytest.raises(MeetingProblem, match=f"MASTER_PORT={port} can't be used"):
            Meeting(first, 0.5).__enter__()
        second = Meeting(Node(1, 2, "localhost", port), 0.5)
        with second, pytest.raises(MeetingProblem, match="NODE_RANK=1 is there already"):
            Meeting(Node(1, 2, "localhost", port), 0.5).__enter__()
    with pytest.raises(MeetingProblem, match="the first node does not answer"):
        Meeting(Node(1, 2, "localhost", free_port()), 0.3).__enter__()


def test_the_environment_says_which_node_this_is(monkeypatch):
    for name in ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert Node.of_environment(1) == Node()
    with pytest.raises(ConfigProblem) as caught:
        Node.of_environment(2)
    about, *problems = caught.value.problems
    assert "hardware.nodes=2: call this on each node with NODE_RANK" in about
    assert len(problems) == 3
    monkeypatch.setenv("NODE_RANK", "1")
    monkeypatch.setenv("MASTER_ADDR", "n0")
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert Node.of_environment(2) == Node(1, 2, "n0", 29500)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["hardware.nodes=2", "hardware.processes=5"], "5 = 2 × 2 + 1"),
        (["hardware.nodes=0"], "hardware.nodes must be finite and at least 1"),
        (["hardware.nodes=2", "hardware.processes=2"], "NODE_RANK must be 0 to 1, not ''"),
    ],
)
def test_nodes_that_do_not_fit(words, message, capsys, monkeypatch):
    monkeypatch.delenv("NODE_RANK", raising=False)
    good = ["experiment=imagenet/novograd_100ep", "scale=smoke", "hardware=cpu"]
    assert launcher.main([*good, *words]) == 2
    assert message in capsys.readouterr().err


def test_auto_is_what_each_node_has():
    def processes(**given) -> object:
        hardware = HardwareConfig(device="cuda", **given)
        return launcher.resolve_hardware(hardware, slots=32, gpus=8).processes

    assert processes(nodes=2) == 16
    assert processes(nodes=8) == 32  # four of eight each: no more share 32 micro-batches
    assert processes(nodes=4, processes=32) == 32
    with pytest.raises(ConfigProblem, match="8 GPUs are visible on each of 2 nodes"):
        processes(nodes=2, processes=32)


def test_a_request_before_there_is_anything_to_save_ends_at_once():
    with Requests(), pytest.raises(SystemExit) as caught:
        signal.raise_signal(signal.SIGTERM)
    assert caught.value.code == 75
