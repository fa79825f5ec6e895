"""Text to units and back."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tasks.base import DataProblem
from tasks.wmt14.units import BEGIN, CHARACTERS, END, PAD, UNKNOWN, Units, train_units

TEXT = [
    "A small dog runs across the Street, past 3 other dogs.",
    "Ein kleiner Hund läuft über die Straße, an 13 anderen Hunden vorbei!",
    "The dogs' street is “small”.",
    "Die „Straße“ der Hunde ist klein – ½ Meile; ﬁnden Sie sie?",  # NFKC would change two
] * 5
SIZE = 150


@pytest.fixture(scope="module")
def units() -> Units:
    return Units(train_units(TEXT, SIZE))


def spaced(text: str) -> str:
    return " ".join(text.replace("▁", " ").split())


def test_special_units_come_first_and_are_counted(units: Units):
    assert (PAD, UNKNOWN, BEGIN, END) == (0, 1, 2, 3)
    assert units.size == SIZE
    assert min(i for ids in units.encode(TEXT) for i in ids) > END


@given(
    text=st.lists(st.sampled_from(sorted({*"".join(TEXT), *"▁\t\u2028\u00a0\u3000"}))).map("".join)
)
@example(text="")
@example(text=" ▁ ")
@example(text="\u2028 Die  Straße\t")
@settings(deadline=None)
def test_decoding_gives_the_text_up_to_white_space(units: Units, text: str):
    encoded = units.encode([text])
    assert UNKNOWN not in encoded[0]
    assert units.decode(encoded) == [spaced(text)]


def test_what_surrounds_a_sentence_is_ignored(units: Units):
    ids = units.encode(TEXT[:2])
    padded = [[BEGIN, *ids[0], END, PAD, PAD], [*ids[1], END], [], [PAD]]
    assert units.decode(padded) == [*TEXT[:2], "", ""]
    assert units.decode([]) == []


def test_unknown_characters_are_visible(units: Units):
    ids = units.encode(["dogs 犬 Hunde"])
    assert ids[0].count(UNKNOWN) == 1
    assert units.decode(ids) == ["dogs ⁇ Hunde"]


def test_threads_and_pickles_are_the_same(units: Units, tmp_path: Path):
    (tmp_path / "model").write_bytes(units.model)
    expected = units.encode(TEXT)
    assert units.encode(TEXT, threads=3) == expected
    assert pickle.loads(pickle.dumps(units)).encode(TEXT) == expected
    assert Units(tmp_path / "model").encode(TEXT) == expected


def test_the_model_depends_on_the_sentences_only(units: Units, capfd: pytest.CaptureFixture[str]):
    """Not on their order, or on the number of processors; and nothing is written to the screen."""
    assert train_units(reversed(TEXT), SIZE) == units.model
    assert train_units(iter([" ".join(TEXT)]), SIZE) == units.model
    processors = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, [min(processors)])
        assert train_units(TEXT, SIZE) == units.model
    finally:
        os.sched_setaffinity(0, processors)
    assert capfd.readouterr() == ("", "")


def test_the_most_frequent_characters_are_kept():
    often = [chr(0x3B1 + i) for i in range(CHARACTERS - 1)]  # the space is one more
    units = Units(train_units([*often, *often, "字", "a", "b"], CHARACTERS + 4))
    assert [ids.count(UNKNOWN) for ids in units.encode(often)] == [0] * len(often)
    assert [ids.count(UNKNOWN) for ids in units.encode(["字", "a", "b"])] == [1] * 3


def test_no_text_ends_the_process():
    """Names of special units, characters and lengths that sentencepiece stumbles over."""
    strange = [
        "<s> </s> <unk> <pad> < pad >",
        "a\0b",
        "▅▅",
        "x▁y ▁",
        "\ufffe\U0010ffff",
        "a" * 70_000,
    ]
    units = Units(train_units([*TEXT, *strange * 9], SIZE))
    for text in (strange[0], strange[3]):
        assert units.decode(units.encode([text])) == [spaced(text)]
    assert units.decode(units.encode(["a\0b ▅"])) == ["a ⁇ b ⁇"]


def test_a_wrong_size_gets_the_possible_one():
    with pytest.raises(DataProblem, match=r"^the text: 9,000 units .* it gives at most (\d+)") as e:
        train_units(TEXT, 9000)
    most = int(str(e.value).split()[-1])
    assert Units(train_units(TEXT, most)).size == most
    with pytest.raises(DataProblem, match=r"^here: 20 units .* its characters need (\d+)") as e:
        train_units(TEXT, 20, "here")
    least = int(str(e.value).split()[-1])
    assert Units(train_units(TEXT, least)).size == least
    with pytest.raises(DataProblem, match="it has no words"):
        train_units(["", " \u2028 "], SIZE)
