"""The documented examples that need nothing but the lock; the others are in tests/integrations."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from optim import NovoGrad
from tests.optim.documented_examples import EXAMPLES, run_example

IN_PROCESS = [
    "A plain loop",
    "Mixed precision with GradScaler",
    "Gradient accumulation",
    "A state of timm's, NeMo's or MONAI's NovoGrad",
]
COMPILED = "torch.compile"
SHARDED = "FSDP2 with distributed checkpoints"
ELSEWHERE = ["Lightning", "Hugging Face Trainer", "Accelerate"]


def test_every_example_is_run_somewhere():
    assert set(EXAMPLES) == {*IN_PROCESS, COMPILED, SHARDED, *ELSEWHERE}


@pytest.mark.parametrize("heading", IN_PROCESS)
def test_it_trains(heading):
    names = run_example(heading)
    assert isinstance(names["optimizer"], NovoGrad)
    assert names["loss_after"] < 0.8 * names["loss_before"]


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_compiled_step_trains(backend, monkeypatch):
    torch.compiler.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    names = run_example(COMPILED)
    assert names["loss_after"] < 0.8 * names["loss_before"]
    torch.compiler.reset()


def test_a_sharded_model_trains_and_is_saved(tmp_path, monkeypatch):
    """In one process here; in two, with a resumed run, in tests/integrations."""
    monkeypatch.chdir(tmp_path)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        names = run_example(SHARDED)
    finally:
        dist.destroy_process_group()
    states = names["optimizer"].state.values()
    assert all(isinstance(state["exp_avg"], DTensor) for state in states)
    assert names["loss_after"] < 0.8 * names["loss_before"]


def test_a_state_of_nemos_continues():
    """NeMo's Novograd keeps the state of its relatives: v as a 0-dim fp32 tensor, and a step."""
    p, twin = (nn.Parameter(torch.ones(3, 2)) for _ in range(2))
    for q in (p, twin):
        q.grad = torch.full((3, 2), 2.0)
    ours = NovoGrad([twin], 0.1, weight_decay=0.01)
    ours.step()
    mine = ours.state[twin]
    theirs = {
        "step": 1,
        "exp_avg": mine["exp_avg"].clone(),
        "exp_avg_sq": mine["exp_avg_sq"].clone(),
    }
    options = {"lr": 0.1, "betas": (0.95, 0.25), "eps": 1e-8, "weight_decay": 0.01}
    options |= {"grad_averaging": False, "amsgrad": False}
    optimizer = NovoGrad([p])
    optimizer.load_state_dict({"state": {0: theirs}, "param_groups": [{**options, "params": [0]}]})
    with torch.no_grad():
        p.copy_(twin)
    optimizer.step()
    ours.step()
    assert torch.equal(p, twin)
