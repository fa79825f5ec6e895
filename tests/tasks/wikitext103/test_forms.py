"""WikiText-103 in every form that people have it in: the same bits, and exact counts."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from tasks.base import Context, DataProblem
from tasks.manifests import Manifest
from tasks.sources import recognise
from tasks.wikitext103.forms import FORMS, WikiTextSource
from tasks.wikitext103.model import TransformerXLOptions
from tasks.wikitext103.prepare import Counts, WikiText
from tasks.wikitext103.task import WikiText103, WikiTextDataOptions
from tests.tasks.imagenet.archives import tree
from tests.tasks.one_step import bits_after_one_step

WORDS = [f"w{i}" for i in range(30)]
LINES = [f" {' '.join(WORDS[i : i + 9])} <unk> \n" for i in range(0, 30, 3)]
TEXTS = {
    "train": " \n = Ölpest = \n \n" + "".join(LINES * 3),
    "valid": " \n" + "".join(LINES[:4]),
    "test": "".join(LINES[4:7]),
}
VOCABULARY = 34  # 30 words, <unk>, =, Ölpest and <eos>


def counts(split: str) -> Counts:
    text = TEXTS[split]
    return Counts(text.count("\n"), text.count("\n") + len(text.split()), 10_000)


def pack(path: Path, files: Mapping[str, str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, text)
    return path


OFFICIAL = {f"wikitext-103/wiki.{s}.tokens": text for s, text in TEXTS.items()}


@pytest.fixture(autouse=True)
def expected(monkeypatch, tmp_path) -> WikiText:
    monkeypatch.setattr("os.sync", lambda: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    archive = pack(tmp_path / "official.zip", OFFICIAL)
    known = WikiText(
        sums={"md5": hashlib.md5(archive.read_bytes()).hexdigest()},
        train=counts("train"),
        valid=counts("valid"),
        test=counts("test"),
        vocabulary=VOCABULARY,
    )
    monkeypatch.setattr(WikiTextSource, "expected", known)
    return known


def official_zip(place: Path) -> list[Path]:
    return [pack(place / "downloaded (1).zip", OFFICIAL)]


def packed_again(place: Path) -> list[Path]:
    others = {"__MACOSX/x": "x", "../evil": "x"}
    return [pack(place / "wiki.zip", {f"a/{k}": v for k, v in OFFICIAL.items()} | others).parent]


def folder(place: Path) -> list[Path]:
    place.mkdir(parents=True)
    for split, text in TEXTS.items():
        (place / f"wiki.{split}.tokens").write_text(text)
    return [place]


def parquet(place: Path, config: str = "wikitext-103-v1") -> list[Path]:
    """As Hugging Face has it: a row keeps the end of its line, and an empty line is empty."""
    for split, name in (("train", "train"), ("valid", "validation"), ("test", "test")):
        rows = [{"text": line if line.strip() else ""} for line in TEXTS[split].splitlines(True)]
        target = place / "snapshots" / "b08601" / config / f"{name}-00000-of-00001.parquet"
        target.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows), target)
    return [place]


FORMATS: dict[str, tuple[Callable[[Path], list[Path]], str, str]] = {
    "zip": (official_zip, "zip", "unpacked"),
    "packed again": (packed_again, "zip", "unpacked"),
    "folder": (folder, "folder", "linked"),
    "parquet": (parquet, "Hugging Face parquet", "unpacked"),
}


def prepared(paths: list[Path], root: Path) -> tuple[Manifest, bool]:
    source, _ = recognise(FORMS, paths, "wikitext-103")
    return source.prepare(root, "wikitext-103", lambda *_: None, lambda _: None)


def bits(data_root: Path) -> str:
    model = TransformerXLOptions(
        VOCABULARY, layers=1, d_model=8, heads=2, d_head=4, d_inner=12, cutoffs=[10, 20]
    )
    data = WikiTextDataOptions(segment=6, memory=9, eval_columns=2)
    context = Context(
        seed=0, micro=12, micro_batches=2, eval_batch=2, data_workers=0, data_root=data_root
    )
    return bits_after_one_step(WikiText103(model, data, context))


@pytest.mark.parametrize("name", FORMATS)
def test_every_form_gives_the_same_bits(name: str, tmp_path: Path):
    make, form, action = FORMATS[name]
    paths = make(tmp_path / "source")
    before = tree(tmp_path / "source")
    root = tmp_path / "data" / "wikitext-103"
    manifest, is_new = prepared(paths, root)
    assert is_new
    assert tree(tmp_path / "source") == before
    assert {(p.form, p.action) for p in manifest.parts.values()} == {(form, action)}
    assert manifest.parts["train"].counts["vocabulary"] == VOCABULARY
    assert manifest.verdict() == (
        "identical to the official set (checksums)"
        if name == "zip"
        else "every count is the official set's"
    )
    for split, text in TEXTS.items():
        assert (root / f"wiki.{split}.tokens").read_text() == text
    folder(tmp_path / "reference" / "wikitext-103")
    assert bits(root.parent) == bits(tmp_path / "reference")
    assert prepared(paths, root) == (manifest, False)


def refuse(paths: list[Path], root: Path, message: str) -> None:
    with pytest.raises(DataProblem, match=message) as caught:
        prepared(paths, root)
    assert "\n" not in str(caught.value)
    assert not root.exists()


def test_the_raw_variant_is_refused(tmp_path: Path):
    root, message = tmp_path / "data" / "wikitext-103", "the -raw variant has other words"
    raw = {f"wikitext-103-raw/wiki.{split}.raw": text for split, text in TEXTS.items()}
    refuse([pack(tmp_path / "a" / "raw.zip", raw)], root, f"raw.zip: {message}")
    for name, text in raw.items():
        (tmp_path / "b" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "b" / name).write_text(text)
    refuse([tmp_path / "b"], root, message)
    refuse(parquet(tmp_path / "c", "wikitext-103-raw-v1"), root, message)
    both = tmp_path / "d"
    parquet(both, "wikitext-103-raw-v1")
    parquet(both)
    assert prepared([both], tmp_path / "other" / "wikitext-103")[1]


def test_raw_text_under_another_name(tmp_path: Path, expected, monkeypatch):
    monkeypatch.setattr(WikiTextSource, "expected", replace(expected, vocabulary=VOCABULARY - 1))
    (paths,) = folder(tmp_path / "a")
    for file in paths.iterdir():
        file.write_text(file.read_text().replace("<unk>", "strange"))
    refuse([paths], tmp_path / "data" / "w", r"34 words in its vocabulary .* perhaps of the -raw")


def test_counts_are_exact_whatever_the_source(tmp_path: Path):
    root = tmp_path / "data" / "wikitext-103"
    for name, (make, *_) in FORMATS.items():
        paths = make(tmp_path / name)
        if name in ("zip", "packed again"):
            file = next((tmp_path / name).glob("*.zip"))
            pack(file, OFFICIAL | {"wikitext-103/wiki.valid.tokens": TEXTS["valid"] + " more \n"})
        elif name == "folder":
            file = tmp_path / name / "wiki.valid.tokens"
            file.write_text(file.read_text() + " more \n")
        else:
            file = next((tmp_path / name).rglob("validation*"))
            rows = [*pq.read_table(file).to_pylist(), {"text": " more \n"}]
            pq.write_table(pa.Table.from_pylist(rows), file)
        refuse(paths, root, r"wiki\.valid\.tokens has 6 lines, but must have 5")


def test_half_copied(tmp_path: Path):
    root = tmp_path / "data" / "wikitext-103"
    folder(tmp_path / "a")
    (tmp_path / "a" / "wiki.test.tokens").unlink()
    refuse([tmp_path / "a"], root, r"a: missing wiki\.test\.tokens; copy it again")
    (archive,) = official_zip(tmp_path / "b")
    archive.write_bytes(archive.read_bytes()[:-40])
    refuse([archive], root, "not a whole zip archive; copy or download it again")
