"""LibriSpeech's folders, what may be wrong in them, and that they are read once."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import soundfile  # type: ignore[import-untyped]

from tasks.base import DataProblem
from tasks.librispeech import manifest as manifest_module
from tasks.librispeech.alphabet import encode
from tasks.librispeech.manifest import Manifest, check_subsets

NAME = "20-3-0001"


def write_chapter(place: Path, texts: Mapping[str, tuple[str, int]], rate: int = 16000) -> None:
    """Utterances by their id: a text, and that many samples of noise."""
    place.mkdir(parents=True)
    lines = ""
    for name, (text, samples) in texts.items():
        noise = np.random.default_rng(samples).integers(-3000, 3000, samples, dtype=np.int16)
        soundfile.write(place / f"{name}.flac", noise, rate)
        lines += f"{name} {text}\n"
    (place / f"{place.parent.name}-{place.name}.trans.txt").write_text(lines)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two subsets; `b` has two speakers with three chapters."""
    root = tmp_path / "LibriSpeech"
    write_chapter(root / "a" / "7" / "1", {"7-1-0000": ("THE END", 1600)})
    write_chapter(root / "b" / "20" / "3", {"20-3-0000": ("IT'S", 900), NAME: ("A B", 901)})
    write_chapter(root / "b" / "20" / "11", {"20-11-0000": ("NO", 902)})
    write_chapter(root / "b" / "3" / "5", {"3-5-0000": ("YES OR NO", 903)})
    return root


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache, for sets as small as these."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(manifest_module, "WORTH_KEEPING", 1)
    return tmp_path / "cache"


def contents(manifest: Manifest) -> list[tuple[str, str, str, int]]:
    return [
        (manifest.id(i), manifest.path(i), manifest.text(i), int(manifest.samples[i]))
        for i in range(len(manifest))
    ]


def test_subsets_in_their_order_and_utterances_by_path(root: Path):
    manifest = Manifest(root, ["b", "a"])
    assert len(manifest) == 5
    assert manifest.samples.dtype == np.int64
    assert [(i, text, samples) for i, _, text, samples in contents(manifest)] == [
        ("20-11-0000", "no", 902),
        ("20-3-0000", "it's", 900),
        ("20-3-0001", "a b", 901),
        ("3-5-0000", "yes or no", 903),
        ("7-1-0000", "the end", 1600),
    ]
    files = [*sorted((root / "b").glob("*/*/*.flac")), *(root / "a").glob("*/*/*.flac")]
    assert [Path(manifest.path(i)) for i in range(5)] == files
    assert manifest.unreadable == {}
    for index in (-1, 5):
        with pytest.raises(IndexError):
            manifest.text(index)


def test_what_training_keeps(root: Path):
    manifest = Manifest(root, ["b", "a"])
    assert manifest.within(901 / 16000, 0.1).tolist() == [0, 2, 3, 4]
    assert manifest.within(0, 902 / 16000).tolist() == [0, 1, 2]


def change(root: Path, kind: str) -> None:
    """Makes something wrong with NAME, in chapter 20/3 of subset `b`."""
    place = root / "b" / "20" / "3"
    sound, transcript = place / f"{NAME}.flac", place / "20-3.trans.txt"
    lines = transcript.read_text().splitlines()
    if kind == "no transcript":
        transcript.unlink()
    elif kind == "no line":
        transcript.write_text(lines[0])
    elif kind == "no sound":
        sound.unlink()
    elif kind == "no text":
        transcript.write_text(f"{lines[0]}\n\n{NAME}\n")
    elif kind == "two lines":
        transcript.write_text("\n".join([*lines, lines[1]]))
    elif kind == "a digit":
        transcript.write_text(f"{lines[0]}\n{NAME} A 4\n")
    elif kind == "latin-1":
        transcript.write_bytes(f"{lines[0]}\n{NAME} CAFÉ\n".encode("latin-1"))
    elif kind == "rate":
        soundfile.write(sound, np.zeros(1000), 8000)
    elif kind == "channels":
        soundfile.write(sound, np.zeros((1000, 2)), 16000)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("no transcript", r"20-3.trans.txt: no such file; it must have a line"),
        ("no line", rf"{NAME}.flac: \S+20-3.trans.txt has no line for it"),
        ("no sound", rf"{NAME}.flac: no such file, but \S+20-3.trans.txt has a line for it"),
        ("no text", rf"20-3.trans.txt: line 3: nothing is said in {NAME}"),
        ("two lines", rf"20-3.trans.txt: line 3: a second line for {NAME}"),
        ("a digit", r"20-3.trans.txt: line 2: the alphabet is .* no '4' as in 'a 4'"),
        ("latin-1", r"20-3.trans.txt: not UTF-8"),
        ("rate", rf"{NAME}.flac: 8,000 samples per second .* must be 16,000 in one"),
        ("channels", rf"{NAME}.flac: 16,000 samples per second in 2 channels"),
    ],
)
def test_what_is_wrong_is_named(root: Path, kind: str, told: str):
    change(root, kind)
    with pytest.raises(DataProblem, match=told) as found:
        Manifest(root, ["b"])
    assert str(found.value).startswith(f"{root}/b/20/3/")


def test_missing_and_empty_subsets_are_explained(root: Path):
    with pytest.raises(DataProblem, match=f"{root}/c: no such folder. Expected .*scripts.prepare"):
        check_subsets(root, ["a", "c"])
    (root / "c" / "1").mkdir(parents=True)
    with pytest.raises(DataProblem, match="c: no <speaker>/<chapter>/"):
        Manifest(root, ["a", "c"])


def test_an_unreadable_header_is_named_until_it_is_repaired(root: Path, cache: Path):
    file = root / "b" / "20" / "3" / f"{NAME}.flac"
    whole = file.read_bytes()
    file.write_bytes(whole[:20])
    for _ in range(2):  # from the file, from the cache
        manifest = Manifest(root, ["a", "b"])
        assert list(manifest.unreadable) == [str(file)]
        assert "\n" not in manifest.unreadable[str(file)]
        assert (manifest.path(3), manifest.text(3)) == (str(file), "a b")
        assert manifest.samples.tolist() == [1600, 902, 900, 0, 903]
        assert manifest.within(0, 1000).tolist() == [0, 1, 2, 4]
    file.write_bytes(whole)
    repaired = Manifest(root, ["a", "b"])
    assert repaired.unreadable == {}
    assert repaired.samples[3] == 901


def test_a_header_without_a_length_is_unreadable(root: Path):
    """As encoders leave it that write to a pipe: FLAC's 36 bits of the length are 0."""
    file = root / "a" / "7" / "1" / "7-1-0000.flac"
    content = bytearray(file.read_bytes())
    assert int.from_bytes(content[21:26], "big") & (1 << 36) - 1 == 1600
    content[21] &= 0xF0
    content[22:26] = bytes(4)
    file.write_bytes(content)
    manifest = Manifest(root, ["a"])
    assert manifest.unreadable == {str(file): "its header does not say how long it is"}


def test_files_are_read_once(root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch):
    first = contents(Manifest(root, ["b", "a"]))
    monkeypatch.setattr(manifest_module, "_read", lambda *_: pytest.fail("read again"))
    assert contents(Manifest(root, ["a"])) == first[-1:]
    assert contents(Manifest(root, ["b", "a"])) == first
    assert {p.suffix for p in cache.rglob("*") if p.is_file()} == {".npy", ".json", ".lock"}


@pytest.mark.parametrize("kind", ["add", "remove", "other text", "damage", "format"])
def test_a_change_is_seen(root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, kind: str):
    before = contents(Manifest(root, ["b"]))
    (stored,) = cache.rglob("made.json")
    old = stored.read_bytes()
    place = root / "b" / "20" / "11"
    transcript, expected = place / "20-11.trans.txt", before
    if kind == "add":
        write_chapter(root / "b" / "9" / "1", {"9-1-0000": ("NEW", 700)})
        expected = [*before, ("9-1-0000", f"{root}/b/9/1/9-1-0000.flac", "new", 700)]
    elif kind == "remove":
        (place / "20-11-0000.flac").unlink()
        transcript.write_text("")
        expected = before[1:]
    elif kind == "other text":
        transcript.write_text("20-11-0000 ON")
        expected = [(*before[0][:2], "on", 902), *before[1:]]
    elif kind == "damage":
        texts = stored.with_name("texts.npy")
        texts.write_bytes(texts.read_bytes()[:-1] + b"X")
    else:
        monkeypatch.setattr(manifest_module, "VERSION", 0)
    said: list[str] = []
    assert contents(Manifest(root, ["b"], said.append)) == expected
    (notice,) = said
    assert notice.endswith("; it is made again")
    assert (stored.read_bytes() == old) == (kind == "damage")  # which is made good
    monkeypatch.setattr(manifest_module, "_read", lambda *_: pytest.fail("read again"))
    assert contents(Manifest(root, ["b"])) == expected


def test_one_reads_while_others_wait(root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch):
    calls: list[object] = []
    said: list[str] = []
    read = manifest_module._read

    def slowly(*arguments):
        calls.append(arguments)
        deadline = time.monotonic() + 30
        while len(said) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        return read(*arguments)

    monkeypatch.setattr(manifest_module, "_read", slowly)
    threads = [threading.Thread(target=Manifest, args=(root, ["b"], said.append)) for _ in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert len(said) == 2
    assert "waiting for another process" in said[0]


def test_without_a_cache_files_are_read_every_time(root: Path, cache: Path):
    cache.write_text("a file in the folder's place")
    assert len(Manifest(root, ["b"])) == len(Manifest(root, ["b"])) == 4


def test_small_subsets_leave_nothing_in_the_cache(root: Path, cache: Path, monkeypatch):
    monkeypatch.setattr(manifest_module, "WORTH_KEEPING", 4)
    Manifest(root, ["a", "b"])
    assert not cache.exists()


def test_long_reading_is_told(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(manifest_module, "SECONDS_BETWEEN_LINES", -1)
    said: list[str] = []
    Manifest(root, ["b"], said.append)
    assert len(said) == 3
    assert said[1].endswith("headers of 3 utterances in 2 of 3 chapters so far")


def test_real_speech(cache: Path):
    """CMU AN4 in LibriSpeech's layout."""
    root = Path(os.environ.get("DATA_ROOT", "/nowhere")) / "an4" / "LibriSpeech"
    if not root.is_dir():
        pytest.skip("needs $DATA_ROOT/an4/LibriSpeech/{train-clean-100,dev-clean,test-clean}")
    counts = {"train-clean-100": 848, "dev-clean": 100, "test-clean": 130}
    assert {subset: len(Manifest(root, [subset])) for subset in counts} == counts
    manifest = Manifest(root, [*counts])
    assert len(manifest) == sum(counts.values())
    assert manifest.unreadable == {}
    assert all(encode(manifest.text(i)) for i in range(len(manifest)))
    assert len(manifest.within(0.1, 16.7)) == len(manifest)
