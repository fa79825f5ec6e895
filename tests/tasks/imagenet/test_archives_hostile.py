"""ImageNet's tars as an attacker writes them: bombs, sparse files, headers that claim memory."""

from __future__ import annotations

import gzip
import io
import os
import resource
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tasks.base import DataProblem
from tasks.imagenet.archives import unpack
from tests.tasks.imagenet.archives import (
    DEVKIT,
    REPO,
    TRAIN,
    WNIDS,
    class_members,
    devkit_members,
    jpeg,
    silent,
    store,
    tar_of,
    train_tar,
    val_members,
)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(os, "sync", lambda: None)


def refused(folder: Path, root: Path, expected, message: str) -> None:
    """One line, nothing but whole classes written, and nothing outside of the data root."""
    before = {p for p in folder.parent.rglob("*") if not p.is_relative_to(root.parent)}
    with pytest.raises(DataProblem, match=message) as caught:
        unpack(folder, root, silent, expected=expected)
    assert "\n" not in str(caught.value)
    after = {p for p in folder.parent.rglob("*") if not p.is_relative_to(root.parent)}
    assert after == before
    assert not list(root.rglob("*.partial"))
    assert not (root / "complete.json").exists()


def with_class(content: bytes):
    """The tar of train with other bytes for its first class."""
    return tar_of(
        [(f"{w}.tar", content if w == WNIDS[0] else tar_of(m)) for w, m in class_members().items()]
    )


def test_a_tar_in_a_class(tmp_path: Path, root: Path):
    nested = tar_of([(f"{WNIDS[0]}.tar", tar_of(class_members()[WNIDS[0]]))])
    expected = store(tmp_path / "a", train=with_class(nested))
    refused(tmp_path / "a", root, expected, f"unexpected member '{WNIDS[0]}.tar'")


def test_a_compressed_class(tmp_path: Path, root: Path):
    """A gzip bomb in a class's place is not unpacked: a class is a plain tar."""
    bomb = gzip.compress(tar_of([(f"{WNIDS[0]}_1.JPEG", bytes(1 << 26))]))
    expected = store(tmp_path / "a", train=with_class(bomb))
    refused(tmp_path / "a", root, expected, "not a whole tar archive|cut off or damaged")


def test_a_file_that_declares_more_than_the_archive_has(tmp_path: Path, root: Path):
    member = tarfile.TarInfo(f"{WNIDS[0]}_1.JPEG")
    member.size = 1 << 40
    content = member.tobuf() + bytes(4096)
    expected = store(tmp_path / "a", train=with_class(content))
    refused(tmp_path / "a", root, expected, "cut off: .* should have 1,099,511,627,776 bytes")


def test_a_sparse_file(tmp_path: Path, root: Path):
    """GNU's sparse files have more bytes unpacked than packed."""
    member = tarfile.TarInfo(f"{WNIDS[0]}_1.JPEG")
    member.type, member.size = tarfile.GNUTYPE_SPARSE, 512
    content = member.tobuf(tarfile.GNU_FORMAT) + bytes(2048)
    expected = store(tmp_path / "a", train=with_class(content))
    refused(tmp_path / "a", root, expected, "unexpected member|not a whole tar")


@pytest.mark.parametrize("field", ["path", "linkpath", "size"])
def test_pax_fields_do_not_override_the_checks(field: str, tmp_path: Path, root: Path):
    evil = {"path": "../../evil.JPEG", "linkpath": "/etc/passwd", "size": str(1 << 40)}[field]
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo(f"{WNIDS[0]}_1.JPEG")
        data = jpeg(0, 1)
        member.size = len(data)
        if field == "linkpath":
            member.type = tarfile.SYMTYPE
        member.pax_headers = {field: evil}
        tar.addfile(member, io.BytesIO(data))
    expected = store(tmp_path / "a", train=with_class(file.getvalue()))
    refused(tmp_path / "a", root, expected, "unexpected member|cut off")
    assert not list(tmp_path.rglob("*evil*"))


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.XGLTYPE])
def test_a_header_that_claims_memory(kind: bytes, tmp_path: Path):
    """4 GB of zeros as a name, in a file with holes: refused in 300 MB more than Python needs."""
    member = tarfile.TarInfo("././@LongLink")
    member.type, member.size = kind, 4 << 30
    expected = store(tmp_path / "a")
    archive = tmp_path / "a" / TRAIN
    archive.write_bytes(member.tobuf(tarfile.GNU_FORMAT))
    os.truncate(archive, 5 << 30)
    code = (
        "import resource, sys; from pathlib import Path\n"
        "from tasks.imagenet.ilsvrc2012 import class_archives, ILSVRC2012\n"
        "now = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (now + (300 << 20),) * 2)\n"
        "class_archives(Path(sys.argv[1]), ILSVRC2012)\n"
    )
    assert resource.getpagesize() > 0
    assert expected.classes == 4
    done = subprocess.run(
        [sys.executable, "-c", code, str(archive)], cwd=REPO, capture_output=True, text=True
    )
    assert "a header declares 4,294,967,296 bytes" in done.stderr
    assert "MemoryError" not in done.stderr


def test_a_bomb_in_the_development_kit(tmp_path: Path, root: Path):
    kit = tar_of([*devkit_members(), ("ILSVRC2012_devkit_t12/more", bytes(1 << 26))], "w:gz")
    assert len(kit) < 1 << 20
    expected = store(tmp_path / "a", devkit=kit)
    refused(tmp_path / "a", root, expected, f"{DEVKIT}: .*more' declares 67,108,864 bytes")


def test_names_that_differ_in_case_or_dots_only(tmp_path: Path, root: Path):
    members = class_members()
    name, data = members[WNIDS[0]][0]
    members[WNIDS[0]].append((f"./{name}", data))
    expected = store(tmp_path / "a", train=train_tar(members))
    refused(tmp_path / "a", root, expected, "is in it twice")
    members = class_members()
    members[WNIDS[0]].append((name.replace("JPEG", "jpeg"), data))
    expected = store(tmp_path / "b", train=train_tar(members))
    refused(tmp_path / "b", root, expected, "unexpected member")


def test_a_validation_image_twice(tmp_path: Path, root: Path):
    expected = store(tmp_path / "a", val=tar_of([*val_members(), val_members()[0]]))
    refused(tmp_path / "a", root, expected, "is in it twice")


def test_a_million_empty_headers_end(tmp_path: Path, root: Path):
    """Many members cost time in their number only."""
    header = tarfile.TarInfo(f"{WNIDS[0]}_1.JPEG").tobuf()
    expected = store(tmp_path / "a", train=with_class(header * 20_000 + bytes(1024)))
    refused(tmp_path / "a", root, expected, "is empty")
