"""GPUs that torch can't use are never passed over in silence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engine.config import ConfigProblem, HardwareConfig
from launch import device_check
from launch.device_check import check_devices, choose_for_device, is_built_for

CU130 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]


def test_kernels_serve_their_major_version_from_their_minor_on() -> None:
    expected = {
        (7, 0): False,
        (7, 5): True,
        (8, 0): True,
        (8, 9): True,
        (9, 0): True,
        (11, 0): False,
    }
    assert {gpu: is_built_for(gpu, CU130) for gpu in expected} == expected
    assert is_built_for((7, 0), ["sm_70", "sm_90a"])
    assert is_built_for((12, 1), ["compute_90"])
    assert not is_built_for((8, 0), ["compute_90"])


@pytest.fixture
def node_with_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVIDIA's driver knows two GPUs that torch does not see."""
    for number in (0, 1):
        (tmp_path / "gpus" / f"0000:0{number}:00.0").mkdir(parents=True)
    (tmp_path / "version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12\nGCC version: 12\n"
    )
    monkeypatch.setattr(device_check, "NVIDIA", tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("node_with_gpus")
def test_a_driver_that_is_too_old_ends_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    for device in ("auto", "cuda"):
        with pytest.raises(ConfigProblem, match=r"2 NVIDIA GPUs.*535\.183\.01.*hardware=cpu"):
            check_devices(device)
    check_devices("cpu")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # hidden on purpose
    check_devices("auto")


def test_auto_on_a_cpu_is_fp32_without_loading_processes() -> None:
    auto = HardwareConfig(device="cpu", processes=1, precision="auto", data_workers="auto")
    chosen = choose_for_device(auto, cores=64)
    assert (chosen.precision, chosen.data_workers) == ("fp32", 0)
    stated = replace(auto, precision="bf16", data_workers=3)
    assert choose_for_device(stated, cores=64) == stated
