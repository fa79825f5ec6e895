"""English-German pairs in every form that people have them in: the same bits from each."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from tasks.base import Context, DataProblem
from tasks.manifests import Manifest, read_manifest
from tasks.sources import recognise
from tasks.wmt14 import forms
from tasks.wmt14.forms import FORMS, Statmt, split_of_text
from tasks.wmt14.made_up import make_made_up
from tasks.wmt14.statmt import Wmt
from tasks.wmt14.task import Wmt14, Wmt14DataOptions, Wmt14ModelOptions
from tests.tasks.imagenet.archives import tree
from tests.tasks.one_step import bits_after_one_step

SPLITS, LANGUAGES = ("train", "valid", "test"), ("en", "de")
NAMES = [f"{split}.{language}" for split in SPLITS for language in LANGUAGES]


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> dict[str, bytes]:
    root = tmp_path_factory.mktemp("texts") / "made-up"
    make_made_up(root)
    lines = {"train": 60, "valid": 6, "test": 5}
    found = {}
    for name in NAMES:
        some = (root / name).read_bytes().splitlines(keepends=True)
        found[name] = b"".join(some[: lines[name.partition(".")[0]]])
    return found


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setattr("os.sync", lambda: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(forms, "OFFICIAL_PAIRS", {"valid": {"pairs": 6}, "test": {"pairs": 5}})


def write(place: Path, files: Mapping[str, bytes]) -> list[Path]:
    for name, data in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(data)
    return [place]


def tar(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def plain(place: Path, texts: Mapping[str, bytes]) -> list[Path]:
    return write(place, texts)


def packed(place: Path, texts: Mapping[str, bytes]) -> list[Path]:
    return write(place, {f"{name}.gz": gzip.compress(data) for name, data in texts.items()})


def other_names(place: Path, texts: Mapping[str, bytes]) -> list[Path]:
    """Two corpora for training, and the sets of newstest."""
    named: dict[str, bytes] = {}
    for language in LANGUAGES:
        train = texts[f"train.{language}"].splitlines(keepends=True)
        named[f"commoncrawl.de-en.{language}"] = b"".join(train[:20]).removesuffix(b"\n")
        named[f"europarl-v7.de-en.{language}"] = b"".join(train[20:])
        named[f"newstest2013.{language}"] = texts[f"valid.{language}"]
        named[f"newstest2014.{language}"] = texts[f"test.{language}"]
        named[f"newstest2012.{language}"] = b"not\nasked\nfor\n"
    return write(place, named)


def tarballs(place: Path, texts: Mapping[str, bytes]) -> list[Path]:
    """As Multi30k's: one for each split, with val for valid."""
    files = {}
    for split, name in (("train", "train"), ("valid", "val"), ("test", "test")):
        members = {f"./{name}.{lang}": texts[f"{split}.{lang}"] for lang in LANGUAGES}
        files[f"{name}ing.tar.gz"] = tar(members | {"../evil": b"x", "README": b"x"})
    return write(place, files)


def zipped(place: Path, texts: Mapping[str, bytes]) -> list[Path]:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in texts.items():
            archive.writestr(f"corpus/{name}", data)
    return [write(place, {"corpus.zip": out.getvalue()})[0] / "corpus.zip"]


def parquet(place: Path, texts: Mapping[str, bytes]) -> list[Path]:
    for split, name in (("train", "train"), ("valid", "validation"), ("test", "test")):
        sides = [texts[f"{split}.{lang}"].decode().splitlines() for lang in LANGUAGES]
        rows = [{"translation": {"de": de, "en": en}} for en, de in zip(*sides, strict=True)]
        parts = 2 if split == "train" else 1
        size = -(-len(rows) // parts)
        for i in range(parts):
            target = place / "de-en" / f"{name}-0000{i}-of-0000{parts}.parquet"
            target.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_pylist(rows[i * size : (i + 1) * size]), target)
    return [place]


FORMATS: dict[str, tuple[Callable[[Path, Mapping[str, bytes]], list[Path]], str, str]] = {
    "plain": (plain, "own texts", "linked"),
    "gz": (packed, "own texts", "unpacked"),
    "other names": (other_names, "own texts", "unpacked"),
    "tarballs": (tarballs, "texts in archives", "unpacked"),
    "zip": (zipped, "texts in archives", "unpacked"),
    "parquet": (parquet, "Hugging Face parquet", "unpacked"),
}


def prepared(paths: list[Path], root: Path) -> tuple[Manifest, bool]:
    source, _ = recognise(FORMS, paths, "wmt14")
    return source.prepare(root, "wmt14", lambda *_: None, lambda _: None)


def bits(data_root: Path) -> str:
    model = Wmt14ModelOptions(
        encoder_layers=1, decoder_layers=1, d_model=8, d_ff=12, heads=2, vocabulary=100
    )
    context = Context(
        seed=0, micro=200, micro_batches=2, eval_batch=4, data_workers=0, data_root=data_root
    )
    return bits_after_one_step(Wmt14(model, Wmt14DataOptions(), context))


@pytest.mark.parametrize("name", FORMATS)
def test_every_form_gives_the_same_bits(name: str, tmp_path: Path, texts):
    make, form, action = FORMATS[name]
    paths = make(tmp_path / "source", texts)
    before = tree(tmp_path / "source")
    root = tmp_path / "data" / "wmt14"
    manifest, is_new = prepared(paths, root)
    assert is_new
    assert tree(tmp_path / "source") == before
    assert {s: p.counts["pairs"] for s, p in manifest.parts.items()} == {
        "train": 60,
        "valid": 6,
        "test": 5,
    }
    assert {(p.form, p.action) for p in manifest.parts.values()} == {(form, action)}
    assert manifest.differences == ["train: 60 pairs that are not compared with WMT's archives"]
    for file in NAMES:
        assert (root / file).read_bytes() == texts[file]
    plain(tmp_path / "reference" / "wmt14", texts)
    assert bits(root.parent) == bits(tmp_path / "reference")
    assert prepared(paths, root) == (manifest, False)


def test_statmt_archives(tmp_path: Path, texts, monkeypatch):
    """The same pairs through the archives of statmt.org."""
    known = Wmt()
    files: dict[str, bytes] = {}

    def trusted(corpus):
        en, de = (texts[f"{corpus.split}.{lang}"] for lang in LANGUAGES)
        if corpus.split == "train":
            n = ("europarl-v7", "commoncrawl", "news-commentary-v11").index(corpus.name) * 20
            en, de = (b"".join(t.splitlines(keepends=True)[n : n + 20]) for t in (en, de))
        else:
            en, de = (sgm(t) for t in (en, de))
        data = tar(dict(zip(corpus.texts, (en, de), strict=True)))
        files[corpus.archive] = data
        sums = {"md5": hashlib.md5(data).hexdigest()}
        return replace(corpus, sums=sums, size=len(data), about=100_000)

    expected = Wmt(
        tuple(map(trusted, known.always)), {"v11": trusted(known.news_commentary["v11"])}
    )
    monkeypatch.setattr(Statmt, "expected", expected)
    write(tmp_path / "source", files)
    root = tmp_path / "data" / "wmt14"
    manifest, is_new = prepared([tmp_path / "source"], root)
    assert is_new
    assert manifest.verdict() == "identical to the official set (checksums)"
    plain(tmp_path / "reference" / "wmt14", texts)
    assert bits(root.parent) == bits(tmp_path / "reference")
    (tmp_path / "source" / "test.tgz").unlink()
    with pytest.raises(DataProblem, match=r"missing test\.tgz; without --from all archives are d"):
        prepared([tmp_path / "source"], tmp_path / "other" / "wmt14")


def sgm(text: bytes) -> bytes:
    segments = text.decode().splitlines()
    lines = (f'<seg id="{i}">{s}</seg>' for i, s in enumerate(segments, 1))
    return ('<doc docid="a">\n' + "\n".join(lines) + "\n</doc>\n").encode()


def refuse(paths: list[Path], root: Path, message: str) -> None:
    with pytest.raises(DataProblem, match=message) as caught:
        prepared(paths, root)
    assert "\n" not in str(caught.value)
    assert not root.exists()


def test_half_copied_and_wrong_sources(tmp_path: Path, texts):
    root = tmp_path / "data" / "wmt14"
    write(tmp_path / "a", {"notes.txt": b"x"})
    refuse([tmp_path / "a"], root, r"not recognised as wmt14; found notes\.txt\. Accepted: statmt")
    some = {name: data for name, data in texts.items() if name != "test.de"}
    plain(tmp_path / "b", some)
    refuse([tmp_path / "b"], root, r"no test in both languages; expected test\.en and test\.de")
    plain(tmp_path / "c", texts | {"train.de": texts["train.de"] + b"mehr\n"})
    refuse([tmp_path / "c"], root, r"train\.de: 61 lines, but .*train\.en has 60")
    packed(tmp_path / "d", texts)
    file = tmp_path / "d" / "train.de.gz"
    file.write_bytes(file.read_bytes()[:-30])
    refuse([tmp_path / "d"], root, r"train\.de\.gz: cannot be read: Compressed file ended")
    plain(tmp_path / "e", texts | {"dev.en": b"a\n", "dev.de": b"b\n"})
    refuse([tmp_path / "e"], root, "several texts for valid; name one")
    parquet(tmp_path / "f", texts)
    next((tmp_path / "f").rglob("validation*")).unlink()
    refuse([tmp_path / "f"], root, "no parquet files of valid")


def test_bombs_are_refused_before_anything_is_written(tmp_path: Path, texts):
    root = tmp_path / "data" / "wmt14"
    bomb = tar(dict(texts) | {"train.en": bytes(1 << 26)})
    assert len(bomb) < 1 << 20
    write(tmp_path / "a", {"corpus.tar.gz": bomb})
    refuse([tmp_path / "a"], root, "train.en declares 67,108,864 bytes, too many for")
    packed(tmp_path / "b", texts)
    (tmp_path / "b" / "train.en.gz").write_bytes(gzip.compress(bytes(1 << 26)))
    refuse([tmp_path / "b"], root, "more than [0-9,]+ bytes come out of it")


def test_own_texts_in_place_are_left_as_they_are(tmp_path: Path, texts):
    root = tmp_path / "data" / "wmt14"
    plain(root, texts)
    before = tree(root)
    manifest, is_new = prepared([root], root)
    assert not is_new
    assert tree(root) == before
    assert read_manifest(root) == manifest


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train", "train"),
        ("europarl-v7.de-en", "train"),
        ("news-commentary-v11.de-en", "train"),
        ("training", "train"),
        ("val", "valid"),
        ("dev", "valid"),
        ("newstest2013-src", "valid"),
        ("newstest2014-deen-ref", "test"),
        ("test_2016_flickr", "test"),
        ("newstest2012", None),
        ("devour", None),
        ("README", None),
    ],
)
def test_splits_by_names(name: str, split: str | None):
    assert split_of_text(name) == split
