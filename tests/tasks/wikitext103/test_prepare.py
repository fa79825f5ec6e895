"""WikiText-103's archive, by a small one that is packed in the same way."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from scripts import prepare as command
from tasks.base import DataProblem
from tasks.download import Patience
from tasks.wikitext103 import prepare as prepare_module
from tasks.wikitext103.forms import WikiTextSource
from tasks.wikitext103.prepare import Counts, WikiText, prepare

TEXTS = {
    "train": " \n = Ölpest = \n \n the cat and the <unk> sat . \n",
    "valid": " \n the cat \n",
    "test": " the <unk> \n",
}
NOWHERE = ("http://127.0.0.1:1/wikitext-103-v1.zip",)


def members(**texts: str) -> dict[str, bytes]:
    return {f"wikitext-103/wiki.{k}.tokens": v.encode() for k, v in (TEXTS | texts).items()}


def pack(path: Path, files: Mapping[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in files.items():
            packed.writestr(name, data)
    return path


@dataclass
class World:
    root: Path
    archive: Path
    expected: WikiText
    reports: list[tuple[str, int, int]]

    def pack(self, files: Mapping[str, bytes]) -> None:
        pack(self.archive, files)
        self.trust()

    def trust(self) -> None:
        """Takes the archive for the right one, whatever is in it."""
        sums = {"md5": hashlib.md5(self.archive.read_bytes()).hexdigest()}
        self.expected = replace(self.expected, sums=sums, size=self.archive.stat().st_size)

    def make(self) -> bool:
        return prepare(
            self.root,
            lambda *line: self.reports.append(line),
            expected=self.expected,
            patience=Patience(silence=1, tries=1, pause=0),
        )

    def own(self) -> Path:
        """Where an archive is looked for before it is downloaded."""
        self.root.parent.mkdir(exist_ok=True)
        place = self.root.parent / "wikitext-103-v1.zip"
        place.write_bytes(self.archive.read_bytes())
        return place

    def left(self) -> list[str]:
        if not self.root.parent.exists():
            return []
        return sorted(p.name for p in self.root.parent.iterdir() if not p.name.endswith(".lock"))


@pytest.fixture
def world(tmp_path: Path) -> World:
    expected = WikiText(
        urls=NOWHERE,
        train=Counts(4, 14, 100),
        valid=Counts(2, 4, 100),
        test=Counts(1, 3, 100),
        vocabulary=9,
    )
    made = World(tmp_path / "data" / "wikitext-103", tmp_path / "mine.zip", expected, [])
    made.pack({"wikitext-103/": b"", **members(), "../evil": b"x", "wikitext-103/more": b"x"})
    return made


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("os.sync", lambda: None)


def test_a_second_call_has_nothing_to_do(world: World):
    world.own()
    assert world.make()
    names = sorted(p.name for p in world.root.iterdir())
    assert names == ["manifest.json", *(f"wiki.{s}.tokens" for s in ("test", "train", "valid"))]
    for split, text in TEXTS.items():
        assert (world.root / f"wiki.{split}.tokens").read_text() == text
    assert all(done <= total for _, done, total in world.reports)
    world.reports.clear()
    assert not world.make()
    assert world.reports == []


def test_an_archive_in_its_place_is_kept(world: World):
    world.own()
    assert world.make()
    assert world.left() == ["wikitext-103", "wikitext-103-v1.zip"]


def test_a_downloaded_archive_is_removed(world: World, monkeypatch: pytest.MonkeyPatch):
    def fetch(urls, target, sums, report, **_):
        assert urls == NOWHERE
        target.write_bytes(world.archive.read_bytes())
        return True

    monkeypatch.setattr(prepare_module, "fetch", fetch)
    assert world.make()
    assert world.left() == ["wikitext-103"]


def test_without_a_network(world: World):
    with pytest.raises(DataProblem, match=r"refused.*put the file at .*/wikitext-103-v1\.zip$"):
        world.make()
    assert world.left() == []


def test_the_wrong_archive(world: World):
    own = pack(world.own(), members(test="other"))
    wanted = world.expected.sums["md5"]
    with pytest.raises(DataProblem, match=f"^{own}: its MD5 is [0-9a-f]*, but must be {wanted}"):
        world.make()
    assert world.left() == [own.name]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"train": TEXTS["train"] + " \n"}, "5 lines, but must have 4"),
        ({"valid": " \n the cat sat \n"}, "5 tokens with <eos>, but must have 4"),
        ({"train": TEXTS["train"].replace("cat", "the")}, "8 words in its vocabulary with <eos>"),
        ({"test": " the\udcff \n"}, "not UTF-8"),
        ({"test": "x" * 101}, "would have 101 bytes, but must have no more than 100"),
    ],
)
def test_other_texts(texts: dict[str, str], message: str, world: World):
    files = {
        f"wikitext-103/wiki.{split}.tokens": text.encode("utf-8", "surrogateescape")
        for split, text in (TEXTS | texts).items()
    }
    world.pack(files)
    world.own()
    with pytest.raises(DataProblem, match=message):
        world.make()
    assert world.left() == ["wikitext-103-v1.zip"]


def test_damaged_archives(world: World):
    files = members()
    del files["wikitext-103/wiki.valid.tokens"]
    world.pack(files)
    world.own()
    with pytest.raises(DataProblem, match=r"no wiki\.valid\.tokens in it"):
        world.make()
    world.archive.write_bytes(b"no zip")
    world.trust()
    world.own()
    with pytest.raises(DataProblem, match="cannot be unpacked: File is not a zip file"):
        world.make()
    assert world.left() == ["wikitext-103-v1.zip"]


def test_an_archive_that_lies_about_its_sizes(world: World):
    """A bomb: more comes out than the directory says."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in members(train="x" * 10**6).items():
            packed.writestr(name, data)
    lie = file.getvalue().replace((10**6).to_bytes(4, "little"), (90).to_bytes(4, "little"))
    world.archive.write_bytes(lie)
    world.trust()
    world.own()
    with pytest.raises(DataProblem, match="cannot be unpacked: Bad CRC-32"):
        world.make()
    assert world.left() == ["wikitext-103-v1.zip"]


def test_what_the_user_unpacked_is_counted_once(world: World):
    with zipfile.ZipFile(world.archive) as packed:
        for name in members():
            packed.extract(name, world.root.parent)
    assert not world.make()
    assert len(world.reports) == 3
    assert not world.make()
    assert len(world.reports) == 3
    text = world.root / "wiki.valid.tokens"
    text.write_text(TEXTS["valid"] + "more\n")
    with pytest.raises(
        DataProblem, match=f"^{world.root}: {text.name} has 3 lines, .* get it again, or from"
    ):
        world.make()
    text.unlink()
    with pytest.raises(DataProblem, match=f"^{text}: missing"):
        world.make()


def test_the_command(world: World, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr(WikiTextSource, "expected", world.expected)
    data = ["--data", str(world.root.parent)]
    assert command.main(["wikitext103", "--from", str(world.archive), *data]) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines() == [
        f"{world.archive}: WikiText's zip; unpacked and counted",
        "  train: 4 lines, 14 tokens, 9 vocabulary, 0.0 MB (zip, unpacked)",
        "  valid: 2 lines, 4 tokens, 0.0 MB (zip, unpacked)",
        "  test: 1 lines, 3 tokens, 0.0 MB (zip, unpacked)",
        f"{world.root}: ready; identical to the official set (checksums)",
    ]
    assert "unpacking wiki.train.tokens: " in shown.err
    assert command.main(["wikitext103", *data]) == 0
    shown = capsys.readouterr()
    assert "nothing to do" in shown.out
    assert not shown.err
    assert command.main(["wikitext103", "--from", "nowhere", "--data", "other"]) == 2
    assert capsys.readouterr().err == "nowhere: no such file or folder\n"


def test_the_real_numbers_agree_with_each_other():
    real = WikiText()
    assert real.urls[0].endswith(real.archive)
    assert [len(digest) for digest in real.sums.values()] == [32, 64]
    for split in ("train", "valid", "test"):
        assert real.counts(split).tokens > real.counts(split).lines
