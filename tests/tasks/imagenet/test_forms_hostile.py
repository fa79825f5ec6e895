"""Shards and zips as an attacker writes them."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.tasks.imagenet.archives import WNIDS, tar_of
from tests.tasks.imagenet.test_forms import (
    _quick,  # noqa: F401  # fixtures
    _small_official_set,  # noqa: F401
    kaggle_zip,
    prepared,
    refuse,
    webdataset,
)


def hostile_shard(*members: tuple[Any, bytes]) -> Any:
    return tar_of([("a.cls", b"0"), ("a.jpg", b"x"), *members])


def info(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, target
    return made


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([(info("b.jpg", tarfile.SYMTYPE, "/etc/passwd"), b"")], "is a link or device"),
        ([(info("b.jpg", tarfile.LNKTYPE, "a.jpg"), b"")], "is a link or device"),
        ([(info("b.jpg", tarfile.CHRTYPE), b"")], "is a link or device"),
        ([("a.jpg", b"y")], "'a.jpg' is in it twice"),
        ([("b.cls", b"-1"), ("b.jpg", b"y")], "must be a number from 0 on, not '-1'"),
        ([("b.cls", b"9" * 40), ("b.jpg", b"y")], "must be a number from 0 on"),
        ([("b.jpg", b"y")], "has no .cls"),
        ([("b.cls", b"1")], "has no image"),
        ([("b.cls", b"1"), ("b.jpg", b"")], "no image's size"),
    ],
)
def test_hostile_shards(members, message: str, tmp_path: Path):
    webdataset(tmp_path / "source")
    (tmp_path / "source" / "imagenet-train-000001.tar").write_bytes(hostile_shard(*members))
    refuse([tmp_path / "source"], tmp_path / "data" / "imagenet", message)


def test_names_of_shards_lead_nowhere(tmp_path: Path):
    """Of a key only the last part of its path is a name."""
    webdataset(tmp_path / "source")
    evil = [("../../evil.cls", b"0"), ("../../evil.jpg", b"x"), ("/abs/.evil.cls", b"1")]
    evil += [("/abs/.evil.jpg", b"y")]
    (tmp_path / "source" / "imagenet-train-000001.tar").write_bytes(tar_of(evil))
    before = {p for p in tmp_path.rglob("*") if "data" not in p.parts}
    root = tmp_path / "data" / "imagenet"
    prepared([tmp_path / "source"], root)
    assert [p.read_bytes() for p in root.rglob("evil*")] == [b"x"]
    after = {p for p in tmp_path.rglob("*") if "data" not in p.parts}
    assert after - before <= {tmp_path / "cache"}


def test_a_zip_that_declares_too_much(tmp_path: Path):
    paths = kaggle_zip(tmp_path / "source")
    target = next(paths[0].glob("*.zip"))
    with zipfile.ZipFile(target, "a", zipfile.ZIP_DEFLATED) as packed_files:
        name = f"ILSVRC/Data/CLS-LOC/train/{WNIDS[0]}/{WNIDS[0]}_999.JPEG"
        packed_files.writestr(name, bytes((1 << 28) + 1))
    assert target.stat().st_size < 1 << 20
    refuse(paths, tmp_path / "data" / "imagenet", "declares 268,435,457 bytes")
