"""The paper's claim: half the memory of Adam. Measured, for the shapes of two of its models."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from benchmarks.optimizer_workloads import PARAMETER_SETS
from optim import NovoGrad, build_optimizer


def state_bytes(optimizer):
    tensors = (t for state in optimizer.state.values() for t in state.values())
    return sum(t.numel() * t.element_size() for t in tensors)


@pytest.mark.parametrize("name", ["resnet50v2", "transformer_big"])
def test_state_is_half_of_adams(name):
    """On meta tensors, whose state has the true sizes and takes no memory."""
    params = [nn.Parameter(torch.empty(s, device="meta")) for s in PARAMETER_SETS[name].shapes()]
    total = sum(p.numel() for p in params)
    for p in params:
        p.grad = torch.empty_like(p)
    novograd, adam = NovoGrad(params, 0.1), build_optimizer("adam", params, lr=0.1)
    novograd.step()
    adam.step()
    assert state_bytes(novograd) == 4 * total + 4 * len(params)  # m, and one scalar per tensor
    assert state_bytes(novograd) / state_bytes(adam) == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize(
    ("options", "temporaries"),
    [({}, False), ({"foreach": True}, False), ({"foreach": False, "fused": False}, True)],
)
def test_temporaries_inside_a_step(options, temporaries):
    """The fast forms make none of a tensor's size; the readable one does, so it can be seen."""
    params = [nn.Parameter(torch.randn(1_000_000)), nn.Parameter(torch.randn(1000))]
    optimizer = NovoGrad(params, 0.1, weight_decay=0.1, **options)
    for p in params:
        p.grad = torch.randn_like(p)
    optimizer.step()  # makes the state
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(
        activities=activities, profile_memory=True, acc_events=True
    ) as profile:
        optimizer.step()
    largest = max((abs(event.self_cpu_memory_usage) for event in profile.events()), default=0)
    one_percent = 0.01 * 4 * sum(p.numel() for p in params)
    assert (largest > one_percent) == temporaries
