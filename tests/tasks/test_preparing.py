"""The command for data sets: what lies in the folder, what is prepared, and what is missing."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from scripts import prepare as command
from tasks.imagenet.folders import ImageNetSource
from tasks.librispeech.forms import LibriSpeechSource
from tasks.sources import recognise, survey
from tests.tasks.imagenet.archives import store, tree
from tests.tasks.imagenet.test_forms import FORMS, image_folder, parquet, silent
from tests.tasks.librispeech.test_forms import folders as speech_folders


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch, tmp_path_factory):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("os.sync", lambda: None)
    monkeypatch.setattr(ImageNetSource, "expected", store(tmp_path_factory.mktemp("official")))


def run(*arguments: object) -> int:
    return command.main([str(argument) for argument in arguments])


def test_what_lies_in_the_folder_is_counted_every_time(tmp_path: Path, capsys):
    root = tmp_path / "imagenet"
    image_folder(root)
    before = tree(root)
    for _ in range(2):
        assert run("imagenet", "--data", tmp_path) == 0
        shown = capsys.readouterr().out
        assert "used in place" in shown
        assert "complete; nothing to do; every count is the official set's" in shown
        assert tree(root) == before
    next((root / "train").rglob("*.JPEG")).unlink()
    assert run("imagenet", "--data", tmp_path) == 0
    shown = capsys.readouterr().out
    assert "1 images fewer (11 instead of 12)" in shown
    assert "data.train_images=null" in shown
    shutil.rmtree(root / "val")
    assert run("imagenet", "--data", tmp_path) == 2
    assert "no val/ with images beside it" in capsys.readouterr().err


def test_a_prepared_set_needs_no_source_any_more(tmp_path: Path, capsys):
    parquet(tmp_path / "source")
    assert run("imagenet", "--data", tmp_path, "--from", tmp_path / "source") == 0
    shutil.rmtree(tmp_path / "source")
    assert run("imagenet", "--data", tmp_path) == 0
    assert "complete; nothing to do" in capsys.readouterr().out


def test_a_linked_source_that_is_gone_is_named(tmp_path: Path, capsys):
    image_folder(tmp_path / "source")
    assert run("imagenet", "--data", tmp_path, "--from", tmp_path / "source") == 0
    shutil.move(tmp_path / "source", tmp_path / "elsewhere")
    assert run("imagenet", "--data", tmp_path) == 2
    shown = capsys.readouterr().err
    assert "is not there any more; mount or restore it" in shown
    assert shown.count("\n") == 1


def test_nothing_at_all(tmp_path: Path, capsys):
    assert run("imagenet", "--data", tmp_path / "x") == 2
    assert "https://image-net.org" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_subsets_of_a_folder_in_place(tmp_path: Path, capsys):
    speech_folders(tmp_path)
    before = tree(tmp_path / "LibriSpeech")
    assert run("librispeech", "--data", tmp_path, "--subsets", "dev-clean") == 0
    assert "used in place" in capsys.readouterr().out
    assert tree(tmp_path / "LibriSpeech") == before
    assert LibriSpeechSource.expected.subsets["dev-clean"].utterances == 2703


def test_two_calls_at_once(tmp_path: Path):
    """One works and the other waits; both find it complete."""
    paths = parquet(tmp_path / "source")
    results: list[bool] = []
    said: list[str] = []

    def call() -> None:
        source, _ = recognise(FORMS, paths, "imagenet")
        _, is_new = source.prepare(tmp_path / "data" / "imagenet", "imagenet", silent, said.append)
        results.append(is_new)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [False, False, False, True]
    assert [p.name for p in (tmp_path / "data").iterdir() if p.suffix != ".lock"] == ["imagenet"]


def test_large_folders_are_not_looked_into(tmp_path: Path):
    for i in range(301):
        (tmp_path / "many" / str(i) / "inner").mkdir(parents=True)
    (tmp_path / "few" / "inner").mkdir(parents=True)
    (tmp_path / ".hidden").mkdir()
    found = survey([tmp_path])
    names = {str(f.relative_to(tmp_path)) for f in found.folders}
    assert {"few/inner", "many/7"} <= names
    assert "many/7/inner" not in names
    assert ".hidden" not in names
