"""The forms in which LibriSpeech is accepted: archives, parquet, and folders of FLAC or WAV."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from tasks.base import DataProblem
from tasks.download import Report
from tasks.librispeech.manifest import transcript_of
from tasks.librispeech.prepare import LibriSpeech, check_subset, prepare
from tasks.making import Say
from tasks.manifests import Manifest, Part, read_manifest
from tasks.parquet import ParquetFile, check_numbering, parquet_files, read_rows
from tasks.sources import Source, StagedSource, Survey, Units, link

MINI = ("train-clean-5", "dev-clean-2")
UTTERANCE = re.compile(r"(?P<speaker>[0-9]+)-(?P<chapter>[0-9]+)-[0-9]+", re.ASCII)
TRAIN = re.compile(r"train[._-]?(?:clean|other)?[._-]?(100|360|500)(?![0-9])")
HELD_OUT = re.compile(r"(?:^|[^a-z])(validation|dev|test)(?:[^a-z]|$)")
KIND = re.compile(r"(?:^|[^a-z])(clean|other)(?:[^a-z]|$)")
SOUNDS = {b"fLaC": ".flac", b"RIFF": ".wav"}  # by the first four bytes


class LibriSpeechSource(Source):
    """`expected` are the official subsets: other ones for tests."""

    expected: ClassVar[LibriSpeech] = LibriSpeech()
    subsets: list[str]

    def choose(self, names: Sequence[str]) -> None:
        """Only these subsets; DataProblem if the source does not have one of them."""
        missing = [name for name in names if name not in self.subsets]
        if missing:
            raise DataProblem(
                f"{missing[0]}: not among the source's subsets, which are {', '.join(self.subsets)}"
            )
        self.subsets = [name for name in self.subsets if name in names]

    def part_names(self) -> list[str]:
        return list(self.subsets)


class Archives(LibriSpeechSource):
    """Tarballs of openslr.org, one for each subset, unpacked into their place."""

    form = "official archives"
    wanted = "dev-clean.tar.gz, train-clean-100.tar.gz and so on"
    action = "unpacked"

    def __init__(self, folder: Path, subsets: list[str]) -> None:
        self.folder, self.subsets = folder, subsets

    @classmethod
    def recognise(cls, found: Survey) -> Self | None:
        names = {f"{name}.tar.gz": name for name in cls.expected.subsets}
        there = found.named(*names)
        if not there:
            mini = found.named(*(f"{name}.tar.gz" for name in MINI))
            if mini:
                raise DataProblem(
                    f"{mini[0]}: Mini LibriSpeech, a set of its own: python -m scripts.prepare"
                    " small --set mini-librispeech --from PATH"
                )
            return None
        folders = sorted({path.parent for path in there})
        if len(folders) > 1:
            raise DataProblem(
                f"{', '.join(map(str, folders))}: the archives must lie in one folder (symbolic"
                " links will do)"
            )
        return cls(folders[0], sorted(names[path.name] for path in there))

    def describe(self) -> str:
        return f"{self.folder}: archives of {', '.join(self.subsets)}; checksums, then unpacking"

    def prepare(self, root: Path, data: str, report: Report, say: Say) -> tuple[Manifest, bool]:
        say(self.describe())
        is_new = prepare(root, report, self.subsets, self.folder, expected=self.expected, say=say)
        manifest = read_manifest(root)
        assert manifest is not None
        return manifest, is_new


class SpeechFolders(LibriSpeechSource, StagedSource):
    """Unpacked subsets, also on a read-only disk: linked."""

    form = "folders"
    wanted = "folders named dev-clean, train-clean-100 and so on, as the archives unpack"
    action = "linked"

    def __init__(self, folders: dict[str, Path]) -> None:
        self.folders, self.subsets = folders, list(folders)

    @classmethod
    def recognise(cls, found: Survey) -> Self | None:
        folders: dict[str, Path] = {}
        for folder in found.folders:
            if folder.name not in cls.expected.subsets or not _has_speakers(folder):
                continue
            if folders.setdefault(folder.name, folder) != folder:
                raise DataProblem(
                    f"{folders[folder.name]} and {folder}: two folders of {folder.name}; name one"
                )
        return cls(folders) if folders else None

    def describe(self) -> str:
        places = sorted({str(self.folders[name].parent) for name in self.subsets})
        return f"{', '.join(places)}: folders of {', '.join(self.subsets)}; linked, no copy"

    def inputs(self) -> list[Path]:
        return [self.folders[name] for name in self.subsets]

    def bytes_needed(self) -> int:
        return 0

    def write(self, folder: Path, units: Units, report: Report, say: Say) -> dict[str, Part]:
        parts = {}
        for name in self.subsets:
            source = self.folders[name]
            say(f"{source}: comparing sounds and transcripts")
            parts[name] = check_subset(source, source, self.form, self.action, self.expected)
            link(source, folder / name)
        return parts


def _has_speakers(folder: Path) -> bool:
    return any(path.name.isdecimal() and path.is_dir() for path in folder.iterdir())


class Utterance(NamedTuple):
    """A row of a parquet file without its sound."""

    id: str
    text: str

    @property
    def chapter(self) -> Path:
        match = UTTERANCE.fullmatch(self.id)
        assert match is not None, "checked when it was read"
        return Path(match["speaker"], match["chapter"])


class ParquetSpeech(LibriSpeechSource, StagedSource):
    """Columns `audio` (bytes and path), `text` and `id`, as Hugging Face's librispeech_asr."""

    form = "Hugging Face parquet"
    wanted = "*.parquet with the columns audio, text and id"
    action = "unpacked"

    def __init__(self, files: dict[str, list[ParquetFile]]) -> None:
        self.files, self.subsets = files, list(files)

    @classmethod
    def recognise(cls, found: Survey) -> Self | None:
        files = parquet_files(found.ending(".parquet"))
        files = [file for file in files if {"audio.bytes", "text"} <= set(file.columns)]
        if not files:
            return None
        subsets: dict[str, list[ParquetFile]] = {}
        for file in files:
            subsets.setdefault(subset_of(file.path), []).append(file)
        for some in subsets.values():
            check_numbering(some)
        return cls(dict(sorted(subsets.items())))

    def describe(self) -> str:
        return (
            f"{self.inputs()[0].parent}: parquet files of {', '.join(self.subsets)};"
            f" {self.bytes_needed() / 1e9:,.1f} GB are unpacked"
        )

    def inputs(self) -> list[Path]:
        return [file.path for name in self.subsets for file in self.files[name]]

    def bytes_needed(self) -> int:
        return sum(file.uncompressed for name in self.subsets for file in self.files[name])

    def write(self, folder: Path, units: Units, report: Report, say: Say) -> dict[str, Part]:
        parts, done, total = {}, 0, max(1, self.bytes_needed())
        report("unpacking sounds", 0, total)
        for name in self.subsets:
            utterances = {file.path: read_utterances(file) for file in self.files[name]}
            _check_different([u for some in utterances.values() for u in some], name)
            for file in self.files[name]:
                if str(file.path) not in units:
                    _write_sounds(file, utterances[file.path], folder / name)
                    units.finish(str(file.path))
                done += file.uncompressed
                report("unpacking sounds", done, total)
            _write_transcripts([u for some in utterances.values() for u in some], folder / name)
            origin = self.files[name][0].path.parent
            parts[name] = check_subset(folder / name, origin, self.form, self.action, self.expected)
        report("unpacking sounds", total, total)
        return parts


def subset_of(path: Path) -> str:
    """LibriSpeech's name of a subset, by the file's and its nearest folders' names."""
    text = "/".join([*(p.name for p in reversed(list(path.parents)[:2])), path.stem]).lower()
    train, held_out, kinds = TRAIN.search(text), HELD_OUT.search(text), set(KIND.findall(text))
    if train:
        return f"train-{'other' if train[1] == '500' else 'clean'}-{train[1]}"
    if held_out and len(kinds) == 1:
        return f"{'test' if held_out[1] == 'test' else 'dev'}-{kinds.pop()}"
    raise DataProblem(
        f"{path}: which subset it is of cannot be seen from its name; it must be as"
        " train-clean-100-….parquet, clean/test/….parquet or validation.other/….parquet"
    )


def read_utterances(file: ParquetFile) -> list[Utterance]:
    """Ids and texts, without sounds."""
    columns = ["text", *(c for c in ("id", "audio.path", "file") if c in file.columns)]
    found = []
    for row in read_rows(file, columns):
        given = row.get("id") or (row.get("audio") or {}).get("path") or row.get("file") or ""
        name = Path(str(given)).name.partition(".")[0]
        if not UTTERANCE.fullmatch(name):
            raise DataProblem(f"{file.path}: {given!r} must be an id as 1089-134686-0000")
        if not isinstance(row["text"], str) or not row["text"].split():
            raise DataProblem(f"{file.path}: {name} has no text")
        found.append(Utterance(name, " ".join(row["text"].split()).upper()))
    return found


def _check_different(utterances: Sequence[Utterance], subset: str) -> None:
    seen: set[str] = set()
    for utterance in utterances:
        if utterance.id in seen:
            raise DataProblem(f"{subset}: {utterance.id} is in its parquet files twice")
        seen.add(utterance.id)


def _write_sounds(file: ParquetFile, utterances: Sequence[Utterance], folder: Path) -> None:
    sounds: Iterator[dict[str, Any]] = read_rows(file, ["audio.bytes"])
    for utterance, row in zip(utterances, sounds, strict=True):
        data = (row["audio"] or {}).get("bytes")
        if not data:
            raise DataProblem(f"{file.path}: {utterance.id} has no sound, perhaps only a path")
        suffix = SOUNDS.get(bytes(data[:4]))
        if suffix is None:
            raise DataProblem(f"{file.path}: the sound of {utterance.id} is neither FLAC nor WAV")
        place = folder / utterance.chapter
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{utterance.id}{suffix}").write_bytes(data)


def _write_transcripts(utterances: Sequence[Utterance], folder: Path) -> None:
    chapters: dict[Path, list[Utterance]] = {}
    for utterance in utterances:
        chapters.setdefault(utterance.chapter, []).append(utterance)
    for chapter, some in chapters.items():
        lines = "".join(f"{u.id} {u.text}\n" for u in sorted(some))
        transcript_of(folder / chapter).write_text(lines, encoding="utf-8")


FORMS: tuple[type[Source], ...] = (Archives, ParquetSpeech, SpeechFolders)
