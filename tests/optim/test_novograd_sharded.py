"""DTensor parameters: sharded training gives the result of the unsharded run."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

from optim import ClipGlobalNorm, Larc, NovoGrad, transform_gradients

STEPS = 4
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "foreach": {"foreach": True},
    "single": {"foreach": False, "fused": False},
    "amsgrad": {"amsgrad": True, "grad_averaging": True, "decay": "update"},
}


def model():
    torch.manual_seed(0)
    # 5 and 3 do not divide by two ranks, and a bias of 1 leaves one of them an empty shard.
    layers = nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 3), nn.ReLU(), nn.Linear(3, 1)
    return nn.Sequential(*layers).double()


def train(net, optimizer, transforms=()):
    for step in range(STEPS):
        x = torch.randn(8, 7, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        optimizer.zero_grad()
        net(x).square().sum().backward()
        if transforms:
            transform_gradients(optimizer, transforms)
        optimizer.step()


def worker(rank, world, port, folder):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.set_num_threads(1)
    results = {}
    for name, options in VARIANTS.items():
        net = fully_shard(model())
        assert all(isinstance(p, DTensor) for p in net.parameters())
        optimizer = NovoGrad(net.parameters(), 0.05, weight_decay=0.1, **options)
        train(net, optimizer)
        results[name] = [p.full_tensor() for p in net.parameters()]
    net = fully_shard(model())
    optimizer = NovoGrad(net.parameters(), 0.05, weight_decay=0.1)
    train(net, optimizer, [ClipGlobalNorm(0.1), Larc()])
    results["transforms"] = [p.full_tensor().clone() for p in net.parameters()]
    with CommDebugMode() as communication:  # the norms of all tensors travel together
        optimizer.step()
    assert communication.get_total_counts() == 1
    # A resumed sharded run goes on as if it had not stopped.
    again = fully_shard(model())
    for new, old in zip(again.parameters(), net.parameters(), strict=True):
        new.data.to_local().copy_(old.data.to_local())
    resumed = NovoGrad(again.parameters(), 0.05, weight_decay=0.1)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(net, optimizer)
    train(again, resumed)
    for new, old in zip(again.parameters(), net.parameters(), strict=True):
        assert torch.equal(new.to_local(), old.to_local())
    check_other_placements(rank)
    if rank == 0:
        torch.save(results, Path(folder) / "results.pt")
    dist.destroy_process_group()


def check_other_placements(rank):
    """Gradients that lie otherwise than their parameter: partial sums, another dimension."""
    mesh = init_device_mesh("cpu", (2,))
    value = torch.arange(1.0, 13.0, dtype=torch.float64).reshape(4, 3)
    gradient = value.flip(0) - 5
    for param_placement, grad_placement in ((Replicate(), Partial()), (Shard(0), Shard(1))):
        whole = nn.Parameter(value.clone())
        plain = NovoGrad([whole], 0.1, weight_decay=0.1)
        p = nn.Parameter(distribute_tensor(value.clone(), mesh, [param_placement]))
        optimizer = NovoGrad([p], 0.1, weight_decay=0.1)
        for step in range(3):
            whole.grad = (gradient * (step + 1)).clone()
            if isinstance(grad_placement, Partial):
                part = whole.grad * (0.25 if rank == 0 else 0.75)
                p.grad = DTensor.from_local(part, mesh, [grad_placement])
            else:
                p.grad = distribute_tensor(whole.grad.clone(), mesh, [grad_placement])
            if step == 1:
                transform_gradients(plain, [ClipGlobalNorm(1.0)])
                transform_gradients(optimizer, [ClipGlobalNorm(1.0)])
            plain.step()
            optimizer.step()
        again = p.full_tensor()  # type: ignore[attr-defined]
        torch.testing.assert_close(again, whole.detach(), rtol=0, atol=1e-13)


@pytest.fixture(scope="module")
def sharded(tmp_path_factory, free_port):
    folder = tmp_path_factory.mktemp("sharded")
    mp.spawn(worker, args=(2, free_port, str(folder)), nprocs=2)
    return torch.load(folder / "results.pt", weights_only=True)


@pytest.mark.parametrize("variant", [*VARIANTS, "transforms"])
def test_two_processes_equal_the_unsharded_run(sharded, variant):
    net = model()
    options = VARIANTS.get(variant, {})
    optimizer = NovoGrad(net.parameters(), 0.05, weight_decay=0.1, **options)
    train(net, optimizer, [ClipGlobalNorm(0.1), Larc()] if variant == "transforms" else [])
    for whole, p in zip(sharded[variant], net.parameters(), strict=True):
        torch.testing.assert_close(whole, p.detach(), rtol=0, atol=1e-14)


def _local_tensor_worker(_, folder):
    """All ranks in one process: a DTensor's local part is a LocalTensor, which has no memory."""
    from torch.distributed._local_tensor import LocalTensorMode
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    results = {}
    with LocalTensorMode(2):
        torch.manual_seed(0)
        start: Any = torch.randn(6, 4, dtype=torch.float64)
        gradients: Any = torch.randn(3, 6, 4, dtype=torch.float64)
        mesh = init_device_mesh("cpu", (2,))
        places: list[Any] = [[Shard(0)], [Shard(1)], [Replicate()]]
        for name, options in VARIANTS.items():
            params: Any = [nn.Parameter(distribute_tensor(start.clone(), mesh, p)) for p in places]
            optimizer = NovoGrad(params, 0.05, weight_decay=0.1, **options)
            for g in gradients:
                for p, place in zip(params, places, strict=True):
                    p.grad = distribute_tensor(g.clone(), mesh, place)
                transform_gradients(optimizer, [ClipGlobalNorm(1.0), Larc(trust=0.1)])
                optimizer.step()
            results[name] = [p.full_tensor() for p in params]
    whole = {name: [t.reconcile().detach() for t in ts] for name, ts in results.items()}
    torch.save((start.reconcile(), gradients.reconcile(), whole), folder / "local.pt")


def test_local_tensors_step_as_whole_ones(tmp_path):
    mp.spawn(_local_tensor_worker, args=(tmp_path,), nprocs=1)
    weights, gradients, results = torch.load(tmp_path / "local.pt", weights_only=True)
    for name, options in VARIANTS.items():
        params = [nn.Parameter(weights.clone()) for _ in range(3)]
        optimizer = NovoGrad(params, 0.05, weight_decay=0.1, **options)
        for g in gradients:
            for p in params:
                p.grad = g.clone()
            transform_gradients(optimizer, [ClipGlobalNorm(1.0), Larc(trust=0.1)])
            optimizer.step()
        for p, result in zip(params, results[name], strict=True):
            torch.testing.assert_close(p.detach(), result, rtol=0, atol=1e-13)
