"""Folders, labels, and the list of files that is scanned once."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
from PIL import Image

from tasks.base import DataProblem, Shard
from tasks.imagenet import index as index_module
from tasks.imagenet.index import ImageIndex
from tasks.imagenet.model import ResNetOptions
from tests.tasks.imagenet.few import make_task


def test_missing_folders_are_explained(tmp_path: Path):
    root, task = tmp_path / "imagenet", make_task(tmp_path, folder="imagenet")
    with pytest.raises(DataProblem, match=f"{root}/train: no such folder") as found:
        task.prepare_data()
    assert f"{root}/val/<class>/*.JPEG" in str(found.value)
    assert "image-net.org after registration" in str(found.value)
    (root / "train").mkdir(parents=True)
    with pytest.raises(DataProblem, match="train: no class folders"):
        task.prepare_data()
    for i in range(10):
        (root / "train" / f"n{i}").mkdir()
    with pytest.raises(DataProblem, match="val: no such folder"):
        task.prepare_data()
    for i in range(1, 11):
        (root / "val" / f"n{i}").mkdir(parents=True)
    with pytest.raises(DataProblem, match="class 'n0' is in train/ but not in val/"):
        task.prepare_data()


def test_the_models_classes_are_the_folders(data_root: Path, tmp_path: Path):
    with pytest.raises(DataProblem, match=r"10 class folders, but the model has 1,000 classes"):
        make_task(data_root, ResNetOptions()).prepare_data()
    shutil.copytree(data_root / "few", tmp_path / "few")
    shutil.rmtree(tmp_path / "few" / "val" / "3")
    (tmp_path / "few" / "val" / "3").mkdir()
    with pytest.raises(DataProblem, match="val/3: no images"):
        make_task(tmp_path).eval_batches("val", Shard())


def test_labels_and_files_are_sorted(data_root: Path):
    index = ImageIndex(data_root / "digits", "val")
    paths = [Path(index.path(i)) for i in range(len(index))]
    assert paths == sorted((data_root / "digits" / "val").glob("*/*.JPEG"))
    assert index.classes == list("0123456789")
    assert [p.parent.name for p in paths] == [str(label) for label in index.labels]


def test_digits_are_made_once(data_root: Path):
    task = make_task(data_root, folder="digits")
    file = next((task.root / "val" / "7").iterdir())
    with Image.open(file) as image:
        assert (image.format, image.mode, image.size) == ("JPEG", "RGB", (32, 32))
    before = file.stat()
    task.prepare_data()
    assert file.stat() == before
    assert task.epoch_units == 1498
    assert len(list(task.eval_batches("val", Shard()))) == math.ceil(299 / 64)
    assert sorted(p.name for p in data_root.iterdir()) == ["digits", "few"]


def test_digits_that_are_not_whole_are_left_alone(data_root: Path, tmp_path: Path):
    shutil.copytree(data_root / "few", tmp_path / "digits")
    with pytest.raises(DataProblem, match=r"not the whole of the digits, \{'train': 150"):
        make_task(tmp_path, folder="digits").prepare_data()


def test_files_are_scanned_once(data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shutil.copytree(data_root / "few", tmp_path / "few")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(index_module, "WORTH_KEEPING", 1)
    first = ImageIndex(tmp_path / "few", "val")
    with monkeypatch.context() as patched:
        patched.setattr(ImageIndex, "_scan", lambda _: pytest.fail("scanned again"))
        again = ImageIndex(tmp_path / "few", "val")
    assert [again.path(i) for i in range(299)] == [first.path(i) for i in range(299)]
    assert again.labels.tolist() == first.labels.tolist()


@pytest.mark.parametrize("change", ["remove", "add", "rename", "damage"])
def test_a_change_of_the_folders_is_seen(
    data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
):
    shutil.copytree(data_root / "few", tmp_path / "few")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(index_module, "WORTH_KEEPING", 1)
    ImageIndex(tmp_path / "few", "val")
    file = sorted((tmp_path / "few" / "val" / "4").iterdir())[0]
    if change == "remove":
        file.unlink()
    elif change == "add":
        shutil.copy(file, file.with_name("new.JPEG"))
    elif change == "rename":
        file.rename(file.with_name("other.JPEG"))
    else:
        (cached,) = (tmp_path / "cache").rglob("*-val/labels.npy")
        cached.write_bytes(cached.read_bytes()[:100])
    index = ImageIndex(tmp_path / "few", "val")
    paths = [Path(index.path(i)) for i in range(len(index))]
    assert paths == sorted((tmp_path / "few" / "val").glob("*/*.JPEG"))


def test_without_a_cache_files_are_scanned_every_time(
    data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "cache").write_text("a file in the folder's place")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(index_module, "WORTH_KEEPING", 1)
    assert len(ImageIndex(data_root / "few", "val")) == 299
