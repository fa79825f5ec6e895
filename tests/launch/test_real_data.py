"""From command to record on small real data, where $DATA_ROOT has it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("DATA_ROOT", "/nowhere"))


def launch(folder: Path, *words: str) -> dict[str, float]:
    paths = [f"paths.outputs={folder}"]
    command = [
        sys.executable,
        "-m",
        "scripts.launch",
        "scale=smoke",
        "hardware=cpu",
        *paths,
        *words,
    ]
    command.append(f"paths.data={DATA}")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (record,) = folder.glob("*/*/record.json")
    final: dict[str, float] = json.loads(record.read_text())["final"]
    return final


def test_jpegs_in_imagenets_layout(tmp_path: Path):
    """20 classes of Tiny ImageNet, grey-scale files among them: better than chance, 5 %."""
    if not (DATA / "tiny-imagenet-20").is_dir():
        pytest.skip("needs $DATA_ROOT/tiny-imagenet-20/{train,val}/<class>/*.JPEG")
    final = launch(
        tmp_path,
        "experiment=imagenet/novograd_100ep",
        "data.name=tiny-imagenet-20",
        "data.folder=tiny-imagenet-20",
        "data.make=null",
        "data.train_images=10000",
        "data.smallest_crop=0.35",
        "data.image_size=24",
        "model.classes=20",
        "budget='120 steps'",
        "evaluation.every='120 steps'",
        "hardware.threads=1",
        "evaluation.batch=250",
    )
    assert final["val/top1"] > 12.0
