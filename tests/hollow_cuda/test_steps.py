"""Training steps of the paper's rows on GPUs that compute nothing: what the host does for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from launch.gpu_estimate import PARAMETERS, peak_bytes
from launch.run_spec import make_run_spec
from tests.hollow_cuda.conftest import HollowCuda

PROBE = "tests.hollow_cuda.probe_step"
CONFIGS = Path(__file__).parents[2] / "configs" / "experiment"
ROWS = sorted(
    f"{file.parent.name}/{file.stem}"
    for file in CONFIGS.glob("*/*.yaml")
    if not file.stem.endswith("base")
)
TASKS = ("imagenet", "librispeech", "wmt14", "wikitext103")
# fp16 below capability 8.0; the lowest that the locked torch has kernels for is 7.5.
HARDWARE = {75: "dgx1", 80: "gpu", 90: "gpu"}
# CTC needs lengths on the host and copies them to the device and back, four times on the way
# forward and three on the way back, for each of two micro-batches; LARC copies learning rates.
SPEECH_WAITS = 2 * 7 + 1
# Launches of a bf16 step of two micro-batches with NovoGrad, and those of the optimizer among them.
LAUNCHES = {
    "imagenet/novograd_100ep": (2014, 47),
    "librispeech/novograd": (4063, 124),
    "wmt14/novograd": (2809, 87),
    "wikitext103/novograd": (4090, 74),
}


@pytest.fixture(scope="session")
def steps(hollow_cuda: HollowCuda) -> dict[str, Any]:
    """On an A100: a step of each task that may not wait for the GPU, but for speech."""
    others = [row for row in LAUNCHES if not row.startswith("librispeech")]
    strict: dict[str, Any] = hollow_cuda.ask(PROBE, "--no-waits", "gpu", *others, gpus=8)
    speech: dict[str, Any] = hollow_cuda.ask(PROBE, "gpu", "librispeech/novograd", gpus=8)
    return strict | speech


def test_a_bf16_step_does_not_wait_for_the_gpu(steps: dict[str, Any]) -> None:
    waits = {row: step["waits"] for row, step in steps.items() if step["waits"]}
    assert set(waits) <= {"librispeech/novograd"}
    assert waits.get("librispeech/novograd", 0) <= SPEECH_WAITS


def test_a_step_launches_no_more_than_it_did(steps: dict[str, Any]) -> None:
    """Where a number falls, put the new one above."""
    assert {
        row: (step["launches"], step["optimizer_launches"]) for row, step in steps.items()
    } == LAUNCHES


def test_attention_is_fused_and_not_cudnns(steps: dict[str, Any]) -> None:
    assert set(steps["wmt14/novograd"]["attention"]) == {"flash_attention", "efficient_attention"}
    assert set(steps["wikitext103/novograd"]["attention"]) == {"efficient_attention"}


@pytest.mark.slow
def test_the_fused_optimizer_launches_three_kernels(hollow_cuda: HollowCuda) -> None:
    """Compiled by Triton for the GPU's capability, for each group of parameters."""
    rows = ("wmt14/novograd", "imagenet/novograd_100ep")
    steps = hollow_cuda.ask(PROBE, "--no-waits", "gpu", *rows, "+optimizer.fused=true", gpus=8)
    for row in rows:
        assert steps[row]["optimizer_launches"] <= 4
        assert steps[row]["launches"] < LAUNCHES[row][0]


def test_a_plans_memory_is_what_the_allocator_has_at_its_peak(steps: dict[str, Any]) -> None:
    """NovoGrad's state is one tensor as large as the weights; gradients are another."""
    for row, step in steps.items():
        config = make_run_spec(
            [f"experiment={row}", "scale=paper", "hardware=dgx1"], need_data=False
        ).config
        weights = PARAMETERS[config.task.name]
        peak = peak_bytes(config, weights, 3 * 4 * weights)
        assert peak == pytest.approx(step["allocated"], rel=0.1), row


@pytest.mark.slow
@pytest.mark.parametrize("capability", HARDWARE)
@pytest.mark.parametrize("task", TASKS)
def test_every_row_of_the_paper_steps(hollow_cuda: HollowCuda, task: str, capability: int) -> None:
    """And evaluates a batch, beam search included; no device, no dtype is wrong."""
    rows = [row for row in ROWS if row.startswith(task)]
    steps = hollow_cuda.ask(PROBE, HARDWARE[capability], *rows, gpus=8, capability=capability)
    overflow = 1 if capability < 80 else 0  # whether fp16 gradients are finite must be known
    allowed = overflow + (SPEECH_WAITS if task == "librispeech" else 0)
    assert {row: step["waits"] for row, step in steps.items() if step["waits"] > allowed} == {}
    for step in steps.values():
        assert "cudnn_attention" not in step["attention"]
        assert step["optimizer_waits"] == 0
