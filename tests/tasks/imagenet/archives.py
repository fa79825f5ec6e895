"""Small archives with the structure of ImageNet's."""

from __future__ import annotations

import functools
import hashlib
import io
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat  # type: ignore[import-untyped]

from tasks.imagenet.ilsvrc2012 import GROUND_TRUTH as TRUTH_FILE
from tasks.imagenet.ilsvrc2012 import ILSVRC2012, SYNSETS, Archive, ArchiveSet

REPO = Path(__file__).parents[3]
# By class number from 1 on: neither in the order of the names nor of the archive.
WNIDS = ["n02119789", "n01440764", "n03544143", "n02100735"]
COLOURS = [(250, 20, 20), (20, 250, 20), (20, 20, 250), (240, 240, 20)]
TRAIN_IMAGES = [3, 2, 4, 3]
GROUND_TRUTH = [3, 1, 4, 1, 2, 2, 4, 3, 3]
VAL_ORDER = [4, 9, 1, 7, 2, 3, 8, 5, 6]  # of the files in the tar
TRAIN, VAL, DEVKIT = (a.name for a in (ILSVRC2012.train, ILSVRC2012.val, ILSVRC2012.devkit))


def silent(what, done, total):
    assert 0 <= done <= total


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
        (SYNSETS, file.getvalue()),
        (TRUTH_FILE, lines.encode()),
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
