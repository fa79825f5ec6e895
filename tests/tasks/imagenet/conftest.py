"""Data that the tests of this folder share."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tasks.imagenet.index import class_names
from tests.tasks.imagenet.archives import (
    GROUND_TRUTH,
    WNIDS,
    class_members,
    store,
    val_members,
)
from tests.tasks.imagenet.few import make_task


@pytest.fixture(scope="session")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`digits`, and `few`: all its validation images and 15 training images of each class."""
    root = tmp_path_factory.mktemp("data")
    make_task(root, folder="digits").prepare_data()
    shutil.copytree(root / "digits" / "val", root / "few" / "val")
    for name in class_names(root / "digits" / "train"):
        (root / "few" / "train" / name).mkdir(parents=True)
        for path in sorted((root / "digits" / "train" / name).iterdir())[:15]:
            shutil.copy(path, root / "few" / "train" / name)
    return root


# ImageNet's archives, in small.


@pytest.fixture(scope="session")
def wanted():
    """The images in their places."""
    train = {f"train/{w}/{n}": c for w, members in class_members().items() for n, c in members}
    val = {
        f"val/{WNIDS[GROUND_TRUTH[int(name[15:23]) - 1] - 1]}/{name}": content
        for name, content in val_members()
    }
    return train | val


@pytest.fixture
def given(tmp_path):
    """The folder of the archives and the set that describes them."""
    folder = tmp_path / "archives"
    return folder, store(folder)


@pytest.fixture
def root(tmp_path):
    return tmp_path / "data" / "imagenet"
