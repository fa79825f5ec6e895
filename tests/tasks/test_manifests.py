"""What prepared sets and runs record about their data."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.manifests import (
    MANIFEST,
    Manifest,
    Part,
    compare,
    describe_data,
    read_manifest,
    write_manifest,
)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def part(compared: str, *differences: str) -> Part:
    return Part("a form", "linked", {"images": 3}, 10, compared, list(differences))


def test_verdicts():
    assert Manifest("x", {"a": part("checksums"), "b": part("checksums")}).verdict() == (
        "identical to the official set (checksums)"
    )
    assert Manifest("x", {"a": part("checksums"), "b": part("counts")}).verdict() == (
        "every count is the official set's"
    )
    assert Manifest("x", {"a": part("counts"), "b": part("")}).verdict() == (
        "not compared with an official set"
    )
    assert Manifest("x", {"a": part("counts", "1 image fewer")}).verdict() == (
        "differs from the official set: a: 1 image fewer"
    )


def test_differences_in_counts():
    assert compare({"images": 3, "classes": 7}, {"images": 15, "classes": 7}) == [
        "12 images fewer (3 instead of 15)"
    ]
    assert compare({"images": 16}, {"images": 15, "classes": 1}) == [
        "1 images more (16 instead of 15)",
        "1 classes fewer (0 instead of 1)",
    ]


def test_a_manifest_is_read_as_it_was_written(tmp_path: Path):
    manifest = Manifest("x", {"a": part("counts")}, ["/somewhere"], "abc")
    (tmp_path / "d").mkdir()
    write_manifest(tmp_path / "d", manifest, in_place=True)
    assert not list((tmp_path / "d").iterdir())
    assert read_manifest(tmp_path / "d") == manifest
    write_manifest(tmp_path / "d", manifest.merged(Manifest("x", {"b": part("")}, ["/other"])))
    found = read_manifest(tmp_path / "d")
    assert found is not None
    assert list(found.parts) == ["a", "b"]
    assert found.origin == ["/somewhere", "/other"]


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"version": 1}', '{"version": 1, "parts": {"a": 3}}', "[" * 99_999]
)
def test_a_damaged_manifest_is_none(tmp_path: Path, content: str):
    (tmp_path / MANIFEST).write_text(content)
    assert read_manifest(tmp_path) is None


def test_what_a_run_records(tmp_path: Path):
    official = {"train": {"images": 15}}
    described = describe_data(tmp_path, "x", {"train": {"images": 3}}, {"train": "ab"}, official)
    assert described["differences"] == ["train: 12 images fewer (3 instead of 15)"]
    write_manifest(tmp_path, Manifest("x", {"train": part("counts", "1 empty file")}, ["/secret"]))
    described = describe_data(tmp_path, "x", {"train": {"images": 3}}, {}, official)
    assert described["differences"] == [
        "train: 1 empty file",
        "train: 12 images fewer (3 instead of 15)",
    ]
    assert described["parts"]["train"]["form"] == "a form"
    assert "secret" not in str(described)
    assert "differences" not in describe_data(tmp_path / "other", "y", {}, {}, {})
