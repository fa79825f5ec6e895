"""What a launch prints and chooses on GPUs, and where it refuses."""

from __future__ import annotations

import re

import pytest

from tests.hollow_cuda.conftest import HollowCuda

PLAN = ("scripts.plan", "experiment=imagenet/novograd_100ep")
LAUNCH = ("scripts.launch", "experiment=imagenet/novograd_100ep", "scale=smoke")


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        (75, r"8 × Hollow GPU 7\.5 \(.*\), fp16, TF32, attention memory-efficient, \d+ loader"),
        (90, r"8 × Hollow GPU 9\.0 \(.*80 GB\), bf16, TF32, attention flash or mem.*, \d+ loader"),
    ],
)
def test_auto_takes_the_fast_path(hollow_cuda: HollowCuda, capability: int, expected: str) -> None:
    done = hollow_cuda.run(*PLAN, gpus=8, capability=capability)
    assert done.returncode == 0, done.stderr
    assert re.search(rf"^on +{expected}.*novograd foreach$", done.stdout, re.MULTILINE), done.stdout


def test_the_fused_optimizer_can_be_chosen(hollow_cuda: HollowCuda) -> None:
    done = hollow_cuda.run(*PLAN, "+optimizer.fused=true", gpus=8)
    assert "novograd fused (Triton)" in done.stdout
    plain = hollow_cuda.run(*PLAN, gpus=8)
    ids = [re.search(r"^run +(\S+)", run.stdout, re.MULTILINE) for run in (done, plain)]
    assert ids[0] is not None
    assert ids[1] is not None
    assert ids[0][1] == ids[1][1]  # no part of the recipe


def test_a_gpu_without_kernels_ends_the_launch(hollow_cuda: HollowCuda) -> None:
    done = hollow_cuda.run(*LAUNCH, gpus=8, capability=70)
    assert done.returncode == 2
    assert "compute capability 7.0" in done.stderr
    assert "7.5, 8.0" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_driver_that_is_too_old_leaves_no_gpu(hollow_cuda: HollowCuda) -> None:
    """The hollow driver has no /proc: that there are GPUs at all is tested without it."""
    done = hollow_cuda.run(*LAUNCH, "hardware=gpu", gpus=8, driver=12040)
    assert done.returncode == 2
    assert "no GPU is visible" in done.stderr
