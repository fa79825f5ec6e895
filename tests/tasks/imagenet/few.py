"""A small ImageNet task on a few digits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.base import Context
from tasks.imagenet.data import ImageNetDataOptions
from tasks.imagenet.model import ResNetOptions
from tasks.imagenet.task import ImageNet

TINY = ResNetOptions(stages=[1, 1], width=4, classes=10, stem="small")


def make_task(
    root: Path,
    model: ResNetOptions = TINY,
    folder: str = "few",
    data: Mapping[str, Any] | None = None,
    **context: int,
) -> ImageNet:
    make = "digits" if folder == "digits" else None
    options = ImageNetDataOptions(folder, folder, 16, make=make, **(data or {}))
    fields: dict[str, Any] = {
        "seed": 0,
        "micro": 8,
        "micro_batches": 4,
        "eval_batch": 64,
        "data_workers": 0,
    } | context
    return ImageNet(model, options, Context(data_root=root, **fields))
