"""Messages of a program, from a made-up wheel with a compiled catalogue as gramps' has."""

from __future__ import annotations

import hashlib
import struct
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from tasks.base import DataProblem
from tasks.wheels import Member
from tasks.wmt14.messages import (
    CATALOGUE,
    Source,
    clean,
    make_messages,
    read_catalogue,
    split_messages,
)
from tasks.wmt14.pairs import LANGUAGES, SPLITS, Pair, write_pairs

FILES = [f"{split}.{language}" for split in SPLITS for language in LANGUAGES]


def compiled(messages: dict[str, str]) -> bytes:
    """A catalogue as msgfmt writes it: a head, two tables of lengths and places, the texts."""
    texts = {"": "Content-Type: text/plain; charset=UTF-8\n", **messages}
    keys = sorted(key.encode() for key in texts)
    values = [texts[key.decode()].encode() for key in keys]
    place = 28 + 16 * len(keys)
    tables, body = b"", b""
    for text in (*keys, *values):
        tables += struct.pack("<II", len(text), place + len(body))
        body += text + b"\0"
    head = struct.pack("<7I", 0x950412DE, 0, len(keys), 28, 28 + 8 * len(keys), 0, place)
    return head + tables + body


def test_only_clean_messages_of_some_words():
    long = "word " * 15
    catalogue = compiled(
        {
            "_Add a person": "Person hin_zufügen",
            "filters|All the people": "Alle Personen",
            "menu\x04Merge  these Places": "Orte zusammenführen",
            "Born in %(place)s": "Geboren in %(place)s",
            "This bold <b>text</b>": "Fetter <b>Text</b>",
            "these two\nlines": "zwei\nZeilen",
            "Quit now": "Jetzt beenden",
            long: "viel kürzer",
            "Type of file": "Dateityp",
        }
    )
    assert sorted(read_catalogue(catalogue)) == [
        Pair("Add a person", "Person hinzufügen"),
        Pair("All the people", "Alle Personen"),
        Pair("Born in %(place)s", "Geboren in %(place)s"),
        Pair("Merge these Places", "Orte zusammenführen"),
    ]
    assert clean("{name} is here") == ""
    with pytest.raises(DataProblem, match="the catalogue of messages can't be read"):
        read_catalogue(b"not a catalogue at all")


def test_no_message_is_in_two_splits():
    pairs = [Pair(f"Message {i}", f"Nachricht {i}") for i in range(300)]
    pairs += [Pair(f"Save, {i % 7}!", f"Sichern {i}") for i in range(50)]
    splits = split_messages(pairs, held_out=100)
    assert [*splits] == [*SPLITS]
    assert len(splits["valid"]) == 100
    english = {split: {p.en.lower() for p in chosen} for split, chosen in splits.items()}
    assert english["valid"].isdisjoint(english["test"] | english["train"])
    assert english["test"].isdisjoint(english["train"])
    assert split_messages(pairs[::-1], held_out=100)["train"][0].en == splits["train"][0].en


def test_made_from_a_wheel_beside_it_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(subprocess, "run", None)  # pip is not asked
    words = ("eins", "zwei", "drei", "vier", "fünf", "sechs")
    data = compiled({f"{a} {b} {c}": f"{c} {b} {a}" for a in words for b in words for c in words})
    root = tmp_path / "data" / "messages"
    root.parent.mkdir()
    with zipfile.ZipFile(root.parent / "gramps-6.0.8-py3-none-any.whl", "w") as packed:
        packed.writestr(CATALOGUE.path, data)
    write_pairs(tmp_path / "expected", split_messages(read_catalogue(data), 20))
    sums = {n: hashlib.sha256((tmp_path / "expected" / n).read_bytes()).hexdigest() for n in FILES}
    member = Member(CATALOGUE.path, hashlib.sha256(data).hexdigest(), len(data))
    source = Source(catalogue=member, held_out=20, sha256=sums)

    wrong = replace(source, sha256={**sums, "test.de": "0" * 64})
    with pytest.raises(DataProblem, match=r"test\.de: its SHA-256 is .*another version of Python"):
        make_messages(root, lambda _: None, wrong)
    assert not root.exists()
    assert make_messages(root, lambda _: None, source)
    assert sorted(p.name for p in root.iterdir()) == sorted(FILES)
    assert len((root / "valid.en").read_text().splitlines()) == 20
    assert not make_messages(root, lambda _: None, source)
