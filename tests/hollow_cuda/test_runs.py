"""Whole runs on hollow GPUs: launcher, NCCL, pinned loaders, evaluation, checkpoints, resume."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engine.rows import read_rows
from launch.worker import be_killed_with_parent
from tests.hollow_cuda.conftest import ROOT, HollowCuda

pytestmark = pytest.mark.timeout(900)  # programs of many seconds, on a machine that may be busy

SITE = str(Path(__file__).parent / "site")
ROWS = ("imagenet/novograd_100ep", "librispeech/novograd", "wmt14/novograd", "wikitext103/novograd")
EIGHT_MICRO_BATCHES = dict(zip(ROWS, ((64, 8), (16, 2), (2048, 256), (1024, 128)), strict=True))


def smoke_overrides(folder: Path, row: str, *more: str) -> list[str]:
    paths = [f"paths.data={folder / 'data'}", f"paths.outputs={folder / 'outputs'}"]
    quick = ["scale=smoke", "hardware=gpu", "hardware.data_workers=1"]
    return [f"experiment={row}", *quick, *paths, *more]


def run_folder(folder: Path) -> Path:
    (status,) = (folder / "outputs").rglob("status.json")
    return status.parent


@pytest.mark.slow
@pytest.mark.parametrize("gpus", [2, 8])
@pytest.mark.parametrize("row", ROWS)
def test_a_run_ends_with_its_record(
    hollow_cuda: HollowCuda, row: str, gpus: int, tmp_path: Path
) -> None:
    whole, micro = EIGHT_MICRO_BATCHES[row]
    size = [f"batch.global_size={whole}", f"batch.micro={micro}"] if gpus == 8 else []
    done = hollow_cuda.run(
        "scripts.launch",
        *smoke_overrides(tmp_path, row, "budget='6 steps'", "evaluation.every='3 steps'", *size),
        more={"PYTHONPATH": SITE},
        gpus=gpus,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert f"{gpus} × Hollow GPU 8.0" in done.stdout
    assert (run_folder(tmp_path) / "record.json").exists()
    logged = [
        row for row in read_rows(run_folder(tmp_path) / "metrics.jsonl") if "train/loss" in row
    ]
    assert logged
    assert {"speed/data_wait", "gpu/peak_memory_gb"} <= set(logged[-1])


def stop_after_some_steps(hollow_cuda: HollowCuda, overrides: list[str]) -> list[str]:
    """What a run prints that is asked to stop as soon as it has logged a row."""
    process = subprocess.Popen(
        [sys.executable, "-m", "scripts.launch", *overrides],
        cwd=ROOT,
        env=hollow_cuda.environment(gpus=2) | {"PYTHONPATH": SITE},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=be_killed_with_parent,
    )
    assert process.stdout is not None
    printed = []
    for line in process.stdout:
        printed.append(line)
        if line.startswith("step "):
            process.send_signal(signal.SIGTERM)
            break
    printed += process.stdout.readlines()
    assert process.wait() == 75, "".join(printed)
    return printed


@pytest.mark.slow
def test_a_stopped_run_resumes_on_gpus(hollow_cuda: HollowCuda, tmp_path: Path) -> None:
    """Transformer-XL's: carries come from both GPUs, and are written in the background."""
    overrides = smoke_overrides(tmp_path, "wikitext103/novograd", "budget='20000 steps'")
    stop_after_some_steps(hollow_cuda, overrides)
    reached = json.loads((run_folder(tmp_path) / "status.json").read_text())["step"]
    assert reached > 0
    printed = stop_after_some_steps(hollow_cuda, overrides)
    assert any(f"at step {reached} of 20000" in line for line in printed)
    assert json.loads((run_folder(tmp_path) / "status.json").read_text())["step"] > reached


@pytest.mark.slow
def test_out_of_memory_names_what_can_be_set(hollow_cuda: HollowCuda, tmp_path: Path) -> None:
    done = hollow_cuda.run(
        "scripts.launch",
        *smoke_overrides(
            tmp_path, "librispeech/novograd", "batch.micro=32", "batch.global_size=64"
        ),
        more={"PYTHONPATH": SITE},
        gpus=2,
        gigabytes=0.02,
    )
    assert done.returncode == 1
    told = json.loads((run_folder(tmp_path) / "status.json").read_text())["message"]
    for part in ("librispeech/novograd", "batch.micro=32", "GB", "checkpoint_activations=true"):
        assert part in told


def test_shared_memory_that_is_too_small_ends_the_launch(
    hollow_cuda: HollowCuda, tmp_path: Path
) -> None:
    batch = ["batch.micro=65536", "batch.global_size=131072", "hardware.data_workers=1024"]
    overrides = smoke_overrides(tmp_path, "imagenet/novograd_100ep", *batch)
    done = hollow_cuda.run("scripts.launch", *overrides, gpus=2)
    assert done.returncode == 2
    assert "--shm-size=" in done.stderr
    assert "hardware.data_workers=" in done.stderr
