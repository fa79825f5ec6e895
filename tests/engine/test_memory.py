"""Freed memory stays in the process: the kernel hands out no new pages step after step."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FAULTS = """
import resource, sys
import torch
from engine.memory import keep_freed_memory

if sys.argv[1] == "kept":
    assert keep_freed_memory()
torch.set_num_threads(1)

def step():
    blocks = [torch.ones(300_000) for _ in range(40)]
    return sum(float(block[0]) for block in blocks)

step()
found = []
for _ in range(20):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    step()
    found.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(sorted(found)[5])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's mallopt")
def test_steps_after_the_first_fault_in_no_pages():
    """A quarter of the steps is looked at: the kernel may take idle pages of a waiting process."""
    faults = {}
    for mode in ("kept", "returned"):
        command = [sys.executable, "-c", FAULTS, mode]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        faults[mode] = int(done.stdout)
    # 48 MB a step: hundreds of pages, small and huge ones, where they go back.
    assert faults["returned"] > 100
    assert faults["kept"] < 0.05 * faults["returned"]
