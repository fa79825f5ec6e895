"""The made-up language pair: regular, learnable, and the same everywhere."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tasks.base import DataProblem
from tasks.wmt14.made_up import PAIRS, make_made_up


def read(root: Path, split: str) -> list[tuple[str, str]]:
    sides = [(root / f"{split}.{language}").read_bytes().decode() for language in ("en", "de")]
    assert all(side.endswith("\n") and "\r" not in side for side in sides)
    return list(zip(*(side.removesuffix("\n").split("\n") for side in sides), strict=True))


def words(sentence: str) -> list[str]:
    assert sentence.endswith(".")
    assert sentence[0].isupper()
    return sentence[:-1].lower().split(" ")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "data" / "made-up"
    make_made_up(root)
    return root


def test_the_numbers_of_pairs(root: Path):
    assert PAIRS == {"train": 600, "valid": 40, "test": 40}
    assert {split: len(read(root, split)) for split in PAIRS} == PAIRS
    assert sorted(p.name for p in root.parent.iterdir()) == ["made-up"]
    assert len(list(root.iterdir())) == 6


def test_every_word_has_one_translation_and_the_verb_goes_to_the_end(root: Path):
    dictionary: dict[str, str] = {}
    for split in PAIRS:
        for english, german in read(root, split):
            en, de = words(english), words(german)
            verb = en.index("the", 1) - 1 if "the" in en[1:] else -1
            # Between the two noun phrases there is the noun of the first, then the verb.
            for word, translation in zip([*en[:verb], *en[verb + 1 :], en[verb]], de, strict=True):
                assert dictionary.setdefault(word, translation) == translation
    assert len(set(dictionary.values())) == len(dictionary) == 49


def test_nothing_is_held_out_that_train_has_and_all_words_are_known(root: Path):
    train = read(root, "train")
    known = [{w for pair in train for w in words(pair[side])} for side in (0, 1)]
    every = [pair for split in PAIRS for pair in read(root, split)]
    for side in (0, 1):
        assert len({pair[side] for pair in every}) == len(every) == 680
        for pair in every:
            assert set(words(pair[side])) <= known[side]


def test_the_same_bytes_every_time_and_quickly(root: Path, tmp_path: Path):
    start = time.process_time()
    make_made_up(tmp_path / "again")
    assert time.process_time() - start < 1
    for file in root.iterdir():
        assert file.read_bytes() == (tmp_path / "again" / file.name).read_bytes()


def test_what_is_there_is_kept_or_refused(root: Path):
    before = {file: file.stat().st_mtime_ns for file in root.iterdir()}
    make_made_up(root)
    assert {file: file.stat().st_mtime_ns for file in root.iterdir()} == before
    file = root / "valid.de"
    file.write_text("other\n")
    with pytest.raises(DataProblem, match=f"^{file}: not the made-up text; move {root}"):
        make_made_up(root)
    file.unlink()
    with pytest.raises(DataProblem, match=f"^{file}: not the made-up text"):
        make_made_up(root)


def test_nothing_is_left_where_it_cannot_be_written(tmp_path: Path, monkeypatch):
    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(OSError, match="disk full"):
        make_made_up(tmp_path / "made-up")
    assert list(tmp_path.iterdir()) == []
