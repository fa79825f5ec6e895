"""`python -m tests.hollow_cuda.probe_bench`: the optimizers' bench on a few small tensors."""

from __future__ import annotations

from dataclasses import replace

import torch

from benchmarks import optim
from benchmarks.contest import BenchOptions
from tests.hollow_cuda import hollow

if __name__ == "__main__":
    optim.PARAMETER_SETS = {
        name: replace(found, shapes=lambda: [(3, 5), (7,)], rounds=2)
        for name, found in optim.PARAMETER_SETS.items()
    }
    optim.OTHERS = optim.OTHERS[:1]
    found = optim.measure(BenchOptions(torch.device("cuda")))
    step = found.detail["sets"]["resnet50v2"]["step"]
    hollow.answer({row["name"]: row["status"] for row in step})
