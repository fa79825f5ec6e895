"""Several nodes: launchers on loopback that meet, train, stop and end together."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
import torch

from launch.rendezvous import free_port
from launch.worker import be_killed_with_parent
from scripts import launch as launcher
from tests.launch.launching import (
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


def start_nodes(folder: Path, *overrides: str) -> list[subprocess.Popen[str]]:
    """A launcher for each of two nodes, as a user calls them."""
    place = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
    nodes = []
    for rank in ("0", "1"):
        node = subprocess.Popen(
            command(folder, "hardware.processes=2", *overrides, "hardware.nodes=2"),
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


def stop_second_node(folder: Path, *overrides: str) -> None:
    """The one that does not hold the run's folder."""
    nodes = start_nodes(folder, *overrides)
    wait_for_rows(folder, 1, nodes[0])
    pids = worker_pids(folder)
    nodes[1].send_signal(signal.SIGTERM)
    codes, output = wait_for_both(nodes)
    assert codes == [75, 75], output
    assert "2 × cpu on 2 nodes" in output[0]
    stopped = f"preempted: stopped on request after step {status(folder)['step']}, and saved"
    assert all(stopped in text for text in output), output
    assert not any("Traceback" in text for text in output)
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
    assert all("a worker was lost; restart 1 of 3" in text for text in output)
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
    expected = "does not respond" if lost else "the first node is gone"
    assert (
        f"{expected}; rerun the same commands to resume from the last checkpoint"
        in output[1 - lost]
    )
    wait_for_end(pids)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["hardware.nodes=2", "hardware.processes=5"], "5 = 2 × 2 + 1"),
        (["hardware.nodes=0"], "hardware.nodes must be at least 1"),
        (["hardware.nodes=2", "hardware.processes=2"], "NODE_RANK must be 0 to 1, not ''"),
    ],
)
def test_nodes_that_do_not_fit(overrides, message, capsys, monkeypatch):
    monkeypatch.delenv("NODE_RANK", raising=False)
    good = ["experiment=imagenet/novograd_100ep", "scale=smoke", "hardware=cpu"]
    assert launcher.main([*good, *overrides]) == 2
    assert message in capsys.readouterr().err
