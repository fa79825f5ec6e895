"""Small public sets, by small archives that are packed in the same way."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import os
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile  # type: ignore[import-untyped]

from scripts import prepare as command
from tasks import small
from tasks.base import DataProblem
from tasks.imagenet import tiny
from tasks.imagenet.index import ImageIndex, check_folders
from tasks.librispeech import an4
from tasks.librispeech import prepare as librispeech
from tasks.librispeech.manifest import Manifest
from tasks.manifests import read_manifest
from tests.tasks.imagenet.archives import jpeg
from tests.tasks.librispeech.test_prepare import files_of, pack


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "sync", lambda: None)


def run(name: str, data: Path, *sources: Path) -> int:
    given = ["--from", *map(str, sources)] if sources else []
    return command.main(["small", "--set", name, "--data", str(data), *given])


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_multi30k(tmp_path: Path, monkeypatch, capsys):
    source, data = tmp_path / "mine", tmp_path / "data"
    source.mkdir()
    files = {}
    for name, (ours, _, _) in small.MULTI30K_FILES.items():
        packed = gzip.compress(f"{ours} line\n".encode())
        (source / name).write_bytes(packed)
        files[name] = (ours, len(packed), sha256(packed))
    monkeypatch.setattr(small, "MULTI30K_FILES", files)
    assert run("multi30k", data, source) == 0
    root = data / "multi30k"
    texts = {f"{s}.{lang}" for s in ("train", "valid", "test") for lang in ("en", "de")}
    assert {p.name for p in root.iterdir()} == texts | {"manifest.json"}
    assert (root / "valid.de").read_text() == "valid.de line\n"
    manifest = read_manifest(root)
    assert manifest is not None
    assert manifest.verdict() == "identical to the official set (checksums)"
    assert run("multi30k", data) == 0
    assert "nothing to do" in capsys.readouterr().out
    (source / "val.de.gz").write_bytes(gzip.compress(b"other\n"))
    assert run("multi30k", tmp_path / "other", source) == 2
    assert "val.de.gz: its SHA-256 is" in capsys.readouterr().err
    assert not (tmp_path / "other" / "multi30k").exists()


def test_downloads_are_checked_and_removed(tmp_path: Path, monkeypatch):
    packed = gzip.compress(b"a line\n")
    files = {name: (f[0], len(packed), sha256(packed)) for name, f in small.MULTI30K_FILES.items()}
    asked = []

    def fetch(urls, target, sums, report, *, size):
        asked.append((urls[0], sums, size))
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(packed)
        return True

    monkeypatch.setattr(small, "MULTI30K_FILES", files)
    monkeypatch.setattr(small, "fetch", fetch)
    assert run("multi30k", tmp_path) == 0
    assert len(asked) == 6
    assert asked[0][0].startswith("https://raw.githubusercontent.com/multi30k/dataset/")
    assert asked[0][1:] == ({"sha256": sha256(packed)}, len(packed))
    beside = {p.name for p in tmp_path.iterdir()}
    assert beside == {"multi30k", ".multi30k.lock"}


def test_without_a_network_the_message_names_the_file(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr(small, "MULTI30K", "http://127.0.0.1:1")
    monkeypatch.setattr("tasks.download.time.sleep", lambda _: None)
    assert run("multi30k", tmp_path) == 2
    shown = capsys.readouterr().err
    assert "could not be had from http://127.0.0.1:1/train.en.gz" in shown
    assert not (tmp_path / "multi30k").exists()


def tiny_zip(path: Path, **more: bytes) -> Path:
    classes = ["n01443537", "n02100735"]
    with zipfile.ZipFile(path, "w") as packed:
        for label, wnid in enumerate(classes):
            for i in range(3):
                name = f"tiny-imagenet-200/train/{wnid}/images/{wnid}_{i}.JPEG"
                packed.writestr(name, jpeg(label, i))
            packed.writestr(f"tiny-imagenet-200/train/{wnid}/{wnid}_boxes.txt", "x")
        lines = ""
        for i in range(4):
            packed.writestr(f"tiny-imagenet-200/val/images/val_{i}.JPEG", jpeg(i % 2, 50 + i))
            lines += f"val_{i}.JPEG\t{classes[i % 2]}\t0\t0\t9\t9\n"
        packed.writestr("tiny-imagenet-200/val/val_annotations.txt", lines)
        packed.writestr("tiny-imagenet-200/test/images/test_0.JPEG", jpeg(0, 90))
        packed.writestr("../evil.JPEG", b"x")
        for name, data in more.items():
            packed.writestr(name, data)
    return path


def test_tiny_imagenet(tmp_path: Path, monkeypatch):
    archive = tiny_zip(tmp_path / "tiny-imagenet-200.zip")
    known = tiny.TinyImageNet(
        sums={"md5": hashlib.md5(archive.read_bytes()).hexdigest()},
        train_images=6,
        val_images=4,
        classes=2,
    )
    monkeypatch.setattr(tiny, "TinyImageNet", lambda: known)
    assert run("tiny-imagenet-200", tmp_path / "data", tmp_path) == 0
    root = tmp_path / "data" / "tiny-imagenet-200"
    check_folders(root, 2)
    assert len(ImageIndex(root, "val")) == 4
    assert (root / "val" / "n02100735" / "val_3.JPEG").read_bytes() == jpeg(1, 53)
    with pytest.raises(DataProblem, match=r"\(6, 4, 2\) .* not \(7, 4, 2\)"):
        tiny.convert(archive, tmp_path / "x", lambda *_: None, replace(known, train_images=7))


def sphere(samples: np.ndarray) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, 16000, "PCM_16", format="NIST", endian="BIG")
    return file.getvalue()


def an4_archive(path: Path) -> Path:
    draw = np.random.default_rng(0)
    lines = {"train": "", "test": ""}
    with tarfile.open(path, "w:gz") as tar:

        def add(name: str, data: bytes) -> None:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))

        for split, folder, speakers in (
            ("train", "an4_clstk", ["faaa", "fbbb", "mccc", "mddd", "meee"]),
            ("test", "an4test_clstk", ["fzzz"]),
        ):
            for speaker in speakers:
                for name in (f"an10-{speaker}-b", f"an9-{speaker}-b", f"cen1-{speaker}-b"):
                    samples = draw.integers(-900, 900, 2000, dtype=np.int16)
                    add(f"an4/wav/{folder}/{speaker}/{name}.sph", sphere(samples))
                    lines[split] += f"<s> YES {'O H' if 'cen' in name else 'GO'} </s> ({name})\n"
            add(f"an4/etc/an4_{split}.transcription", lines[split].encode())
        add("../evil.sph", b"x")
    return path


def test_an4(tmp_path: Path, monkeypatch):
    archive = an4_archive(tmp_path / "an4_sphere.tar.gz")
    known = an4.An4(sums={"sha256": sha256(archive.read_bytes())}, digests={})
    monkeypatch.setattr(an4, "An4", lambda: known)
    assert run("an4", tmp_path / "data", archive) == 0
    root = tmp_path / "data" / "an4" / "LibriSpeech"
    sizes = {name: len(Manifest(root, [name])) for name in an4.SUBSETS}
    assert sizes == {"train-clean-100": 12, "dev-clean": 3, "test-clean": 3}
    dev = Manifest(root, ["dev-clean"])
    assert [dev.id(i) for i in range(3)] == ["9005-1-0000", "9005-1-0001", "9005-2-0000"]
    assert [dev.text(i) for i in range(3)] == ["yes go", "yes go", "yes o h"]
    assert dev.samples.tolist() == [2000] * 3
    wrong = replace(known, digests={"dev-clean": "0" * 64})
    with pytest.raises(DataProblem, match="dev-clean differs from AN4's"):
        an4.convert(archive, tmp_path / "x", lambda *_: None, wrong)


def test_an4_gets_the_places_of_the_real_one():
    """Every one of the 1,078 recordings, by its own name."""
    root = Path(os.environ.get("DATA_ROOT", "/nowhere")) / "an4" / "LibriSpeech"
    if not (root / "an4_map.tsv").is_file():
        pytest.skip("needs $DATA_ROOT/an4/LibriSpeech/an4_map.tsv")
    with (root / "an4_map.tsv").open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    recordings = [
        an4.Recording(row["an4_id"].split("-")[1], row["an4_id"], row["subset"] == "test-clean")
        for row in rows
    ]
    assert len(rows) == 1_078
    places = an4.place_recordings(recordings)
    assert places == {row["an4_id"]: (row["subset"], row["utt"]) for row in rows}
    for subset, digest in an4.An4().digests.items():
        assert Manifest(root, [subset], lambda _: None).digest() == digest


def test_mini_librispeech(tmp_path: Path, monkeypatch, capsys):
    source = tmp_path / "mine"
    source.mkdir()
    subsets = {}
    for name in librispeech.MINI_SUBSETS:
        packed = pack(files_of(name))
        (source / f"{name}.tar.gz").write_bytes(packed)
        md5 = hashlib.md5(packed).hexdigest()
        subsets[name] = librispeech.Subset(None, md5, "", None, about=len(packed))
    mini = replace(librispeech.MINI_LIBRISPEECH, subsets=subsets)
    monkeypatch.setattr(librispeech, "MINI_LIBRISPEECH", mini)
    assert run("mini-librispeech", tmp_path / "data", source) == 0
    root = tmp_path / "data" / "mini-librispeech"
    assert (root / "dev-clean").readlink() == Path("dev-clean-2")
    assert run("mini-librispeech", tmp_path / "data") == 0
    assert "nothing to do" in capsys.readouterr().out
    (source / "dev-clean-2.tar.gz").unlink()
    assert run("mini-librispeech", tmp_path / "other", source) == 2
    assert "must have train-clean-5.tar.gz and dev-clean-2.tar.gz" in capsys.readouterr().err


def test_real_addresses():
    assert librispeech.MINI_LIBRISPEECH.mirrors[0] == "https://www.openslr.org/resources/31"
    for _, size, digest in small.MULTI30K_FILES.values():
        assert size > 20_000
        assert len(digest) == 64
    assert len(tiny.TinyImageNet().sums["md5"]) == 32
    assert len(an4.An4().sums["sha256"]) == 64
    assert set(small.SMALL) == {
        "multi30k",
        "wikitext-2",
        "an4",
        "tiny-imagenet-200",
        "mini-librispeech",
        "cifar10",
    }


def test_wikitext_2(tmp_path: Path, capsys):
    """The real one, where it is at hand: its counts are checked and it is linked."""
    root = Path(os.environ.get("DATA_ROOT", "/nowhere")) / "wikitext-2"
    if not root.is_dir():
        pytest.skip("needs $DATA_ROOT/wikitext-2/wiki.{train,valid,test}.tokens")
    assert run("wikitext-2", tmp_path, root) == 0
    assert "every count is the official set's" in capsys.readouterr().out
    assert (tmp_path / "wikitext-2" / "wiki.train.tokens").is_symlink()
