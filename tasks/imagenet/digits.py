"""The data set of the smoke scale: scikit-learn's digits in ImageNet's layout."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from tasks.base import DataProblem
from tasks.files import rename
from tasks.imagenet.index import SPLITS

IMAGES = 1797
SIDE = 32
VAL_EVERY = 6


def make_digits(root: Path) -> None:
    """JPEG files of 32×32: nothing but the size differs from ImageNet.

    Every sixth image is for validation. The folder appears complete or not at all.
    """
    if root.exists():
        _check(root)
        return
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    digits = load_digits()
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{root.name}-", dir=root.parent) as temporary:
        made = Path(temporary) / root.name
        for i, (values, label) in enumerate(zip(digits.images, digits.target, strict=True)):
            folder = made / _split(i) / str(label)
            folder.mkdir(parents=True, exist_ok=True)
            grey = Image.fromarray(np.rint(values * (255 / 16)).astype(np.uint8))
            image = grey.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
            image.convert("RGB").save(folder / f"{i:04}.JPEG", quality=95)
        try:
            rename(made, root)
        except OSError:
            _check(root)  # another process was quicker


def _split(index: int) -> str:
    return "val" if index % VAL_EVERY == VAL_EVERY - 1 else "train"


def _check(root: Path) -> None:
    found = {split: len(list((root / split).glob("*/*.JPEG"))) for split in SPLITS}
    wanted = dict.fromkeys(SPLITS, 0)
    for i in range(IMAGES):
        wanted[_split(i)] += 1
    if found != wanted:
        raise DataProblem(
            f"{root}: not the whole of the digits, {found} images instead of {wanted};"
            " move the folder elsewhere to have it made again"
        )
