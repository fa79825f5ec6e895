"""What a launch prints and chooses on GPUs, and where it refuses."""

from __future__ import annotations

import re

import pytest

from tests.hollow_cuda.conftest import HollowCuda

pytestmark = pytest.mark.timeout(900)  # programs of many seconds, on a machine that may be busy

LINES = ("tests.hollow_cuda.probe_launch_line", "experiment=imagenet/novograd_100ep", "scale=paper")
LAUNCH = ("scripts.launch", "experiment=imagenet/novograd_100ep", "scale=smoke")


def test_auto_takes_the_fast_path(hollow_cuda: HollowCuda) -> None:
    """And the optimizer's implementation, which can be chosen, is no part of the recipe."""
    ids = set()
    for capability, overrides, expected in (
        (75, [], "fp16, TF32, attention memory-efficient, 1?[0-9] loader .*, novograd foreach"),
        (
            90,
            ["+optimizer.fused=true"],
            "bf16, TF32, attention flash or memory-efficient, .*, novograd fused \\(Triton\\)",
        ),
    ):
        lines = hollow_cuda.ask(*LINES, *overrides, gpus=8, capability=capability)
        gpu = f"Hollow GPU {capability / 10} \\(.*, 80 GB\\)"
        line = rf"^hardware +8 × {gpu}, {expected}$"
        assert re.search(line, lines, re.MULTILINE), lines
        run = re.search(r"^run +(\S+)", lines, re.MULTILINE)
        assert run is not None
        ids.add(run[1])
    assert len(ids) == 1


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
