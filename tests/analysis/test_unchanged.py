"""A report is rendered again after any change of what it is made of."""

from __future__ import annotations

import pytest

from analysis import unchanged


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setattr(unchanged, "ROOT", tmp_path)
    for name in ("analysis/pages.py", "configs/a.yaml", "results/runs/a.json", "README.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("as it was")
    assert unchanged.remembered(tmp_path) is None
    unchanged.remember(tmp_path)
    assert unchanged.remembered(tmp_path) == []
    return tmp_path


@pytest.mark.parametrize(
    "name", ["analysis/pages.py", "configs/a.yaml", "results/runs/a.json", "README.md"]
)
def test_notices_a_file_that_is_changed_or_gone(root, name):
    (root / name).write_text("as it is")
    assert unchanged.remembered(root) is None
    (root / name).write_text("as it was")
    assert unchanged.remembered(root) == []
    (root / name).unlink()
    assert unchanged.remembered(root) is None


def test_notices_a_new_file_and_another_name_but_no_run_of_ones_own(root):
    (root / "outputs" / "run").mkdir(parents=True)
    (root / "outputs" / "run" / "record.json").write_text("{}")
    (root / "analysis" / "__pycache__").mkdir()
    (root / "analysis" / "__pycache__" / "pages.pyc").write_text("")
    assert unchanged.remembered(root) == []
    (root / "results" / "runs" / "a.json").rename(root / "results" / "runs" / "b.json")
    assert unchanged.remembered(root) is None
    unchanged.remember(root)
    (root / "results" / "runs" / "c.json").write_text("")
    assert unchanged.remembered(root) is None


def test_stale_pages_are_remembered_until_something_changes(root):
    unchanged.remember(root, ["README.md", "results/REPORT.md"])
    assert unchanged.remembered(root) == ["README.md", "results/REPORT.md"]
    (root / "README.md").write_text("as it should be")
    assert unchanged.remembered(root) is None


def test_renders_again_where_the_stamp_is_empty(root):
    (root / unchanged.STAMP).write_text("")
    assert unchanged.remembered(root) is None


def test_renders_again_where_nothing_can_be_noted(root):
    (root / "outputs" / ".report.sha256").unlink()
    (root / "outputs").rmdir()
    (root / "outputs").write_text("a file")
    unchanged.remember(root)
    assert unchanged.remembered(root) is None
