"""From words to numbers, once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tasks.base import DataProblem
from tasks.wikitext103 import text as text_module
from tasks.wikitext103.text import Text


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def write(folder: Path, **splits: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for split, words in splits.items():
        (folder / f"wiki.{split}.tokens").write_text(words)
    return folder


def test_words_are_numbered_by_how_often_they_come(tmp_path: Path):
    folder = write(
        tmp_path / "a",
        train=" b a b \n \n c a b <unk> \n",
        valid=" a new word \n",
        test="b\n",
    )
    text = Text(folder)
    assert text.words == ["<eos>", "b", "a", "c", "<unk>"]  # equal counts: as they came
    assert text.splits["train"].tolist() == [1, 2, 1, 0, 0, 3, 2, 1, 4, 0]
    assert text.splits["valid"].tolist() == [2, 4, 4, 0]
    assert text.splits["test"].tolist() == [1, 0]


def test_it_is_done_once_and_again_when_a_text_changes(tmp_path: Path, monkeypatch):
    folder = write(tmp_path / "a", train="a b <unk>\n", valid="a\n", test="b\n")
    first = Text(folder)
    with monkeypatch.context() as patched:
        patched.setattr(text_module, "_encode", lambda *_: pytest.fail("done again"))
        assert Text(folder).words == first.words
    write(folder, train="a b c <unk>\n")
    os.utime(folder / "wiki.train.tokens", ns=(1, 1))
    assert len(Text(folder).words) == 5


def test_what_is_missing_or_wrong_is_named(tmp_path: Path):
    folder = write(tmp_path / "a", train="a b\n", valid="a\n")
    with pytest.raises(DataProblem, match=r"wiki.test.tokens: no such file.*scripts.prepare"):
        Text(folder)
    write(folder, test="")
    with pytest.raises(DataProblem, match=r"wiki.test.tokens: it is empty"):
        Text(folder)
    write(folder, test="strange\n")
    with pytest.raises(DataProblem, match=r"wiki.test.tokens: 'strange' is not a word of wiki.tr"):
        Text(folder)
    (folder / "wiki.test.tokens").write_bytes(b"\xff\xfe")
    with pytest.raises(DataProblem, match=r"wiki.test.tokens: not UTF-8"):
        Text(folder)
    assert not [p for p in (tmp_path / "cache").rglob("*") if p.is_file() and p.suffix != ".lock"]


def test_real_text():
    """WikiText-2: its published numbers of words."""
    root = Path(os.environ.get("DATA_ROOT", "/nowhere")) / "wikitext-2"
    if not root.is_dir():
        pytest.skip("needs $DATA_ROOT/wikitext-2/wiki.{train,valid,test}.tokens")
    text = Text(root)
    assert len(text.words) == 33_278
    sizes = {split: len(words) for split, words in text.splits.items()}
    assert sizes == {"train": 2_088_628, "valid": 217_646, "test": 245_569}
    assert text.words[:2] == ["<eos>", "the"]
