"""A whole run on small real data, where $DATA_ROOT has it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.records import read_record
from tests.launch.trained_models import train

DATA = Path(os.environ.get("DATA_ROOT", "/nowhere"))


def test_jpegs_in_imagenets_layout(tmp_path: Path):
    """20 classes of Tiny ImageNet, grey-scale files among them: better than chance, 5 %."""
    if not (DATA / "tiny-imagenet-20").is_dir():
        pytest.skip("needs $DATA_ROOT/tiny-imagenet-20/{train,val}/<class>/*.JPEG")
    overrides = [
        "experiment=imagenet/novograd_100ep",
        "scale=smoke",
        "hardware=cpu",
        f"paths.data={DATA}",
        f"paths.outputs={tmp_path}",
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
    ]
    assert read_record(train(overrides) / "record.json").final["val/top1"] > 12.0
