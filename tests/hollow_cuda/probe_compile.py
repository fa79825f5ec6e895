"""`python -m tests.hollow_cuda.probe_compile DATA`: where torch.compile would break graphs.

Dynamo alone: nothing is compiled. The models are the smoke scale's, whose code is the paper's.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch._dynamo
from torch import nn

from engine.precision import autocast
from launch.run_spec import make_run_spec
from tests.hollow_cuda import hollow

ROWS = {
    "imagenet": "imagenet/novograd_100ep",
    "librispeech": "librispeech/novograd",
    "wmt14": "wmt14/novograd",
    "wikitext103": "wikitext103/novograd",
}


def main() -> None:
    hollow.answer({task: breaks(row) for task, row in ROWS.items()})


def breaks(row: str) -> list[str]:
    overrides = [f"experiment={row}", "scale=smoke", f"paths.data={sys.argv[1]}"]
    task: Any = make_run_spec([*overrides, "hardware.processes=1"]).task
    device = torch.device("cuda", 0)
    with torch.device("meta"):
        model = task.build_model()
    model.to_empty(device=device)
    found: list[str] = []
    torch.compile = explain_into(found)
    compiled = task.compile(model)
    batch = task.example_batch().to(device)
    with autocast("bf16", device):
        carry = task.loss(compiled, batch, None).carry
        if carry is not None:  # and with a memory
            batch.fresh = False
            task.loss(compiled, batch, carry)
    torch._dynamo.reset()
    return found


def explain_into(found: list[str]) -> Any:
    """Stands for torch.compile: notes the reasons of graph breaks, and calls what is compiled."""

    def compile_(target: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            explained = torch._dynamo.explain(target)(*args, **kwargs)
            assert explained.graph_count > 0
            found.extend(str(reason.reason) for reason in explained.break_reasons)
            return target(*args, **kwargs)

        return Called(target, call) if isinstance(target, nn.Module) else call

    return compile_


class Called(nn.Module):
    def __init__(self, module: nn.Module, call: Any) -> None:
        super().__init__()
        self.module, self.call = module, call

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(*args, **kwargs)


if __name__ == "__main__":
    main()
