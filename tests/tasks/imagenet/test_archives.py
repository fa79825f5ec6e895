"""From ImageNet's archives to its folders, whatever interrupts it."""

from __future__ import annotations

import functools
import io
import itertools
import os
import random
import shutil
import signal
import sys
import tarfile
import time

import numpy as np
import pytest
from scipy.io import loadmat, savemat  # type: ignore[import-untyped]
from torchvision.datasets import ImageFolder  # type: ignore[import-untyped]
from torchvision.datasets import imagenet as torchvisions

from tasks.base import DataProblem
from tasks.imagenet import archives
from tasks.imagenet.archives import unpack
from tasks.imagenet.ilsvrc2012 import ILSVRC2012
from tests.tasks.imagenet.archives import (
    COLOURS,
    DEVKIT,
    GROUND_TRUTH,
    TRAIN,
    TRAIN_IMAGES,
    VAL,
    WNIDS,
    class_members,
    images,
    silent,
    store,
    synsets,
    tree,
    val_members,
)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """What is synchronised matters to a power cut, not to a kill."""
    monkeypatch.setattr(os, "sync", lambda: None)


def test_every_image_is_in_its_folder(given, root, wanted):
    folder, expected = given
    assert unpack(folder, root, silent, expected=expected)
    assert images(root) == wanted
    assert set(tree(root)) - set(wanted) == {"complete.json"}


def test_labels_and_contents_agree(given, root):
    folder, expected = given
    unpack(folder, root, silent, expected=expected)
    for split, count in (("train", sum(TRAIN_IMAGES)), ("val", len(GROUND_TRUTH))):
        dataset = ImageFolder(str(root / split))
        assert dataset.classes == sorted(WNIDS)
        assert len(dataset) == count
        for image, label in dataset:
            colour = COLOURS[WNIDS.index(dataset.classes[label])]
            middle = np.median(np.asarray(image).reshape(-1, 3), axis=0)
            assert np.abs(middle - colour).max() < 10


def test_the_same_as_torchvisions(given, root, tmp_path, monkeypatch):
    folder, expected = given
    unpack(folder, root, silent, expected=expected)
    meta = {
        "train": (TRAIN, expected.train.md5),
        "val": (VAL, expected.val.md5),
        "devkit": (DEVKIT, expected.devkit.md5),
    }
    monkeypatch.setattr(torchvisions, "ARCHIVE_META", meta)
    theirs = shutil.copytree(folder, tmp_path / "theirs")
    for split in ("train", "val"):
        torchvisions.ImageNet(theirs, split)
    assert images(root) == images(theirs)


def test_the_made_up_table_loads_as_the_real_one(tmp_path):
    """Of the real file is known what torchvision relies on."""
    savemat(tmp_path / "meta.mat", {"synsets": synsets()})
    table = loadmat(tmp_path / "meta.mat", squeeze_me=True)["synsets"]
    assert table.shape == (6,)
    numbers, wnids, words, _, children, *_ = zip(*table, strict=True)
    assert numbers == (1, 2, 3, 4, 5, 6)
    assert wnids[:4] == tuple(WNIDS)
    assert words[0] == "thing 1, kind of thing"
    assert children == (0, 0, 0, 0, 2, 1)


def test_the_real_sets_numbers():
    assert (ILSVRC2012.classes, ILSVRC2012.train_images, ILSVRC2012.val_images) == (
        (1000, 1_281_167, 50_000)
    )
    sizes = [ILSVRC2012.train.bytes, ILSVRC2012.val.bytes]
    assert sizes == [147_897_477_120, 6_744_924_160]
    theirs = {name: md5 for name, md5 in torchvisions.ARCHIVE_META.values()}  # noqa: C416
    assert {a.name: a.md5 for a in ILSVRC2012.archives} == theirs


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_other_ways_to_write_a_tar(form, tmp_path, root, wanted):
    """A leading ./, an entry for the folder itself, extended headers."""

    def dotted(members):
        file = io.BytesIO()
        headers = {"comment": "made for a test"} if form == tarfile.PAX_FORMAT else None
        with tarfile.open(fileobj=file, mode="w", format=form, pax_headers=headers) as tar:
            folder = tarfile.TarInfo("./")
            folder.type = tarfile.DIRTYPE
            tar.addfile(folder)
            for name, content in members:
                info = tarfile.TarInfo(f"./{name}")
                info.size, info.mtime = len(content), 1.5
                if form == tarfile.USTAR_FORMAT:
                    info.mtime = 1
                tar.addfile(info, io.BytesIO(content))
        return file.getvalue()

    train = dotted([(f"{w}.tar", dotted(m)) for w, m in class_members().items()])
    expected = store(tmp_path / "archives", train=train, val=dotted(val_members()))
    unpack(tmp_path / "archives", root, silent, expected=expected)
    assert images(root) == wanted


def test_progress_only_grows(given, root):
    folder, expected = given
    told: dict[str, list[tuple[int, int]]] = {}
    unpack(folder, root, lambda w, d, t: told.setdefault(w, []).append((d, t)), expected=expected)
    assert list(told) == [
        f"checking {DEVKIT}",
        f"checking {VAL}",
        f"checking {TRAIN}",
        "unpacking val",
        "unpacking train",
        "counting images",
    ]
    for pairs in told.values():
        done = [d for d, _ in pairs]
        assert done == sorted(done)
        assert len({total for _, total in pairs}) == 1
        assert pairs[-1][0] == pairs[-1][1]
    assert len(told["unpacking train"]) > sum(TRAIN_IMAGES)


# Once more.


def test_a_complete_folder_is_left_alone(given, root, wanted):
    folder, expected = given
    unpack(folder, root, silent, expected=expected)
    shutil.rmtree(folder)  # it is not even looked at

    def report(*_):
        raise AssertionError("nothing is to be done")

    assert not unpack(folder, root, report, expected=expected)
    assert images(root) == wanted


def test_checksums_are_not_computed_twice(given, root):
    folder, expected = given
    unpack(folder, root, silent, expected=expected)
    shutil.rmtree(root)
    told = set()
    assert unpack(folder, root, lambda what, *_: told.add(what), expected=expected)
    assert not any("checking" in what for what in told)
    shutil.rmtree(root)
    os.utime(folder / VAL, ns=(1, 1))
    told.clear()
    unpack(folder, root, lambda what, *_: told.add(what), expected=expected)
    assert {what for what in told if "checking" in what} == {f"checking {VAL}"}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"ILSVRC2012_img_val.tar": 3}'])
def test_damaged_stamps_are_ignored(text, given, root, wanted):
    folder, expected = given
    root.mkdir(parents=True)
    (root / "complete.json").write_text(text)
    (root.parent / ".imagenet-checksums.json").write_text(text)
    assert unpack(folder, root, silent, expected=expected)
    assert images(root) == wanted


def test_what_was_removed_comes_back(given, root, wanted):
    folder, expected = given
    unpack(folder, root, silent, expected=expected)
    shutil.rmtree(root / "train" / WNIDS[2])
    shutil.rmtree(root / "val")
    kept = (root / "train" / WNIDS[0]).stat().st_ino
    assert unpack(folder, root, silent, expected=expected)
    assert images(root) == wanted
    assert (root / "train" / WNIDS[0]).stat().st_ino == kept


def test_folders_that_were_unpacked_by_others_are_taken(given, root, wanted):
    folder, expected = given
    unpack(folder, root, silent, expected=expected)
    (root / "complete.json").unlink()
    (root / "train" / WNIDS[1] / ".DS_Store").write_bytes(b"x")
    told: list[tuple[str, int, int]] = []
    assert unpack(folder, root, lambda *report: told.append(report), expected=expected)
    assert all(done == total for what, done, total in told if what == "unpacking train")
    assert not any(what == "unpacking val" for what, *_ in told)
    assert images(root) == wanted


# Killed.


@pytest.mark.parametrize("after", [0, 1, 5, 8, 9, 11, 14, 20])
def test_resumes_after_an_error(after, given, root, wanted, monkeypatch):
    """The disk is full after so many images; nothing unfinished stays, nothing finished goes."""
    folder, expected = given
    count = itertools.count()

    def write(path, *rest):
        if next(count) == after:
            path.write_bytes(b"half")
            raise OSError(28, "No space left on device")
        written(path, *rest)

    written = archives._write
    with monkeypatch.context() as patch:
        patch.setattr(archives, "_write", write)
        with pytest.raises(OSError, match="No space"):
            unpack(folder, root, silent, expected=expected)
    assert images(root).items() <= wanted.items()
    finished = {p: p.stat().st_ino for p in root.glob("train/*")}
    assert unpack(folder, root, silent, expected=expected)
    assert images(root) == wanted
    assert finished == {p: p.stat().st_ino for p in finished}


def in_a_fork(work):
    """Runs `work` in a process of its own; its exit status, or minus the signal that ended it."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def unpack_until(event, folder, root, expected):
    """SIGKILL before Python asks the system for the n-th file, folder, renaming or removal."""
    left = itertools.count(1)

    def hook(name, _):
        if name in ("open", "os.mkdir", "os.rename", "os.rmdir", "os.remove", "shutil.rmtree"):
            if next(left) == event:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    unpack(folder, root, silent, expected=expected)


def test_killed_at_any_moment(given, root, wanted):
    """The second call ends well, wherever the first one was."""
    folder, expected = given
    killed = 0
    for event in itertools.count(1):
        shutil.rmtree(root.parent, ignore_errors=True)
        status = in_a_fork(functools.partial(unpack_until, event, folder, root, expected))
        if status == 0:
            break
        assert status == -signal.SIGKILL
        killed += 1
        finished = [*root.glob("train/n*/*"), *root.glob("val/n*/*")]
        assert all(wanted[str(p.relative_to(root))] == p.read_bytes() for p in finished)
        unpack(folder, root, silent, expected=expected)
        assert images(root) == wanted
        assert set(tree(root)) - set(wanted) == {"complete.json"}
    assert killed > 2 * len(wanted)


def test_killed_again_and_again(given, root, wanted):
    """Each call gets a little further, whatever it has to clear away first."""
    folder, expected = given
    events = random.Random(0)
    for calls in itertools.count():
        event = events.randrange(15, 32)
        if in_a_fork(functools.partial(unpack_until, event, folder, root, expected)) == 0:
            break
        assert calls < 100
    assert calls > 3
    assert images(root) == wanted


def test_killed_in_the_midst_of_a_file(given, root, wanted, monkeypatch):
    """A process that writes slowly; while it lives there is no other."""
    folder, expected = given
    told, tell = os.pipe()

    def slow(path, stream, member, archive):
        if path.name.startswith(WNIDS[1]):
            with path.open("xb", buffering=0) as file:
                file.write(b"x" * 100)
                os.write(tell, b"!")
                time.sleep(600)
        write(path, stream, member, archive)

    write = archives._write
    pid = os.fork()
    if pid == 0:
        archives._write = slow
        try:
            unpack(folder, root, silent, expected=expected)
        finally:
            os._exit(1)
    os.close(tell)
    try:
        assert os.read(told, 1) == b"!"
        with pytest.raises(DataProblem, match="another process"):
            unpack(folder, root, silent, expected=expected)
    finally:
        os.close(told)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert [p.stat().st_size for p in root.glob("train/.*.partial/*")] == [100]
    assert len(list(root.glob("val/*/*"))) == len(GROUND_TRUTH)
    assert unpack(folder, root, silent, expected=expected)
    assert images(root) == wanted
