"""FSDP2 in two processes: the documented example, and checkpoints that any number of them loads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import fully_shard

from optim import NovoGrad
from tests.integrations.runs import VARIANTS, Classifier, assert_moved, data, options
from tests.optim.documented_examples import run_example

ROOT = Path(__file__).parents[2]
HALF = 4


def train(model: nn.Module, optimizer: NovoGrad, first: int, last: int) -> None:
    """Every process sees whole batches, so that the number of processes changes rounding alone."""
    x, y = data().tensors
    for x_part, y_part in list(zip(x.split(8), y.split(8), strict=True))[first:last]:
        optimizer.zero_grad()
        model(x_part, y_part)["loss"].backward()
        optimizer.step()


def sharded(variant: str) -> tuple[nn.Module, NovoGrad]:
    model = Classifier(torch.float64)
    fully_shard(model.layers[0])
    fully_shard(model)
    return model, NovoGrad(model.parameters(), **options(variant))


def save(model: nn.Module, optimizer: NovoGrad, folder: str) -> None:
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder)


def load(model: nn.Module, optimizer: NovoGrad, folder: str) -> None:
    weights, state = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optimizer": state}, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)


def whole(model: nn.Module, optimizer: NovoGrad) -> dict[str, torch.Tensor]:
    every = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights, _ = get_state_dict(model, optimizer, options=every)
    return {k: v.clone() for k, v in weights.items() if isinstance(v, torch.Tensor)}


def worker() -> None:
    """What torchrun starts: `python -m tests.integrations.test_fsdp2`."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    for variant in VARIANTS:
        model, optimizer = sharded(variant)
        train(model, optimizer, 0, HALF)
        save(model, optimizer, variant)
        train(model, optimizer, HALF, 2 * HALF)
        again, resumed = sharded(variant)
        load(again, resumed, variant)
        train(again, resumed, HALF, 2 * HALF)
        for p, q in zip(model.parameters(), again.parameters(), strict=True):
            assert torch.equal(p.to_local(), q.to_local()), variant  # type: ignore[attr-defined]
        ended = whole(model, optimizer)
        if dist.get_rank() == 0:
            torch.save(ended, f"{variant}.pt")
    names = run_example("FSDP2 with distributed checkpoints")
    assert names["loss_after"] < 0.8 * names["loss_before"]
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """The folder in which two processes have trained, saved and resumed every variant."""
    folder = tmp_path_factory.mktemp("fsdp2")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node=2", "-m", "tests.integrations.test_fsdp2"]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_process_continues_what_two_began(variant, two_processes, monkeypatch):
    """Equal to the two to rounding in float64: the order of sums differs."""
    monkeypatch.chdir(two_processes)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model, optimizer = sharded(variant)
        load(model, optimizer, variant)
        train(model, optimizer, HALF, 2 * HALF)
        ended = whole(model, optimizer)
    finally:
        dist.destroy_process_group()
    expected = torch.load(two_processes / f"{variant}.pt", weights_only=True)
    for name, value in expected.items():
        torch.testing.assert_close(ended[name], value, rtol=0, atol=1e-13)


def test_the_processes_train(two_processes):
    model = Classifier()
    model.load_state_dict(torch.load(two_processes / "default.pt", weights_only=True))
    assert_moved(model)


if __name__ == "__main__":
    worker()
