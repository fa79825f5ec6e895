"""LibriSpeech in every form that people have it in: the same bits, and nothing written into it."""

from __future__ import annotations

import hashlib
import io
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
import soundfile  # type: ignore[import-untyped]

from tasks.base import Context, DataProblem
from tasks.librispeech.forms import FORMS, LibriSpeechSource, ParquetSpeech, subset_of
from tasks.librispeech.model import JasperOptions
from tasks.librispeech.prepare import LibriSpeech as Official
from tasks.librispeech.prepare import Subset, prepare
from tasks.librispeech.task import LibriSpeech, LibriSpeechDataOptions
from tasks.manifests import Manifest, read_manifest
from tasks.sources import recognise
from tests.tasks.imagenet.archives import tree

SUBSETS = ("train-clean-100", "dev-clean")
UTTERANCES = {"train-clean-100": 6, "dev-clean": 3}
HF_NAMES = {
    "train-clean-100": "clean/train.100/0000.parquet",
    "dev-clean": "clean/validation/0000.parquet",
}


def utterances(subset: str) -> dict[str, tuple[str, np.ndarray]]:
    """Texts and sounds by id; the first speaker has two chapters."""
    draw = np.random.default_rng(len(subset))
    found = {}
    for i in range(UTTERANCES[subset]):
        samples = draw.integers(-3000, 3000, 4000 + 500 * i, dtype=np.int16)
        found[f"{1 + i // 4}-{10 + i // 2}-{i % 2:04}"] = ("A CAT SAT"[: 5 + i % 4], samples)
    return found


def sound(samples: np.ndarray, kind: str = "FLAC") -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, 16000, "PCM_16", format=kind)
    return file.getvalue()


def files(subset: str, kind: str = "FLAC") -> dict[str, bytes]:
    made: dict[str, bytes] = {}
    lines: dict[str, str] = {}
    for name, (text, samples) in utterances(subset).items():
        speaker, chapter, _ = name.split("-")
        place = f"LibriSpeech/{subset}/{speaker}/{chapter}"
        made[f"{place}/{name}.{kind.lower()}"] = sound(samples, kind)
        transcript = f"{place}/{speaker}-{chapter}.trans.txt"
        lines[transcript] = lines.get(transcript, "") + f"{name} {text}\n"
    return made | {name: text.encode() for name, text in lines.items()}


def tarball(subset: str) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for name, data in files(subset).items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return file.getvalue()


ARCHIVES = {subset: tarball(subset) for subset in SUBSETS}


@pytest.fixture(autouse=True)
def _small_official_set(monkeypatch, tmp_path):
    monkeypatch.setattr("os.sync", lambda: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    known = {
        name: Subset(len(data), hashlib.md5(data).hexdigest(), "", UTTERANCES[name])
        for name, data in ARCHIVES.items()
    }
    monkeypatch.setattr(LibriSpeechSource, "expected", replace(Official(), subsets=known))


def archives(place: Path) -> list[Path]:
    place.mkdir(parents=True)
    for subset, data in ARCHIVES.items():
        (place / f"{subset}.tar.gz").write_bytes(data)
    return [place]


def folders(place: Path, kind: str = "FLAC") -> list[Path]:
    for subset in SUBSETS:
        for name, data in files(subset, kind).items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(data)
    return [place]


def parquet(place: Path) -> list[Path]:
    for subset, name in HF_NAMES.items():
        rows = [
            {
                "file": f"{key}.flac",
                "audio": {"bytes": sound(samples), "path": f"{key}.flac"},
                "text": text,
                "id": key,
            }
            for key, (text, samples) in reversed(utterances(subset).items())
        ]
        target = place / "datasets--openslr--librispeech_asr" / "snapshots" / "71cacb" / name
        target.parent.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows), target, row_group_size=2)
    return [place]


FORMATS: dict[str, tuple[Callable[[Path], list[Path]], str, str]] = {
    "archives": (archives, "official archives", "unpacked"),
    "FLAC": (folders, "folders", "linked"),
    "WAV": (lambda place: folders(place, "WAV"), "folders", "linked"),
    "parquet": (parquet, "Hugging Face parquet", "unpacked"),
}


def prepared(paths: list[Path], root: Path, *subsets: str) -> tuple[Manifest, bool]:
    source, _ = recognise(FORMS, paths, "librispeech")
    assert isinstance(source, LibriSpeechSource)
    if subsets:
        source.choose(subsets)
    return source.prepare(root, "librispeech", lambda *_: None, lambda _: None)


def make_task(data_root: Path) -> LibriSpeech:
    model = JasperOptions(
        repeats=[1, 1, 1, 1], kernels=[5, 5, 5, 1], widths=[6, 6, 8, 8], dropouts=[0.1] * 4
    )
    data = LibriSpeechDataOptions(train=["train-clean-100"], held_out=["dev-clean"])
    context = Context(
        seed=0, micro=2, micro_batches=2, eval_batch=2, data_workers=0, data_root=data_root
    )
    return LibriSpeech(model, data, context)


def bits(data_root: Path) -> str:
    from tests.tasks.one_step import bits_after_one_step

    return bits_after_one_step(make_task(data_root))


@pytest.mark.parametrize("name", FORMATS)
def test_every_form_gives_the_same_bits(name: str, tmp_path: Path):
    folders(tmp_path / "reference")
    make, form, action = FORMATS[name]
    paths = make(tmp_path / "source")
    before = tree(tmp_path / "source")
    root = tmp_path / "data" / "LibriSpeech"
    manifest, is_new = prepared(paths, root)
    assert is_new
    assert tree(tmp_path / "source") == before
    for subset, count in UTTERANCES.items():
        part = manifest.parts[subset]
        assert (part.form, part.action) == (form, action)
        assert part.counts == {"utterances": count}
        assert not part.differences
    assert bits(root.parent) == bits(tmp_path / "reference")
    assert prepared(paths, root) == (manifest, False)
    if name == "FLAC":
        assert (root / "dev-clean").is_symlink()
    reference = make_task(tmp_path / "reference")
    assert make_task(root.parent)._train.digest() == reference._train.digest()


def test_subsets_are_added_one_after_another(tmp_path: Path):
    root = tmp_path / "data" / "LibriSpeech"
    prepared(folders(tmp_path / "a"), root, "dev-clean")
    manifest, is_new = prepared(parquet(tmp_path / "b"), root, "train-clean-100")
    assert is_new
    assert {name: part.form for name, part in manifest.parts.items()} == {
        "dev-clean": "folders",
        "train-clean-100": "Hugging Face parquet",
    }
    assert read_manifest(root) == manifest
    make_task(root.parent).prepare_data()
    with pytest.raises(DataProblem, match="test-other: not among the source's subsets"):
        prepared([tmp_path / "a"], root, "test-other")


def test_what_lies_in_the_folder_is_counted_in_place(tmp_path: Path):
    """Nothing is written into it, so it may be read-only."""
    folders(tmp_path / "data")
    root = tmp_path / "data" / "LibriSpeech"
    before = tree(root)
    for expected in (False, False):
        made = prepare(
            root, lambda *_: None, SUBSETS, expected=LibriSpeechSource.expected, say=lambda _: None
        )
        assert made == expected
    assert tree(root) == before
    manifest = read_manifest(root)
    assert manifest is not None
    assert {part.action for part in manifest.parts.values()} == {"in place"}


def refuse(paths: list[Path], root: Path, message: str) -> None:
    with pytest.raises(DataProblem, match=message) as caught:
        prepared(paths, root)
    assert "\n" not in str(caught.value)
    assert not root.exists()


def test_half_copied_and_wrong_sources(tmp_path: Path):
    root = tmp_path / "data" / "LibriSpeech"
    (tmp_path / "e").mkdir()
    refuse([tmp_path / "e"], root, r"not recognised as librispeech; found nothing\. Accepted: off")
    folders(tmp_path / "a")
    next((tmp_path / "a").rglob("1-10-0001.flac")).unlink()
    refuse([tmp_path / "a"], root, r"1/10/1-10-0001\.flac is missing; copy or download it again")
    folders(tmp_path / "b")
    next((tmp_path / "b").rglob("*.flac")).write_bytes(b"")
    refuse([tmp_path / "b"], root, r"\.flac is empty; copy or download it again")
    folders(tmp_path / "c")
    next((tmp_path / "c").rglob("*.trans.txt")).write_bytes(b"\xff\xfe")
    refuse([tmp_path / "c"], root, r"has no .*\.trans\.txt that can be read")
    archives(tmp_path / "d")
    file = tmp_path / "d" / "dev-clean.tar.gz"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataProblem, match=r"dev-clean.tar.gz: .* bytes, but must have"):
        prepared([tmp_path / "d"], root)
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "train-clean-5.tar.gz").write_bytes(b"x")
    with pytest.raises(
        DataProblem, match=r"Mini LibriSpeech, a set of its own: .* small --set mini"
    ):
        prepared([tmp_path / "m"], root)


def test_fewer_utterances_are_a_difference(tmp_path: Path):
    folders(tmp_path / "a")
    shutil.rmtree(tmp_path / "a" / "LibriSpeech" / "dev-clean" / "1" / "11")
    manifest, _ = prepared([tmp_path / "a"], tmp_path / "data" / "LibriSpeech")
    assert manifest.differences == ["dev-clean: 1 utterances fewer (2 instead of 3)"]


def test_wrong_parquet(tmp_path: Path):
    root = tmp_path / "data" / "LibriSpeech"
    parquet(tmp_path / "a")
    file = next((tmp_path / "a").rglob("train.100/*.parquet"))
    good = pq.read_table(file).to_pylist()
    cases = {
        "must be an id as 1089-134686-0000": {"id": "../../evil", "file": "x", "audio": None},
        "is in its parquet files twice": {"id": good[1]["id"]},
        "has no text": {"text": " "},
        "neither FLAC nor WAV": {"audio": {"bytes": b"MZ..", "path": "x"}},
        "has no sound, perhaps only a path": {"audio": {"bytes": None, "path": "x"}},
    }
    for message, change in cases.items():
        rows = [good[0] | change, *good[1:]]
        pq.write_table(pa.Table.from_pylist(rows, pq.read_schema(file)), file)
        refuse([tmp_path / "a"], root, message)


@pytest.mark.parametrize(
    ("path", "subset"),
    [
        ("all/train.clean.100/0000.parquet", "train-clean-100"),
        ("all/librispeech_asr-train.clean.360-00003-of-00010.parquet", "train-clean-360"),
        ("other/train.500/0007.parquet", "train-other-500"),
        ("clean/validation/0000.parquet", "dev-clean"),
        ("all/validation.other/0000.parquet", "dev-other"),
        ("other/test/0000.parquet", "test-other"),
        ("test-clean-00000-of-00001.parquet", "test-clean"),
        ("dev_other.parquet", "dev-other"),
    ],
)
def test_subsets_by_their_files(path: str, subset: str):
    assert subset_of(Path("/x/y") / path) == subset


def test_files_of_no_subset():
    for path in ("data/train-00000-of-00001.parquet", "default/test/0.parquet"):
        with pytest.raises(DataProblem, match="which subset it is of"):
            subset_of(Path(path))


def test_a_stopped_call_resumes(tmp_path: Path, monkeypatch):
    from tasks.librispeech import forms

    paths, root = parquet(tmp_path / "source"), tmp_path / "data" / "LibriSpeech"
    write, calls = forms._write_sounds, []

    def stopping(file, *rest):
        calls.append(file.path)
        if len(calls) == 2:
            raise KeyboardInterrupt
        write(file, *rest)

    monkeypatch.setattr(forms, "_write_sounds", stopping)
    with pytest.raises(KeyboardInterrupt):
        prepared(paths, root)
    assert not root.exists()
    prepared(paths, root)
    assert len(calls) == 3
    folders(tmp_path / "reference")
    assert bits(root.parent) == bits(tmp_path / "reference")
    assert ParquetSpeech.form == "Hugging Face parquet"
