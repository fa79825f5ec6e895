"""Memory of the paper's four models with each optimizer, measured.

Every model at the paper's size makes two steps on a synthetic batch, small as activations are not
the question, in a process of its own that returns freed tensors to the system at once. Measured are
the bytes of the optimizer's state tensors, and the peak of the process' memory above what it had
before the model. `analysis.findings` compares them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from analysis.paper import OPTIMIZERS
from engine.records import write_json

# A row of each task, and batches of a few units.
MODELS = {
    "ResNet-50": ("imagenet/novograd_100ep", 4),
    "Jasper DR 10x5": ("librispeech/novograd", 1),
    "Transformer-big": ("wmt14/novograd", 512),
    "Transformer-XL": ("wikitext103/novograd", 128),
}
BETAS = {"adam": (0.9, 0.98), "adamw": (0.9, 0.98), "novograd": (0.95, 0.25)}
AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}  # glibc's


def measure(model: str, optimizer: str) -> dict[str, float]:
    """Megabytes, in this process, which should have done nothing else."""
    import torch

    from launch.run_spec import make_run_spec
    from optim.factory import build_optimizer

    torch.set_num_threads(1)
    experiment, size = MODELS[model]
    batch = [f"batch.micro={size}", f"batch.global_size={size}"]
    words = [f"experiment={experiment}", "scale=paper", "hardware=cpu", *batch]
    task = make_run_spec(words, need_data=False).task
    example = task.example_batch()
    before = _kilobytes("VmRSS")
    torch.manual_seed(0)
    network = task.build_model().train()
    options = {"betas": BETAS[optimizer]} if optimizer in BETAS else {"momentum": 0.9}
    made = build_optimizer(optimizer, list(network.parameters()), lr=1e-4, **options)
    for _ in range(2):
        made.zero_grad()
        out = task.loss(network, example, None)
        out.total.backward()
        made.step()
    state = [t for s in made.state.values() for t in s.values() if isinstance(t, torch.Tensor)]
    state_bytes = sum(t.numel() * t.element_size() for t in state)
    peak_bytes = 1024 * (_kilobytes("VmHWM") - before)
    return {"state_mb": round(state_bytes / 1e6, 1), "peak_mb": round(peak_bytes / 1e6, 1)}


def _kilobytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def measure_all(path: Path) -> None:
    """Every model with every optimizer, one after another."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for model in MODELS:
        for optimizer in OPTIMIZERS:
            print(f"memory: {model}, {OPTIMIZERS[optimizer]}", flush=True)
            command = [sys.executable, "-m", "benchmarks.memory", model, optimizer]
            done = subprocess.run(
                command, env=os.environ | AT_ONCE, check=True, capture_output=True, text=True
            )
            found.setdefault(model, {})[optimizer] = json.loads(done.stdout.splitlines()[-1])
    write_json(path, found)


if __name__ == "__main__":
    print(json.dumps(measure(*sys.argv[1:])))
