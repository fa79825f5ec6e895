"""`make gpu-check` where there is no GPU, and where there are hollow ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from launch.gpu_check import OPTIMIZERS, ROWS, paper_rows
from scripts import gpu_check
from tests.hollow_cuda.conftest import HollowCuda

pytestmark = pytest.mark.timeout(900)  # programs of many seconds, on a machine that may be busy


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_is_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["gpu_check"])
    assert gpu_check.main() == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert len(output.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("scale", "rows", "gpus"),
    [
        ("smoke", ("imagenet/novograd_100ep",), 1),
        pytest.param("paper", paper_rows(), 2, marks=pytest.mark.slow),
    ],
)
def test_its_code_runs_through_on_a_hollow_gpu(
    hollow_cuda: HollowCuda, tmp_path: Path, scale: str, rows: tuple[str, ...], gpus: int
) -> None:
    """Numbers mean nothing there; that the CPU's are missed must be noticed."""
    arguments = (str(tmp_path), *rows, f"scale={scale}", f"paths.data={tmp_path / 'data'}")
    found = hollow_cuda.ask("tests.hollow_cuda.probe_gpu_check", *arguments, gpus=gpus)
    record = found["record"]
    tasks = {task for task, row in ROWS.items() if row in rows}
    assert set(record["memory"]) == set(rows)
    assert set(record["speed"]) == tasks
    both = ("float64", "float32")
    assert set(record["tasks"]) == {f"{task}, {dtype}" for task in tasks for dtype in both}
    for speed in record["speed"].values():
        assert (speed["data_wait"] is None) == (scale == "paper")  # whose data is not there
    assert ("all_reduce_gb_per_s" in record["machine"]) == (gpus > 1)
    assert len(record["optimizers"]) == 2 * len(OPTIMIZERS)
    assert record["agrees_with_cpu"] is False
    assert json.loads(Path(found["path"]).read_text()) == record
    assert "| imagenet |" in Path(found["path"]).with_suffix(".md").read_text()


def test_the_optimizers_are_timed_on_a_gpu(hollow_cuda: HollowCuda) -> None:
    """Their times mean nothing here; that everyone steps and clips there does."""
    status = hollow_cuda.ask("tests.hollow_cuda.probe_bench", capability=90)
    timed = {name for name, state in status.items() if state == "timed"}
    assert {"NovoGrad (ours)", "NovoGrad (ours) fused (Triton)", "torch AdamW fused"} <= timed
    assert not any("without compiler" in name for name in status)
