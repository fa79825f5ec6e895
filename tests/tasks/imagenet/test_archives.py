"""From small archives of ImageNet's structure to folders, whatever happens on the way."""

from __future__ import annotations

import functools
import hashlib
import io
import itertools
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import loadmat, savemat  # type: ignore[import-untyped]
from torchvision.datasets import ImageFolder  # type: ignore[import-untyped]
from torchvision.datasets import imagenet as torchvisions

from scripts import prepare
from tasks.base import DataProblem
from tasks.imagenet import archives as room
from tasks.imagenet.archives import ILSVRC2012, Archive, ArchiveSet, unpack

REPO = Path(__file__).parents[3]
# By class number from 1 on: neither in the order of the names nor of the archive.
WNIDS = ["n02119789", "n01440764", "n03544143", "n02100735"]
COLOURS = [(250, 20, 20), (20, 250, 20), (20, 20, 250), (240, 240, 20)]
TRAIN_IMAGES = [3, 2, 4, 3]
GROUND_TRUTH = [3, 1, 4, 1, 2, 2, 4, 3, 3]
VAL_ORDER = [4, 9, 1, 7, 2, 3, 8, 5, 6]  # of the files in the tar
TRAIN, VAL, DEVKIT = (a.name for a in (ILSVRC2012.train, ILSVRC2012.val, ILSVRC2012.devkit))


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """What is synchronised matters to a power cut, not to a kill."""
    monkeypatch.setattr(os, "sync", lambda: None)


def silent(what, done, total):
    assert 0 <= done <= total


# Archives.


@functools.cache
def jpeg(label, seed):
    """A small picture in the colour of its class, no two alike."""
    pixels = np.full((9, 12, 3), COLOURS[label], dtype=np.uint8)
    pixels[seed % 9, seed // 9 % 12] = 127
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=95, comment=f"{label} {seed}".encode())
    return file.getvalue()


def tar_of(members, mode="w"):
    """`members`: names with their bytes, or whole TarInfos."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode, format=tarfile.GNU_FORMAT) as tar:
        for name, content in members:
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


def link(name, target, kind=tarfile.SYMTYPE):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def class_members():
    return {
        wnid: [
            (f"{wnid}_{100 * i + 7}.JPEG", jpeg(label, 20 * label + i))
            for i in range(TRAIN_IMAGES[label])
        ]
        for label, wnid in enumerate(WNIDS)
    }


def val_members():
    return [
        (f"ILSVRC2012_val_{n:08}.JPEG", jpeg(GROUND_TRUTH[n - 1] - 1, 200 + n)) for n in VAL_ORDER
    ]


def synsets():
    """As in the real meta.mat: a column of structs, the classes first, then nodes above them."""
    fields = "ILSVRC2012_ID WNID words gloss num_children children wordnet_height num_train_images"
    rows: list[tuple[object, ...]] = [
        (np.uint16(i), wnid, f"thing {i}, kind of thing", "a thing", np.uint8(0), [], 0, 1300)
        for i, wnid in enumerate(WNIDS, 1)
    ]
    rows.append((np.uint16(5), "n00001740", "entity", "what is", np.uint8(2), [1, 2], 3, 0))
    rows.append((np.uint16(6), "n00001930", "object", "what is seen", np.uint8(1), 3, 2, 0))
    table = np.empty((len(rows), 1), dtype=[(field, object) for field in fields.split()])
    table[:, 0] = rows
    return table


def devkit_members(table=None, truth=None):
    file = io.BytesIO()
    savemat(file, {"synsets": synsets() if table is None else table}, do_compression=True)
    lines = "".join(f"{n}\n" for n in truth or GROUND_TRUTH)
    return [
        ("ILSVRC2012_devkit_t12/readme.txt", b"read me"),
        (room.SYNSETS, file.getvalue()),
        (room.GROUND_TRUTH, lines.encode()),
    ]


def train_tar(classes=None):
    members = class_members() if classes is None else classes
    return tar_of([(f"{w}.tar", tar_of(members[w])) for w in sorted(members, reverse=True)])


def store(folder, train=None, val=None, devkit=None):
    """Writes the archives, and the set that describes these."""
    contents = {
        TRAIN: train_tar() if train is None else train,
        VAL: tar_of(val_members()) if val is None else val,
        DEVKIT: tar_of(devkit_members(), "w:gz") if devkit is None else devkit,
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    train_, val_, devkit_ = (
        Archive(name, hashlib.md5(content).hexdigest(), len(content))
        for name, content in contents.items()
    )
    return ArchiveSet(
        train_, val_, devkit_, len(WNIDS), sum(TRAIN_IMAGES), val_images=len(GROUND_TRUTH)
    )


def tree(root):
    """Every file below a folder, hidden ones too, with its bytes."""
    return {
        str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()
    }


def images(root):
    return {name: content for name, content in tree(root).items() if name.endswith(".JPEG")}


@pytest.fixture(scope="module")
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


# What comes out.


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
def test_goes_on_after_an_error(after, given, root, wanted, monkeypatch):
    """The disk is full after so many images; nothing unfinished stays, nothing finished goes."""
    folder, expected = given
    count = itertools.count()

    def write(path, *rest):
        if next(count) == after:
            path.write_bytes(b"half")
            raise OSError(28, "No space left on device")
        written(path, *rest)

    written = room._write
    with monkeypatch.context() as patch:
        patch.setattr(room, "_write", write)
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

    write = room._write
    pid = os.fork()
    if pid == 0:
        room._write = slow
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


# Refused.


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
        room._check_space(tmp_path / "imagenet", {"n01440764": info}, 6_744_924_160)
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
    refused(folder, root, expected, "11 images", f"remove {lost} and call again")
    shutil.rmtree(lost)
    emptied = root / "train" / WNIDS[2] / f"{WNIDS[2]}_7.JPEG"
    emptied.write_bytes(b"")
    refused(folder, root, expected, f"{emptied.name} is empty; remove {emptied.parent} and")
    shutil.rmtree(emptied.parent)
    next((root / "val" / WNIDS[0]).iterdir()).unlink()
    refused(folder, root, expected, "1 images, but there must be 2", f"remove {root / 'val'} and")
    shutil.rmtree(root / "val")
    assert unpack(folder, root, silent, expected=expected)
    assert images(root) == wanted


def test_other_things_in_the_folder(given, root, wanted):
    """Validation images that lie flat, as the tar has them; folders of other data."""
    folder, expected = given
    (root / "val").mkdir(parents=True)
    flat = root / "val" / "ILSVRC2012_val_00000001.JPEG"
    flat.write_bytes(b"x")
    refused(folder, root, expected, str(flat), "remove it")
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
        (without(room.SYNSETS), "no file .*meta.mat"),
        (without(room.GROUND_TRUTH), "no file .*ground_truth.txt"),
        ([*without(room.SYNSETS), (room.SYNSETS, b"garbage")], "meta.mat: not the table"),
        ([*without(room.SYNSETS), (link(room.SYNSETS, "/etc/passwd"), b"")], "no file"),
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


# The command.


@pytest.fixture
def small(given, monkeypatch):
    """The command takes the small set for the real one."""
    folder, expected = given
    monkeypatch.setattr(room, "ILSVRC2012", expected)
    monkeypatch.setitem(room.unpack.__kwdefaults__, "expected", expected)
    return folder


def test_the_command(small, root, wanted, capsys):
    arguments = ["imagenet", "--archives", str(small), "--data", str(root.parent)]
    assert prepare.main(arguments) == 0
    assert images(root) == wanted
    shown = capsys.readouterr()
    assert shown.out == f"{root}: 12 training and 9 validation images of 4 classes, ready\n"
    assert "unpacking train: " in shown.err
    assert "(100 %)" in shown.err
    assert prepare.main(arguments) == 0
    shown = capsys.readouterr()
    assert "nothing to do" in shown.out
    assert not shown.err


def test_the_command_without_archives(tmp_path):
    data = ["--data", str(tmp_path / "data")]
    done = subprocess.run(
        [sys.executable, "-m", "scripts.prepare", "imagenet", "--archives", "nowhere", *data],
        cwd=REPO,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert not done.stdout
    assert done.stderr.count("\n") == 1
    for name in (TRAIN, VAL, DEVKIT):
        assert name in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (OSError(28, "No space left on device"), 2, "imagenet: its disk is full"),
        (PermissionError(13, "Permission denied", "/data/x"), 2, "/data/x: Permission denied"),
        (KeyboardInterrupt(), 130, "stopped; the same command goes on from here"),
    ],
)
def test_the_command_when_interrupted(error, status, message, small, root, monkeypatch, capsys):
    def write(*_):
        raise error

    arguments = ["imagenet", "--archives", str(small), "--data", str(root.parent)]
    with monkeypatch.context() as patch:
        patch.setattr(room, "_write", write)
        assert prepare.main(arguments) == status
    last = capsys.readouterr().err.splitlines()[-1]
    assert message in last
    assert prepare.main(arguments) == 0


@pytest.mark.parametrize(
    "arguments", [[], ["imagenet"], ["imagenets"], ["mini", "--archives", "x"]]
)
def test_the_command_misspelt(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        prepare.main(arguments)
    assert caught.value.code == 2
    assert "usage" in capsys.readouterr().err


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_lines_of_a_log():
    stream, clock = io.StringIO(), Clock()
    with prepare.Meter(stream, clock) as meter:
        for second in range(31):
            clock.now = 100.0 + second
            meter("unpacking train", 50_000_000_000 + 10**9 * second, 140_000_000_000)
        meter("counting", 0, 100)
        meter("counting", 100, 100)
        meter("counting", 100, 100)
    assert stream.getvalue().splitlines() == [
        "unpacking train: 50.0 GB of 140.0 GB (35 %)",
        "unpacking train: 60.0 GB of 140.0 GB (42 %), 0:01:20 left",
        "unpacking train: 70.0 GB of 140.0 GB (50 %), 0:01:10 left",
        "unpacking train: 80.0 GB of 140.0 GB (57 %), 0:01:00 left",
        "counting: 0 bytes of 100 bytes (0 %)",
        "counting: 100 bytes of 100 bytes (100 %)",
    ]


def test_a_bar_on_a_terminal(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    with prepare.Meter(stream) as meter:
        meter("checking x.tar", 0, 2 * 10**9)
        meter("checking x.tar", 2 * 10**9, 2 * 10**9)
    assert "checking x.tar" in stream.getvalue()
    assert "2.0/2.0 GB" in stream.getvalue()
