"""ImageNet in every form that people have it in: the same bits, and nothing written into it."""

from __future__ import annotations

import io
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from tasks.base import Context, DataProblem
from tasks.imagenet import folders, packed
from tasks.imagenet.data import ImageNetDataOptions
from tasks.imagenet.folders import ImageNetSource
from tasks.imagenet.forms import FORMS
from tasks.imagenet.model import ResNetOptions
from tasks.imagenet.task import ImageNet
from tasks.manifests import Manifest, read_manifest
from tasks.sources import recognise
from tests.tasks.imagenet.archives import (
    DEVKIT,
    GROUND_TRUTH,
    WNIDS,
    class_members,
    devkit_members,
    images,
    silent,
    store,
    tar_of,
    tree,
    val_members,
)
from tests.tasks.one_step import bits_after_one_step

SOLUTION = "LOC_val_solution.csv"
LABELS = sorted(WNIDS)  # the label of a class is its place here


@pytest.fixture(autouse=True)
def _quick(monkeypatch, tmp_path):
    monkeypatch.setattr("os.sync", lambda: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def _small_official_set(monkeypatch, tmp_path_factory):
    """The forms take the small set for the official one."""
    expected = store(tmp_path_factory.mktemp("official"))
    monkeypatch.setattr(ImageNetSource, "expected", expected)
    monkeypatch.setattr(folders, "ILSVRC2012", expected)


def val_class(name: str) -> str:
    return WNIDS[GROUND_TRUTH[int(name[15:23]) - 1] - 1]


def solution() -> str:
    rows = [f"{name[:-5]},{val_class(name)} 85 1 499 272 " for name, _ in val_members()]
    return "ImageId,PredictionString\n" + "\n".join(rows) + "\n"


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def official(place: Path) -> list[Path]:
    store(place)
    return [place]


def image_folder(place: Path) -> list[Path]:
    for wnid, members in class_members().items():
        for name, data in members:
            write(place / "train" / wnid / name, data)
    for name, data in val_members():
        write(place / "val" / val_class(name) / name, data)
    return [place]


def flat_val(place: Path) -> None:
    image_folder(place)
    shutil.rmtree(place / "val")
    for name, data in val_members():
        write(place / "val" / name, data)


def flat_with_kit(place: Path) -> list[Path]:
    flat_val(place)
    write(place / DEVKIT, tar_of(devkit_members(), "w:gz"))
    return [place]


def flat_with_unpacked_kit(place: Path) -> list[Path]:
    flat_val(place)
    for name, data in devkit_members():
        write(place / "kit" / name, data)
    return [place / "train", place / "val", place / "kit"]


def kaggle_folders(place: Path) -> list[Path]:
    flat_val(place / "ILSVRC" / "Data" / "CLS-LOC")
    write(place / "ILSVRC" / "Data" / "CLS-LOC" / "test" / "ILSVRC2012_test_00000001.JPEG", b"x")
    write(place / "ILSVRC" / "Annotations" / "CLS-LOC" / "train" / WNIDS[0] / "a.xml", b"<a/>")
    write(place / SOLUTION, solution().encode())
    write(place / "LOC_synset_mapping.txt", "".join(f"{w} thing\n" for w in LABELS).encode())
    return [place]


def kaggle_zip(place: Path) -> list[Path]:
    kaggle_folders(place / "unpacked")
    target = place / "zip" / "imagenet-object-localization-challenge.zip"
    target.parent.mkdir()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as packed_files:
        for name, data in tree(place / "unpacked").items():
            packed_files.writestr(name, data)
    return [target.parent]


def parquet(place: Path) -> list[Path]:
    """With Hugging Face's names, which have the class at their end, in a cache's folders."""
    rows = [
        {"image": {"bytes": data, "path": f"{name[:-5]}_{wnid}.JPEG"}, "label": LABELS.index(wnid)}
        for wnid, members in class_members().items()
        for name, data in members
    ]
    snapshot = place / "datasets--ILSVRC--imagenet-1k" / "snapshots" / "49e2ee" / "data"
    snapshot.mkdir(parents=True)
    for i in range(3):
        table = pa.Table.from_pylist(rows[i::3])
        pq.write_table(table, snapshot / f"train-0000{i}-of-00003.parquet", row_group_size=2)
    val = [
        {
            "image": {"bytes": data, "path": f"{name[:-5]}_{val_class(name)}.JPEG"},
            "label": LABELS.index(val_class(name)),
        }
        for name, data in val_members()
    ]
    pq.write_table(pa.Table.from_pylist(val), snapshot / "validation-00000-of-00001.parquet")
    return [place]


def webdataset(place: Path) -> list[Path]:
    train = [
        (name, data, LABELS.index(wnid))
        for wnid, members in class_members().items()
        for name, data in members
    ]
    val = [(name, data, LABELS.index(val_class(name))) for name, data in val_members()]
    for split, samples, shards in (("train", train, 3), ("val", val, 1)):
        for i in range(shards):
            members = []
            for name, data, label in samples[i::shards]:
                key = name.removesuffix(".JPEG")
                members += [(f"{key}.cls", str(label).encode()), (f"{key}.jpg", data)]
                members += [(f"{key}.json", b"{}")]
            write(place / f"imagenet-{split}-{i:06}.tar", tar_of(members))
    return [place]


FORMATS: dict[str, tuple[Callable[[Path], list[Path]], str, str]] = {
    "official": (official, "official archives", "unpacked"),
    "image folder": (image_folder, "image folders", "linked"),
    "flat val, kit": (flat_with_kit, "image folders with a flat val", "linked"),
    "flat val, unpacked kit": (flat_with_unpacked_kit, "image folders with a flat val", "linked"),
    "Kaggle folders": (kaggle_folders, "Kaggle's folders", "linked"),
    "Kaggle zip": (kaggle_zip, "Kaggle's zip", "unpacked"),
    "parquet": (parquet, "Hugging Face parquet", "unpacked"),
    "webdataset": (webdataset, "webdataset shards", "unpacked"),
}


def prepared(paths: list[Path], root: Path) -> tuple[Manifest, bool]:
    source, _ = recognise(FORMS, paths, "imagenet")
    return source.prepare(root, "imagenet", silent, lambda _: None)


def make_task(data_root: Path) -> ImageNet:
    model = ResNetOptions(stages=[1, 1], width=4, classes=len(WNIDS), stem="small")
    context = Context(
        seed=0, micro=3, micro_batches=2, eval_batch=4, data_workers=0, data_root=data_root
    )
    return ImageNet(model, ImageNetDataOptions(image_size=8), context)


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> str:
    place = tmp_path_factory.mktemp("reference")
    image_folder(place / "imagenet")
    return bits_after_one_step(make_task(place))


@pytest.mark.parametrize("name", FORMATS)
def test_every_form_gives_the_same_bits(name: str, tmp_path: Path, reference: str):
    make, form, action = FORMATS[name]
    paths = make(tmp_path / "source")
    before = tree(tmp_path / "source")
    root = tmp_path / "data" / "imagenet"
    manifest, is_new = prepared(paths, root)
    assert is_new
    assert tree(tmp_path / "source") == before
    for split, count in (("train", 12), ("val", 9)):
        part = manifest.parts[split]
        assert (part.form, part.action) == (form, action)
        assert part.counts == {"images": count, "classes": 4}
        assert not part.differences
    identical = "identical to the official set (checksums)"
    assert manifest.verdict() == (
        identical if name == "official" else "every count is the official set's"
    )
    assert read_manifest(root) == manifest
    assert bits_after_one_step(make_task(root.parent)) == reference
    assert prepared(paths, root) == (manifest, False)
    beside = {p.name for p in root.parent.iterdir()} - {"imagenet"}
    assert all(n.endswith(".lock") or n.endswith("-checksums.json") for n in beside)


def test_links_take_no_space(tmp_path: Path):
    image_folder(tmp_path / "source")
    root = tmp_path / "data" / "imagenet"
    prepared([tmp_path / "source"], root)
    assert {p.name for p in root.iterdir()} == {"train", "val", "manifest.json"}
    assert (root / "train").readlink() == (tmp_path / "source" / "train").resolve()
    shutil.move(tmp_path / "source", tmp_path / "moved")
    with pytest.raises(DataProblem, match=r"source/train: no such file|source: no such file"):
        prepared([tmp_path / "source"], root)


def test_numbers_for_classes_where_names_have_none(tmp_path: Path, reference: str):
    """Labels are then the order; images without official names are in another order."""
    rows = [
        {"image": {"bytes": data, "path": None}, "label": LABELS.index(wnid)}
        for wnid, members in class_members().items()
        for _, data in members
    ]
    val = [
        {"image": {"bytes": data, "path": None}, "label": LABELS.index(val_class(name))}
        for name, data in val_members()
    ]
    (tmp_path / "source").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "source" / "train.parquet")
    pq.write_table(pa.Table.from_pylist(val), tmp_path / "source" / "val.parquet")
    root = tmp_path / "data" / "imagenet"
    manifest, _ = prepared([tmp_path / "source"], root)
    assert sorted(p.name for p in (root / "train").iterdir()) == ["0000", "0001", "0002", "0003"]
    assert "another order" in manifest.parts["train"].remarks[0]
    task = make_task(root.parent)
    task.prepare_data()
    assert task.epoch_units == 12


def test_differences_are_named(tmp_path: Path):
    image_folder(tmp_path / "source")
    next((tmp_path / "source" / "train" / WNIDS[0]).iterdir()).unlink()
    empty = sorted((tmp_path / "source" / "val" / WNIDS[1]).iterdir())[0]
    empty.write_bytes(b"")
    manifest, _ = prepared([tmp_path / "source"], tmp_path / "data" / "imagenet")
    assert manifest.verdict() == (
        "differs from the official set: train: 1 images fewer (11 instead of 12); val: 1 empty"
        f" files, the first is {empty.name}"
    )


def refuse(paths: list[Path], root: Path, message: str) -> None:
    with pytest.raises(DataProblem, match=message) as caught:
        prepared(paths, root)
    assert "\n" not in str(caught.value)
    assert not root.exists()


def test_half_copied_and_wrong_sources(tmp_path: Path):
    root = tmp_path / "data" / "imagenet"
    refuse([tmp_path / "nowhere"], root, "nowhere: no such file or folder")
    (tmp_path / "empty").mkdir()
    refuse([tmp_path / "empty"], root, r"not recognised as imagenet; found nothing\. Accepted: off")
    write(tmp_path / "other" / "cat.gif", b"x")
    refuse([tmp_path / "other"], root, r"found cat\.gif\. Accepted: .*docs/data\.md")
    image_folder(tmp_path / "a")
    shutil.rmtree(tmp_path / "a" / "val")
    refuse([tmp_path / "a"], root, "no val/ with images beside it; name its folder too")
    image_folder(tmp_path / "b")
    shutil.rmtree(tmp_path / "b" / "val" / WNIDS[2])
    refuse([tmp_path / "b"], root, f"train/{WNIDS[2]}: a class of 4 in train and 3 in val")
    flat_val(tmp_path / "c")
    refuse([tmp_path / "c"], root, f"no labels for them: put {SOLUTION}")
    kaggle_folders(tmp_path / "d")
    (tmp_path / "d" / SOLUTION).write_text(solution().replace(WNIDS[0], "n00000000", 1))
    refuse([tmp_path / "d"], root, f"{SOLUTION}: line [0-9]+ must be an image and one of the 4")
    store(tmp_path / "e")
    (tmp_path / "e" / "ILSVRC2012_img_val.tar").unlink()
    refuse([tmp_path / "e"], root, r"e: missing ILSVRC2012_img_val\.tar")
    parquet(tmp_path / "f")
    next((tmp_path / "f").rglob("train-00001*")).unlink()
    refuse([tmp_path / "f"], root, r"2 of 3 files train-….parquet; the first missing one .* 1")
    webdataset(tmp_path / "g")
    (tmp_path / "g" / "imagenet-train-000001.tar").unlink()
    refuse([tmp_path / "g"], root, "shard 1 of imagenet-train-… is missing")


def test_damaged_parquet(tmp_path: Path):
    root = tmp_path / "data" / "imagenet"
    parquet(tmp_path / "a")
    file = next((tmp_path / "a").rglob("train-00001*"))
    whole = file.read_bytes()
    file.write_bytes(whole[:-20])
    refuse([tmp_path / "a"], root, "train-00001-of-00003.parquet: cannot be read as parquet")
    table = pq.read_table(io.BytesIO(whole)).to_pylist()
    table[0]["label"] = 3 - table[0]["label"]
    pq.write_table(pa.Table.from_pylist(table), file)
    refuse([tmp_path / "a"], root, "the labels do not fit the names")


def test_a_stopped_call_resumes_after_the_last_unit(tmp_path: Path, monkeypatch, reference: str):
    paths, root = parquet(tmp_path / "source"), tmp_path / "data" / "imagenet"
    extract, calls = packed.ParquetImages.extract, []

    def stopping(self, unit, targets):
        calls.append(unit)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return extract(self, unit, targets)

    monkeypatch.setattr(packed.ParquetImages, "extract", stopping)
    with pytest.raises(KeyboardInterrupt):
        prepared(paths, root)
    assert not root.exists()
    prepared(paths, root)
    assert calls[2:] == [calls[2], *calls[3:]]
    assert len(calls) == 2 + 1 + 2  # two units, the stopped one, and the two that were left
    assert bits_after_one_step(make_task(root.parent)) == reference


def test_another_source_leaves_a_prepared_folder(tmp_path: Path):
    root = tmp_path / "data" / "imagenet"
    prepared(image_folder(tmp_path / "a"), root)
    with pytest.raises(DataProblem, match="prepared before from another source, image folders"):
        prepared(webdataset(tmp_path / "b"), root)
    image_folder(tmp_path / "own" / "imagenet")
    with pytest.raises(DataProblem, match=r"is there already .* name another folder with --data"):
        prepared([tmp_path / "a"], tmp_path / "own" / "imagenet")


def test_in_place(tmp_path: Path):
    root = tmp_path / "data" / "imagenet"
    image_folder(root)
    before = tree(root)
    manifest, is_new = prepared([root], root)
    assert not is_new
    assert tree(root) == before
    assert manifest.parts["train"].action == "in place"
    assert read_manifest(root) == manifest


def test_not_enough_space(tmp_path: Path, monkeypatch):
    paths, root = kaggle_zip(tmp_path / "source"), tmp_path / "data" / "imagenet"
    usage = shutil._ntuple_diskusage(10**9, 10**9, 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    refuse(paths, root, "not enough space")


def test_images_are_the_official_ones(tmp_path: Path, wanted):
    for name in ("official", "Kaggle zip", "parquet", "webdataset"):
        paths = FORMATS[name][0](tmp_path / name)
        root = tmp_path / "data" / name
        prepared(paths, root)
        assert images(root) == wanted, name
