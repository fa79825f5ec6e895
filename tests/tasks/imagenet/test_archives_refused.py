"""Archives that are not what they should be, and a target that is not free."""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tasks.base import DataProblem
from tasks.imagenet import archives as archives_module
from tasks.imagenet.archives import unpack
from tasks.imagenet.ilsvrc2012 import GROUND_TRUTH as TRUTH_FILE
from tasks.imagenet.ilsvrc2012 import SYNSETS
from tests.tasks.imagenet.archives import (
    DEVKIT,
    TRAIN,
    VAL,
    WNIDS,
    class_members,
    devkit_members,
    images,
    link,
    silent,
    store,
    synsets,
    tar_of,
    train_tar,
    val_members,
)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """What is synchronised matters to a power cut, not to a kill."""
    monkeypatch.setattr(os, "sync", lambda: None)


def refused(folder, root, expected, *patterns):
    """The one message, with nothing half-made left and nothing written but below the data root."""

    def outside():
        return {p for p in folder.parent.rglob("*") if not p.is_relative_to(root.parent)}

    before = outside()
    with pytest.raises(DataProblem) as caught:
        unpack(folder, root, silent, expected=expected)
    message = str(caught.value)
    for pattern in patterns:
        assert re.search(pattern, message), message
    assert "\n" not in message
    assert outside() == before
    assert not list(root.rglob("*.partial"))
    return message


def test_missing_archives_are_named_at_once(given, root, tmp_path):
    folder, expected = given
    (folder / TRAIN).unlink()
    (folder / DEVKIT).unlink()
    message = refused(folder, root, expected, TRAIN, DEVKIT, "https://image-net.org", "regist")
    assert VAL not in message
    assert not root.parent.exists()
    nowhere = tmp_path / "nowhere"
    refused(nowhere, root, expected, str(nowhere), "no such folder", TRAIN, VAL, DEVKIT)


def test_wrong_sizes(given, root):
    folder, expected = given
    for name in (TRAIN, VAL):
        (folder / name).write_bytes((folder / name).read_bytes()[:-512])
    size = f"{expected.train.bytes:,}"
    refused(folder, root, expected, f"{TRAIN} has [0-9,]+ bytes, but must have {size}", VAL)
    assert not root.parent.exists()


@pytest.mark.parametrize("name", [TRAIN, VAL, DEVKIT])
def test_a_wrong_checksum(name, given, root):
    folder, expected = given
    right = (folder / name).read_bytes()
    content = bytearray(right)
    content[700] ^= 1  # in the first file
    (folder / name).write_bytes(content)
    found = hashlib.md5(content).hexdigest()
    kept = {a.name: a.md5 for a in expected.archives}[name]
    refused(folder, root, expected, str(folder / name), found, kept)
    assert not root.exists()
    (folder / name).write_bytes(right)
    assert unpack(folder, root, silent, expected=expected)


def test_no_space(given, root, monkeypatch):
    folder, expected = given
    sizes = [expected.train.bytes, expected.val.bytes]
    asked = []

    def disk_usage(path):
        asked.append(Path(path))
        return shutil._ntuple_diskusage(10**12, 10**12, free)

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)
    free = 10_000
    message = refused(folder, root, expected, "4 of 4 classes", "5%", "free", "missing", "GB")
    assert asked[-1].exists()
    assert asked[-1] in root.parents
    assert message.startswith(f"{root}: not enough space")
    assert not root.exists()
    free = round(sum(sizes) * 1.05)
    assert unpack(folder, root, silent, expected=expected)
    shutil.rmtree(root / "train" / WNIDS[0])
    free = sizes[0] // 2  # enough for one class
    assert unpack(folder, root, silent, expected=expected)
    shutil.rmtree(root / "train" / WNIDS[0])
    free = 100
    refused(folder, root, expected, "1 of 4 classes", r"\+ 0.0 GB of val")


def test_the_arithmetic_of_space(monkeypatch, tmp_path):
    """With the real sizes: 147.9 + 6.7 GB and five percent."""
    info = tarfile.TarInfo("n01440764.tar")
    info.size = 147_897_000_000
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(0, 0, 100_000_000_000)
    )
    with pytest.raises(DataProblem) as caught:
        archives_module._check_space(tmp_path / "imagenet", {"n01440764": info}, 6_744_924_160)
    assert str(caught.value) == (
        f"{tmp_path}/imagenet: not enough space. Left to unpack: 147.9 GB of train (1 of 1 classes)"
        " + 6.7 GB of val + 5% for the file system = 162.4 GB; free: 100.0 GB; missing: 62.4 GB"
    )


def ends(content):
    """Where a tar of our making may be cut: in nothing, in a header, in a file, between files."""
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        members = tar.getmembers()
    last, second = members[-1], members[1]
    return {
        "nothing": 0,
        "first header": 100,
        "second header": second.offset + 300,
        "between": second.offset,
        "file": last.offset_data + last.size // 2,
        "end": last.offset_data + (last.size + 511) // 512 * 512,
    }


CUTS = ["nothing", "first header", "second header", "between", "file", "end"]


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("which", ["train", "class", "val", "devkit"])
def test_cut_off(which, cut, tmp_path, root, wanted):
    folder = tmp_path / "archives"
    if which == "train":
        content = train_tar()
        expected = store(folder, train=content[: ends(content)[cut]])
        name = TRAIN
    elif which == "val":
        content = tar_of(val_members())
        expected = store(folder, val=content[: ends(content)[cut]])
        name = VAL
    elif which == "devkit":
        content = tar_of(devkit_members(), "w:gz")
        place = len(content) * CUTS.index(cut) // len(CUTS)
        expected = store(folder, devkit=content[:place])
        name = DEVKIT
    else:
        members = class_members()
        content = tar_of(members[WNIDS[0]])
        cut_off = [
            (f"{w}.tar", content[: ends(content)[cut]] if w == WNIDS[0] else tar_of(m))
            for w, m in members.items()
        ]
        expected = store(folder, train=tar_of(cut_off))
        name = f"{TRAIN}.*{WNIDS[0]}.tar"
    refused(folder, root, expected, name)
    assert images(root).items() <= wanted.items() if root.exists() else True
    assert not (root / "train" / WNIDS[0]).exists()
    assert not (root / "complete.json").exists()


def test_a_damaged_header_is_not_the_end(tmp_path, root):
    """Python's tarfile would stop there without a word."""
    content = bytearray(tar_of(val_members()))
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        offset = tar.getmembers()[3].offset
    content[offset + 5] ^= 1
    expected = store(tmp_path / "archives", val=bytes(content))
    refused(tmp_path / "archives", root, expected, VAL, f"damaged at byte {offset:,}")


def evil_members(tmp_path):
    outside = str(tmp_path / "evil.JPEG")
    name = "{}_1.JPEG"
    return {
        "parent": ("../evil.JPEG", b"evil"),
        "parents": ("../../../../evil.JPEG", b"evil"),
        "within": ("{}/../../evil.JPEG", b"evil"),
        "absolute": (outside, b"evil"),
        "symlink": (link(name, outside), b""),
        "hard link": (link(name, "../../evil.JPEG", tarfile.LNKTYPE), b""),
        "device": (link(name, "", tarfile.CHRTYPE), b""),
        "pipe": (link(name, "", tarfile.FIFOTYPE), b""),
        "folder": (link("evil", "", tarfile.DIRTYPE), b""),
        "below": ("evil/{}_1.JPEG", b"evil"),
        "other name": ("evil.JPEG", b"evil"),
        "other class": ("n99999999_1.JPEG", b"evil"),
        "line break": ("{}_1.JPEG\n", b"evil"),
        "other digits": ("{}_١.JPEG", b"evil"),
        "hidden": (".{}_1.JPEG", b"evil"),
        "empty": ("{}_1.JPEG", b""),
    }


@pytest.mark.parametrize("place", ["train", "class", "val"])
@pytest.mark.parametrize("kind", list(evil_members(Path("/"))))
def test_nothing_is_written_elsewhere(kind, place, tmp_path, root):
    member, content = evil_members(tmp_path)[kind]
    members = class_members()
    stem = {"train": WNIDS[0], "class": WNIDS[0], "val": "ILSVRC2012_val"}[place]

    def adapted(name):
        name = name.replace("{}", stem).replace("_1.JPEG", "_00000001.JPEG")
        return name.replace("_00000001.JPEG", ".tar") if place == "train" else name

    if isinstance(member, tarfile.TarInfo):
        member.name = adapted(member.name)
        shown = member.name
    else:
        shown = member = adapted(member)
    evil = [(member, content)]
    folder = tmp_path / "archives"
    if place == "class":
        members[WNIDS[0]] = evil + members[WNIDS[0]]
        expected = store(folder, train=train_tar(members))
    elif place == "train":
        classes = [(f"{w}.tar", tar_of(m)) for w, m in members.items() if w != WNIDS[0]]
        expected = store(folder, train=tar_of(classes[:1] + evil + classes[1:]))
    else:
        expected = store(folder, val=tar_of(val_members()[:2] + evil + val_members()[2:]))
    patterns = [VAL if place == "val" else TRAIN, re.escape(repr(shown)[1:-1])]
    if kind == "empty":
        patterns += ["is empty"]
    elif (kind, place) == ("other class", "train"):
        patterns = [f"{WNIDS[0]} is in .*, but not in"]  # a fine name, but none of the kit's
    else:
        patterns += ["unexpected member"]
    refused(folder, root, expected, *patterns)
    assert not list(tmp_path.rglob("*evil*"))


def test_an_image_twice(tmp_path, root):
    members = class_members()
    members[WNIDS[0]].append(members[WNIDS[0]][0])
    expected = store(tmp_path / "archives", train=train_tar(members))
    refused(tmp_path / "archives", root, expected, TRAIN, f"{WNIDS[0]}_7.JPEG' is in it twice")


def test_a_class_twice(tmp_path, root):
    classes = [(f"{w}.tar", tar_of(m)) for w, m in class_members().items()]
    expected = store(tmp_path / "archives", train=tar_of([*classes, classes[0]]))
    refused(tmp_path / "archives", root, expected, TRAIN, f"{WNIDS[0]}.tar' is in it twice")


def test_wrong_counts(given, root, wanted):
    folder, expected = given
    refused(folder, root, replace(expected, classes=5), TRAIN, "4 archives .* must be 5")
    truth = "ground_truth.txt: 9 lines, but there are 10"
    refused(folder, root, replace(expected, val_images=10), DEVKIT, truth)
    assert not root.exists()
    more = replace(expected, train_images=13)
    refused(folder, root, more, "train: 12 images, but there must be 13", f"{TRAIN} has no others")
    assert not (root / "complete.json").exists()
    assert images(root) == wanted  # of these archives, and then these are all
    assert unpack(folder, root, silent, expected=expected)


def test_too_few_validation_images(tmp_path, root):
    folder = tmp_path / "archives"
    expected = store(folder, val=tar_of(val_members()[1:]))
    refused(folder, root, expected, VAL, "8 images in it, not 9")
    expected = store(folder, val=tar_of([*val_members(), ("ILSVRC2012_val_00000010.JPEG", b"x")]))
    refused(folder, root, expected, VAL, "00000010.*must be 1 to 9")
    assert not (root / "val").exists()


def test_folders_that_have_lost_images(given, root, wanted):
    folder, expected = given
    unpack(folder, root, silent, expected=expected)
    (root / "complete.json").unlink()
    lost = root / "train" / WNIDS[3]
    next(lost.iterdir()).unlink()
    refused(folder, root, expected, "11 images", f"move {lost} elsewhere and call again")
    shutil.rmtree(lost)
    emptied = root / "train" / WNIDS[2] / f"{WNIDS[2]}_7.JPEG"
    emptied.write_bytes(b"")
    refused(folder, root, expected, f"{emptied.name} is empty; move {emptied.parent} elsewhere")
    shutil.rmtree(emptied.parent)
    next((root / "val" / WNIDS[0]).iterdir()).unlink()
    refused(
        folder, root, expected, "1 images, but there must be 2", f"move {root / 'val'} elsewhere"
    )
    shutil.rmtree(root / "val")
    assert unpack(folder, root, silent, expected=expected)
    assert images(root) == wanted


def test_other_things_in_the_folder(given, root, wanted):
    """Validation images that lie flat, as the tar has them; folders of other data."""
    folder, expected = given
    (root / "val").mkdir(parents=True)
    flat = root / "val" / "ILSVRC2012_val_00000001.JPEG"
    flat.write_bytes(b"x")
    refused(folder, root, expected, str(flat), "another folder with --data")
    shutil.rmtree(root / "val")
    (root / "val" / WNIDS[0]).mkdir(parents=True)
    refused(folder, root, expected, "1 of 4 class folders")
    shutil.rmtree(root / "val")
    (root / "train" / "cats").mkdir(parents=True)
    refused(folder, root, expected, "cats: not one of the 4 classes")
    (root / "train" / "cats").rmdir()
    (root / "train" / WNIDS[0]).mkdir()  # empty: of no use, and no harm
    assert unpack(folder, root, silent, expected=expected)
    assert images(root) == wanted


def without(name):
    return [(n, c) for n, c in devkit_members() if n != name]


def fewer_leaves():
    table = synsets()
    table["num_children"][2, 0] = 1
    return table


def renamed(name):
    table = synsets()
    table["WNID"][2, 0] = name
    return table


@pytest.mark.parametrize(
    ("members", "pattern"),
    [
        (without(SYNSETS), "no file .*meta.mat"),
        (without(TRUTH_FILE), "no file .*ground_truth.txt"),
        (
            [*without(SYNSETS), (SYNSETS, b"garbage")],
            "meta.mat: not the table",
        ),
        ([*without(SYNSETS), (link(SYNSETS, "/etc/passwd"), b"")], "no file"),
        (devkit_members(truth=[3, 1, 4, 1, 5, 2, 4, 3, 3]), "line 5 .* 1 to 4, not '5'"),
        (devkit_members(truth=["x"] * 9), "line 1 .* 1 to 4, not 'x'"),
        (devkit_members(truth=[1, 2]), "2 lines, but there are 9"),
        (devkit_members(fewer_leaves()), "3 classes, but there must be 4"),
        (devkit_members(renamed("../../../evil")), "names as n01440764"),
        (devkit_members(renamed(WNIDS[0])), "4 classes, but there must be 4, with"),
        (devkit_members(renamed("n00000001")), "n00000001 is in .*meta.mat, but not in"),
        (devkit_members(np.zeros(3)), "not the table"),
    ],
)
def test_a_wrong_development_kit(members, pattern, tmp_path, root):
    expected = store(tmp_path / "archives", devkit=tar_of(members, "w:gz"))
    refused(tmp_path / "archives", root, expected, DEVKIT, pattern)
    assert not root.exists()
