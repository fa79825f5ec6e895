"""Caches that do not fit are made again, with one line of notice; the data stays the same."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tasks.base import Context, DataProblem, Task
from tasks.caches import MADE, open_cache, state_of
from tasks.imagenet import index
from tasks.imagenet.data import ImageNetDataOptions
from tasks.imagenet.digits import make_digits
from tasks.imagenet.model import ResNetOptions
from tasks.imagenet.task import ImageNet
from tasks.librispeech import made_up as speech
from tasks.librispeech import manifest
from tasks.librispeech.model import JasperOptions
from tasks.librispeech.task import LibriSpeech, LibriSpeechDataOptions
from tasks.wikitext103 import made_up as text
from tasks.wikitext103.model import TransformerXLOptions
from tasks.wikitext103.task import WikiText103, WikiTextDataOptions
from tasks.wikitext103.text import Text
from tasks.wmt14 import made_up as pairs
from tasks.wmt14.task import Wmt14, Wmt14DataOptions, Wmt14ModelOptions
from tests.tasks.one_step import bits_after_one_step


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def halve(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def zero(file: Path) -> None:
    """With its size and time kept, as a power failure may leave it."""
    before = file.stat()
    file.write_bytes(bytes(before.st_size))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def empty(file: Path) -> None:
    file.write_bytes(b"")


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


DAMAGES: list[Callable[[Path], None]] = [halve, zero, empty, flip, Path.unlink]


@pytest.fixture(params=DAMAGES, ids=lambda damage: damage.__name__)
def damage(request):
    return request.param


def test_a_damaged_file_is_noticed(tmp_path: Path, damage):
    place = tmp_path / "place"
    said: list[str] = []
    made: list[Path] = []

    def make(folder: Path) -> dict[str, int]:
        (folder / "inner").mkdir()
        (folder / "inner" / "array").write_bytes(b"abcdefgh" * 100)
        made.append(folder)
        return {"kept": 7}

    first = open_cache(place, {"version": 1}, make, said.append)
    assert first["about"] == {"kept": 7}
    assert open_cache(place, {"version": 1}, make, said.append) == first
    assert (len(made), said) == (1, [])
    for name in ("inner/array", MADE):
        damage(place / name)
        assert open_cache(place, {"version": 1}, make, said.append) == first
        (notice,) = said
        assert notice.startswith(f"{place}: ")
        assert notice.endswith("; it is made again")
        assert (place / "inner" / "array").read_bytes() == b"abcdefgh" * 100
        said.clear()
    open_cache(place, {"version": 2}, make, said.append)
    assert said == [f"{place}: made from other data or by another version; it is made again"]
    assert sorted(p.name for p in tmp_path.iterdir() if p.name != "cache") == [
        ".place.lock",
        "place",
    ]


@pytest.mark.parametrize("content", ["[]", "[" * 100_000, '{"files": 3}', "null", "\x00"])
def test_a_description_of_another_kind(tmp_path: Path, content: str):
    said: list[str] = []

    def make(folder: Path) -> None:
        (folder / "x").write_text("x")

    for _ in range(2):
        open_cache(tmp_path / "a", {}, make, said.append)
        (tmp_path / "a" / MADE).write_text(content)
    assert len(said) == 1


def test_nothing_half_made_stays(tmp_path: Path):
    def make(folder: Path) -> None:
        (folder / "x").write_text("x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_cache(tmp_path / "a", {}, make, print)
    assert [p.name for p in tmp_path.iterdir() if p.name != "cache"] == [".a.lock"]


def test_another_state_of_a_file(tmp_path: Path):
    file = tmp_path / "a"
    file.write_text("x")
    before = state_of(file)
    os.utime(file, ns=(1, 1))
    assert state_of(file) != before


# The tasks.


def fields(data_root: Path, **some: int) -> Context:
    values: dict[str, Any] = {
        "seed": 0,
        "micro": 4,
        "micro_batches": 2,
        "eval_batch": 50,
        "data_workers": 0,
    } | some
    return Context(data_root=data_root, **values)


def imagenet(root: Path) -> Task:
    model = ResNetOptions(stages=[1, 1], width=4, classes=10, stem="small")
    return ImageNet(model, ImageNetDataOptions("d", "d", 8), fields(root))


def librispeech(root: Path) -> Task:
    model = JasperOptions(
        repeats=[1, 1, 1, 1], kernels=[5, 5, 5, 1], widths=[6, 6, 8, 8], dropouts=[0.1] * 4
    )
    data = LibriSpeechDataOptions("d", "d", ["train-clean-100"], ["dev-clean"])
    return LibriSpeech(model, data, fields(root))


def wmt14(root: Path) -> Task:
    model = Wmt14ModelOptions(
        encoder_layers=1, decoder_layers=1, d_model=8, d_ff=12, heads=2, vocabulary=96
    )
    return Wmt14(model, Wmt14DataOptions("d", "d"), fields(root, micro=300))


def wikitext103(root: Path) -> Task:
    words = len(Text(root / "d").words)
    model = TransformerXLOptions(
        words, layers=1, d_model=8, heads=2, d_head=4, d_inner=12, cutoffs=[10, 20]
    )
    data = WikiTextDataOptions("d", "d", segment=6, memory=9, eval_columns=2)
    return WikiText103(model, data, fields(root, micro=12))


TASKS: dict[str, tuple[Callable[[Path], object], Callable[[Path], Task], tuple[str, ...]]] = {
    "imagenet": (make_digits, imagenet, ("names.npy", "labels.npy")),
    "librispeech": (speech.make_made_up, librispeech, ("texts.npy", "samples.npy")),
    "wmt14": (pairs.make_made_up, wmt14, ("tokens", "offsets", "units.model")),
    "wikitext103": (text.make_made_up, wikitext103, ("train.int32", "words.json")),
}


@pytest.mark.parametrize("name", TASKS)
def test_a_damaged_cache_trains_on_the_right_data(
    name: str, tmp_path: Path, cache: Path, monkeypatch, capsys
):
    """Every cached file, damaged in every way: one line, and the same bits."""
    monkeypatch.setattr(index, "WORTH_KEEPING", 1)
    monkeypatch.setattr(manifest, "WORTH_KEEPING", 1)
    make_data, make_task, files = TASKS[name]
    make_data(tmp_path / "d")
    reference = bits_after_one_step(make_task(tmp_path))
    capsys.readouterr()
    for i, file in enumerate(files):
        for hurt in DAMAGES[i % 2 :: 2]:
            target = sorted(cache.rglob(file))[0]
            hurt(target)
            assert bits_after_one_step(make_task(tmp_path)) == reference
            notices = [s for s in capsys.readouterr().out.splitlines() if "made again" in s]
            assert len(notices) == 1, (file, hurt, notices)


def test_without_a_cache_folder_texts_say_so(tmp_path: Path, cache: Path):
    text.make_made_up(tmp_path / "d")
    cache.write_text("a file in the folder's place")
    with pytest.raises(DataProblem, match="the words cannot be kept there"):
        Text(tmp_path / "d")
