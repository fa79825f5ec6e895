"""`python -m scripts.memory`: memory of the paper's four models with each optimizer, measured.

Every model at the paper's size makes two steps on a made-up batch, small as activations are not
what is asked, in a process of its own that gives freed tensors back to the system at once. Noted
are the bytes of the optimizer's state tensors, and the peak of the process' memory above what it
had before the model. Writes `results/studies/memory.json`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from engine.record import write_atomically
from results.claims import FAILS, HOLDS, STUDIES
from results.names import OPTIMIZERS

# A row of each task, and batches of a few examples.
MODELS = {
    "ResNet-50": ("imagenet/novograd_100ep", 4),
    "Jasper DR 10x5": ("librispeech/novograd", 1),
    "Transformer-big": ("wmt14/novograd", 512),
    "Transformer-XL": ("wikitext103/novograd", 128),
}
BETAS = {"adam": (0.9, 0.98), "adamw": (0.9, 0.98), "novograd": (0.95, 0.25)}
AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}  # glibc's
HALF = 0.51  # of Adam's state: a number for each tensor comes on top


def main(arguments: Sequence[str] | None = None) -> int:
    """All measurements, or as a child one of them."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words:
        print(json.dumps(measure(*words)))
    else:
        measure_all(STUDIES / "memory.json")
    return 0


def measure(model: str, optimizer: str) -> dict[str, int]:
    """In this process, which should have done nothing else."""
    import torch

    from optim.factory import build_optimizer
    from scripts.launch import prepare

    torch.set_num_threads(1)
    experiment, size = MODELS[model]
    batch = [f"batch.micro={size}", f"batch.global_size={size}"]
    words = [f"experiment={experiment}", "scale=paper", "hardware=cpu", *batch]
    task = prepare(words, need_data=False).task
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
    return {
        "parameters": sum(p.numel() for p in network.parameters() if p.requires_grad),
        "state_bytes": sum(t.numel() * t.element_size() for t in state),
        "peak_bytes": 1024 * (_kilobytes("VmHWM") - before),
    }


def _kilobytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def measure_all(path: Path) -> None:
    """Every model with every optimizer, one after another."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for model in MODELS:
        for optimizer in OPTIMIZERS:
            print(f"memory: {model}, {OPTIMIZERS[optimizer]}", flush=True)
            command = [sys.executable, "-m", "scripts.memory", model, optimizer]
            done = subprocess.run(
                command, env=os.environ | AT_ONCE, check=True, capture_output=True, text=True
            )
            found.setdefault(model, {})[optimizer] = json.loads(done.stdout.splitlines()[-1])
    text = json.dumps(study(found), indent=1, ensure_ascii=False) + "\n"
    write_atomically(path, text.encode(), durable=False)


def study(found: dict[str, dict[str, dict[str, int]]]) -> dict[str, object]:
    """Holds if NovoGrad's state is half of Adam's and AdamW's, and its peak below theirs."""
    good, texts = [], []
    numbers: dict[str, dict[str, float]] = {}
    for model, by in found.items():
        for key, what in (("state_bytes", "state"), ("peak_bytes", "peak")):
            numbers[f"{model}, {what}, MB"] = {
                OPTIMIZERS[name]: round(values[key] / 1e6, 1) for name, values in by.items()
            }
        ours, adam = by["novograd"], by["adam"]
        part = ours["state_bytes"] / adam["state_bytes"]
        good.append(part <= HALF and ours["peak_bytes"] < adam["peak_bytes"])
        texts.append(f"{model} {part:.3f}")
    return {
        "study": "memory",
        "verdict": HOLDS if all(good) else FAILS,
        "summary": f"NovoGrad's state as a part of Adam's: {', '.join(texts)}.",
        "numbers": numbers,
        "curves": [],
        "records": [],
    }


if __name__ == "__main__":
    sys.exit(main())
