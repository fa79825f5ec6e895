"""Training steps of the paper's rows on GPUs that compute nothing: what the host does for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.hollow_cuda.conftest import HollowCuda

pytestmark = pytest.mark.timeout(900)  # programs of many seconds, on a machine that may be busy

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
# Attention kernels of WMT. Transformer-XL's relative positions are a mask, which flash can't take.
ATTENTION = {
    75: {"efficient_attention"},
    80: {"flash_attention", "efficient_attention"},
    90: {"flash_attention", "efficient_attention"},
}
# CTC needs lengths on the host and copies them to the device and back, four times on the way
# forward and three on the way back, for each of two micro-batches.
SPEECH_WAITS = 2 * 7
OVERFLOW_WAITS = 1  # in fp16: whether the gradients are finite decides about the update
IN_FP16 = "imagenet/novograd_100ep,hardware.precision=fp16"
# Launches of a bf16 step of two micro-batches with NovoGrad, and those of the optimizer among them.
LAUNCHES = {
    "imagenet/novograd_100ep": (2013, 46),
    "librispeech/novograd": (4390, 123),
    "wmt14/novograd": (2808, 86),
    "wikitext103/novograd": (4089, 73),
}


@pytest.fixture(scope="session")
def steps(hollow_cuda: HollowCuda) -> dict[str, Any]:
    """On an A100: a step of each task, in bf16, and one in fp16."""
    answer: dict[str, Any] = hollow_cuda.ask(PROBE, "--no-waits", "gpu", *LAUNCHES, IN_FP16, gpus=8)
    return answer


def test_a_step_does_not_wait_for_the_gpu(steps: dict[str, Any]) -> None:
    """In bf16; an fp16 step waits once."""
    waits = {row: step["waits"] for row, step in steps.items() if step["waits"]}
    assert waits == {"librispeech/novograd": SPEECH_WAITS, IN_FP16: OVERFLOW_WAITS}


def test_a_step_launches_no_more_than_it_did(steps: dict[str, Any]) -> None:
    """Where a number falls, put the new one above."""
    assert {
        row: (steps[row]["launches"], steps[row]["optimizer_launches"]) for row in LAUNCHES
    } == LAUNCHES


def test_attention_is_fused_and_not_cudnns(steps: dict[str, Any]) -> None:
    assert set(steps["wmt14/novograd"]["attention"]) == ATTENTION[80]
    assert set(steps["wikitext103/novograd"]["attention"]) == {"efficient_attention"}


def test_a_plans_memory_is_what_the_allocator_has_at_its_peak(steps: dict[str, Any]) -> None:
    for row, step in steps.items():
        assert step["planned"] == pytest.approx(step["allocated"], rel=0.1), row


@pytest.mark.slow
def test_the_fused_optimizer_launches_three_kernels(hollow_cuda: HollowCuda) -> None:
    """Compiled by Triton for the GPU's capability, for each group of parameters."""
    rows = ("wmt14/novograd", "imagenet/novograd_100ep")
    steps = hollow_cuda.ask(PROBE, "--no-waits", "gpu", *rows, "+optimizer.fused=true", gpus=8)
    for row in rows:
        assert steps[row]["optimizer_launches"] <= 4
        assert steps[row]["launches"] < LAUNCHES[row][0]


@pytest.mark.slow
@pytest.mark.parametrize("capability", HARDWARE)
@pytest.mark.parametrize("task", TASKS)
def test_every_row_of_the_paper_steps(hollow_cuda: HollowCuda, task: str, capability: int) -> None:
    """And evaluates a batch, beam search included; no device, no dtype is wrong."""
    rows = [row for row in ROWS if row.startswith(task)]
    arguments = ("--no-waits", HARDWARE[capability], *rows)
    steps = hollow_cuda.ask(PROBE, *arguments, gpus=8, capability=capability)
    allowed = OVERFLOW_WAITS if capability < 80 else 0
    allowed += SPEECH_WAITS if task == "librispeech" else 0
    assert {row: step["waits"] for row, step in steps.items() if step["waits"] != allowed} == {}
    for row, step in steps.items():
        assert step["optimizer_waits"] == 0
        assert step["planned"] == pytest.approx(step["allocated"], rel=0.1), row
        if task == "wmt14":
            assert set(step["attention"]) == ATTENTION[capability]
        if task == "wikitext103":
            assert set(step["attention"]) == {"efficient_attention"}


@pytest.mark.slow
def test_checkpointed_activations_fit_jasper_of_table_5_into_16_gb(hollow_cuda: HollowCuda) -> None:
    row = "librispeech/novograd_512"
    switch = "hardware.checkpoint_activations=true"
    step = hollow_cuda.ask(PROBE, "dgx1", row, switch, gpus=8, capability=75, gigabytes=16)[row]
    assert step["planned"] == pytest.approx(step["allocated"], rel=0.1)
