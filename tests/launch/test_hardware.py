"""What a machine has, and what `auto` becomes on it."""

from __future__ import annotations

import pytest

from engine.config import ConfigProblem, HardwareConfig
from launch.hardware import available_memory, resolve_hardware, total_memory


def test_auto_is_what_each_node_has():
    def processes(**given) -> object:
        hardware = HardwareConfig(device="cuda", **given)
        return resolve_hardware(hardware, micro_batches=32, gpus=8).processes

    assert processes(nodes=2) == 16
    assert processes(nodes=8) == 32  # four of eight each: no more share 32 micro-batches
    assert processes(nodes=4, processes=32) == 32
    with pytest.raises(ConfigProblem, match="8 GPUs are visible on each of 2 nodes"):
        processes(nodes=2, processes=32)


def test_available_memory_is_a_part_of_all_memory():
    assert 0 < available_memory() <= total_memory()
