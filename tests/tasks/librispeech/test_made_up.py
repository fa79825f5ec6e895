"""The smoke scale's speech."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import numpy as np
import pytest
import soundfile  # type: ignore[import-untyped]

from tasks.base import DataProblem
from tasks.librispeech.alphabet import CHARACTERS
from tasks.librispeech.made_up import LETTERS, SPEAKERS, WORDS, make_made_up, sing


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("data") / "made-up-speech"
    make_made_up(made)
    return made


def texts(folder: Path) -> dict[str, str]:
    lines = [
        line
        for file in sorted(folder.glob("*/*/*.trans.txt"))
        for line in file.read_text().splitlines()
    ]
    return {name: text for name, _, text in (line.partition(" ") for line in lines)}


def test_layout(root: Path):
    assert sorted(p.name for p in root.iterdir()) == sorted(SPEAKERS)
    assert sorted(p.name for p in root.parent.iterdir()) == [
        ".made-up-speech.lock",
        "made-up-speech",
    ]
    for subset in SPEAKERS:
        said = texts(root / subset)
        assert len(said) == (120 if subset.startswith("train") else 12)
        files = sorted((root / subset).glob("*/*/*.flac"))
        assert [file.stem for file in files] == sorted(said)
        for file in files:
            speaker, chapter, _ = file.stem.split("-")
            assert file.parent == root / subset / speaker / chapter
            info = soundfile.info(file)
            assert (info.samplerate, info.channels, info.subtype) == (16_000, 1, "PCM_16")
            assert 0.4 <= info.duration <= 0.9
    assert set(" ".join(WORDS).lower()) <= set(CHARACTERS)
    assert set("".join(WORDS)) == set(LETTERS)


def test_every_word_is_in_training(root: Path):
    assert set(" ".join(texts(root / "train-clean-100").values()).split()) == set(WORDS)


def test_a_letter_is_a_tone():
    """The loudest frequency of each letter's span rises with its place in LETTERS."""
    text = " ".join(WORDS)
    sound, at = sing(text, "7-1-0000"), 0.04
    found = {}
    for letter in text:
        length = 0.04 if letter == " " else 0.08
        span = sound[round(at * 16_000) : round((at + length) * 16_000)]
        at += length
        if letter != " ":
            found[letter] = int(np.abs(np.fft.rfft(span)).argmax())
    assert "".join(sorted(found, key=lambda letter: found[letter])) == LETTERS
    assert len(set(found.values())) == len(LETTERS)


def test_the_same_every_time(root: Path, tmp_path: Path):
    make_made_up(tmp_path / "again")
    for file in root.glob("*/*/*/*"):
        again = tmp_path / "again" / file.relative_to(root)
        if file.suffix == ".flac":
            assert np.array_equal(soundfile.read(file)[0], soundfile.read(again)[0])
        else:
            assert again.read_text() == file.read_text()


def test_what_is_there_is_used_or_refused(tmp_path: Path):
    root = tmp_path / "speech"
    make_made_up(root)
    times = {file: file.stat().st_mtime_ns for file in root.rglob("*")}
    make_made_up(root)
    assert times == {file: file.stat().st_mtime_ns for file in root.rglob("*")}
    sound = root / "dev-other" / "9" / "1" / "9-1-0003.flac"
    sound.unlink()
    with pytest.raises(DataProblem, match=f"^{sound}: missing or empty; move {root}"):
        make_made_up(root)
    text = root / "dev-clean" / "7" / "1" / "7-1.trans.txt"
    for other in (b"7-1-0000 OTHER\n", b"7-1-0000 \xff\n"):
        text.write_bytes(other)
        with pytest.raises(DataProblem, match=f"^{text}: not the made-up speech; move {root}"):
            make_made_up(root)


def test_several_processes_at_once(tmp_path: Path):
    context = multiprocessing.get_context("fork")
    root = tmp_path / "speech"
    processes = [context.Process(target=make_made_up, args=(root,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    make_made_up(root)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".speech.lock", "speech"]
