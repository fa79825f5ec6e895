"""Freed memory stays in the process: the kernel hands out no new pages step after step."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FAULTS = """
import os, resource
import torch
from engine.memory import keep_freed_memory

torch.set_num_threads(1)
if child := os.fork():  # this process keeps its freed memory, the other one returns it
    os.waitpid(child, 0)
    assert keep_freed_memory()

def step():
    blocks = [torch.ones(300_000) for _ in range(40)]
    return sum(float(block[0]) for block in blocks)

step()
found = []
for _ in range(20):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    step()
    found.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(sorted(found)[5], sum(found))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's mallopt")
def test_steps_after_the_first_fault_in_no_pages():
    """The quieter steps show it: the kernel may take idle pages of a process that waits for a core.

    Where memory goes back, glibc's own rules for when change on the way: the sum shows it.
    """
    command = [sys.executable, "-c", FAULTS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    _, in_all, in_a_quiet_step, _ = map(int, done.stdout.split())
    # 48 MB a step, 20 steps: thousands of pages of 4 kB where they go back.
    assert 20 * in_a_quiet_step < 0.05 * in_all
