"""Data that the tests of this folder share."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tasks.imagenet.index import class_names
from tests.tasks.imagenet.few import make_task


@pytest.fixture(scope="session")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`digits`, and `few`: all its validation images and 15 training images of each class."""
    root = tmp_path_factory.mktemp("data")
    make_task(root, folder="digits").check_data()
    shutil.copytree(root / "digits" / "val", root / "few" / "val")
    for name in class_names(root / "digits" / "train"):
        (root / "few" / "train" / name).mkdir(parents=True)
        for path in sorted((root / "digits" / "train" / name).iterdir())[:15]:
            shutil.copy(path, root / "few" / "train" / name)
    return root
