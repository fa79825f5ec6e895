from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest
import torch

if not os.environ.get("DATA_ROOT"):  # an empty one counts as unset, here and in configs/small_data
    os.environ.pop("DATA_ROOT", None)

# As in a terminal, also where nohup or a shell's background job has them ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# These folders have the longest tests: first, so that no core waits for one at the end.
LONGEST = ("scripts", "launch", "hollow_cuda", "engine", "optim")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keeps the order within a folder."""
    tests = Path(__file__).parent
    order = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.relative_to(tests).parts[0], len(order)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Before all fixtures: torch.testing's modules forbid to set the flags of torch.backends."""
    flags = torch.backends.flags_frozen.__globals__  # torch.backends itself is a wrapper
    flags["__allow_nonbracketed_mutation_flag"] = True
    assert not torch.backends.flags_frozen()


@pytest.fixture(autouse=True)
def _seeded():
    """Every test starts from the same random state, whatever ran before it."""
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _threads():
    """Under xdist each worker gets one core."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
