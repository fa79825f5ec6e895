from __future__ import annotations

import os
import signal

import pytest
from torch.utils.data import DataLoader

from engine.distributed import is_lost_contact


class Killed:
    """A data set whose loader process is killed, as by a system without memory."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return index


def test_a_killed_loader_process_is_lost_and_no_failure_of_this_one():
    with pytest.raises(RuntimeError) as caught:
        list(DataLoader(Killed(), num_workers=1))  # type: ignore[arg-type]
    assert is_lost_contact(caught.value)
    assert not is_lost_contact(RuntimeError("shapes do not fit"))
    assert not is_lost_contact(None)
