"""CMU's AN4 in LibriSpeech's layout, from the archive that CMU offers: an4_sphere.tar.gz.

Speakers get the numbers 9001 and on, those of training first, in the order of their names; every
ninth speaker of training is held out as dev-clean. Chapter 1 has the random phrases (an…), chapter
2 the speakers' own names and addresses (cen…). No word of it is changed.
"""

from __future__ import annotations

import io
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import soundfile  # type: ignore[import-untyped]

from tasks.base import DataProblem
from tasks.download import Report
from tasks.librispeech.manifest import Manifest as Utterances
from tasks.tars import open_tar

FIRST_SPEAKER = 9001
DEV_FIRST, DEV_EVERY = 4, 9  # of the speakers of training, counted from 0
SUBSETS = ("train-clean-100", "dev-clean", "test-clean")
LARGEST_MEMBER = 1 << 23  # bytes; the longest recording has 0.3 MB
RATE = 16_000
SOUND = re.compile(r"(?:.*/)?wav/an4(?P<test>test)?_clstk/(?P<speaker>\w+)/(?P<id>[\w-]+)\.sph")
TRANSCRIPT = re.compile(r"(?:.*/)?etc/an4_(?P<split>train|test)\.transcription")
LINE = re.compile(r"(?:<s>)?\s*(?P<text>.*?)\s*(?:</s>)?\s*\((?P<id>[\w-]+)\)\s*")
ID = re.compile(r"(?P<kind>an|cen)(?P<number>[0-9]+)-(?P<speaker>\w+)-b")


@dataclass(frozen=True)
class An4:
    """The archive and what must come out of it: other values for tests.

    The digests are of ids, lengths and texts, see `Manifest.digest`.
    """

    urls: tuple[str, ...] = (
        "https://dldata-public.s3.us-east-2.amazonaws.com/an4_sphere.tar.gz",
        "http://www.speech.cs.cmu.edu/databases/an4/an4_sphere.tar.gz",
    )
    sums: Mapping[str, str] = field(
        default_factory=lambda: MappingProxyType(
            {"sha256": "a0525579493735d32b60fb6fa5975dd0eaacde087b0a4eeb7f13b7ef33077b12"}
        )
    )
    about: int = 100_000_000  # bytes unpacked
    digests: Mapping[str, str] = field(
        default_factory=lambda: MappingProxyType(
            {
                "train-clean-100": (
                    "b711b7f0f980836bf2c284c54fef17e076a44d19d605f876754b95bfdd19eae9"
                ),
                "dev-clean": "faa7c340b2b4935c71b95216b31481118c2147079d006075f6d7ad20c61d9a0a",
                "test-clean": "1e61e31996adee08d5aea45f9ab4d508018cbf00515ca48c63f01ab9ca3885a1",
            }
        )
    )


class Recording(NamedTuple):
    """One sound of the archive."""

    speaker: str
    id: str
    is_test: bool


def convert(archive: Path, folder: Path, report: Report, expected: An4) -> None:
    """Writes the three subsets; DataProblem unless they are as expected."""
    texts, recordings = _read_index(archive)
    places = place_recordings(recordings)
    size = archive.stat().st_size
    for recording, data, read in _sounds(archive):
        subset, name = places[recording.id]
        speaker, chapter, _ = name.split("-")
        place = folder / subset / speaker / chapter
        place.mkdir(parents=True, exist_ok=True)
        try:
            samples, rate = soundfile.read(io.BytesIO(data), dtype="int16")
        except (soundfile.LibsndfileError, RuntimeError) as error:
            raise DataProblem(f"{archive}, {recording.id}: {error}") from error
        if rate != RATE or samples.ndim != 1:
            raise DataProblem(f"{archive}, {recording.id}: {rate:,} samples a second, not {RATE:,}")
        soundfile.write(place / f"{name}.flac", samples, RATE, "PCM_16", format="FLAC")
        report("converting AN4", read, size)
    report("converting AN4", size, size)
    _write_transcripts(folder, places, texts, archive)
    for subset, wanted in expected.digests.items():
        found = Utterances(folder, [subset], lambda _: None).digest()
        if found != wanted:
            raise DataProblem(f"{archive}: {subset} differs from AN4's: {found}, not {wanted}")


def place_recordings(recordings: Sequence[Recording]) -> dict[str, tuple[str, str]]:
    """Subset and LibriSpeech-like id of every recording, by its own id."""
    speakers = {r.speaker: r.is_test for r in sorted(recordings)}
    training = sorted(name for name, is_test in speakers.items() if not is_test)
    testing = sorted(name for name, is_test in speakers.items() if is_test)
    held_out = set(training[DEV_FIRST::DEV_EVERY])
    places: dict[str, tuple[str, str]] = {}
    for number, speaker in enumerate([*training, *testing], FIRST_SPEAKER):
        kind = "dev-clean" if speaker in held_out else "train-clean-100"
        subset = "test-clean" if speakers[speaker] else kind
        for chapter, prefix in ((1, "an"), (2, "cen")):
            own = [r.id for r in recordings if r.speaker == speaker and _kind(r.id) == prefix]
            for i, name in enumerate(sorted(own)):
                places[name] = (subset, f"{number}-{chapter}-{i:04}")
    return places


def _kind(name: str) -> str:
    match = ID.fullmatch(name)
    if match is None:
        raise DataProblem(f"AN4: a recording is named {name!r}; it must be as an251-fash-b")
    return match["kind"]


def _read_index(archive: Path) -> tuple[dict[str, str], list[Recording]]:
    texts: dict[str, str] = {}
    recordings = []
    for member, tar in _members(archive):
        transcript, sound = TRANSCRIPT.fullmatch(member.name), SOUND.fullmatch(member.name)
        if transcript:
            file = tar.extractfile(member)
            for line in (file.read() if file else b"").decode("ascii", "replace").splitlines():
                match = LINE.fullmatch(line)
                if match:
                    texts[match["id"]] = match["text"].upper()
        elif sound:
            recordings.append(Recording(sound["speaker"], sound["id"], bool(sound["test"])))
    missing = [r.id for r in recordings if not texts.get(r.id)]
    if missing or not recordings:
        what = f"no text for {missing[0]}" if missing else "no recordings"
        raise DataProblem(f"{archive}: {what} in it; it is not an4_sphere.tar.gz")
    return texts, recordings


def _sounds(archive: Path) -> Iterator[tuple[Recording, bytes, int]]:
    """Recordings with their bytes, and how many bytes of the archive were read."""
    done = 0
    for member, tar in _members(archive):
        match = SOUND.fullmatch(member.name)
        if match:
            file = tar.extractfile(member)
            data = file.read() if file else b""
            done += len(data) // 2
            recording = Recording(match["speaker"], match["id"], bool(match["test"]))
            yield recording, data, min(done, archive.stat().st_size)


def _members(archive: Path) -> Iterator[tuple[tarfile.TarInfo, tarfile.TarFile]]:
    """Plain files; names are matched and never used as paths."""
    try:
        with open_tar(archive, "r|gz") as tar:
            for member in tar:
                if member.isreg():
                    if member.size > LARGEST_MEMBER:
                        raise DataProblem(
                            f"{archive}: {member.name!r} declares {member.size:,} bytes"
                        )
                    yield member, tar
    except (tarfile.TarError, zlib.error, EOFError) as error:
        raise DataProblem(f"{archive}: cannot be unpacked: {error}; get it again") from error


def _write_transcripts(
    folder: Path, places: Mapping[str, tuple[str, str]], texts: Mapping[str, str], archive: Path
) -> None:
    lines: dict[Path, list[str]] = {}
    for own, (subset, name) in places.items():
        speaker, chapter, _ = name.split("-")
        file = folder / subset / speaker / chapter / f"{speaker}-{chapter}.trans.txt"
        lines.setdefault(file, []).append(f"{name} {texts[own]}")
    for file, some in lines.items():
        file.write_text("\n".join(sorted(some)) + "\n")
