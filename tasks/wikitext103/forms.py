"""The forms in which WikiText-103 is accepted: its zip, its folder, parquet; never the raw text."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Self

from tasks.base import DataProblem
from tasks.download import Report, file_sums
from tasks.making import Say
from tasks.manifests import CHECKSUMS, Part
from tasks.parquet import ParquetFile, by_split, parquet_files, read_rows
from tasks.sources import Source, StagedSource, Survey, Units, link
from tasks.wikitext103.prepare import (
    SPLITS,
    WikiText,
    count_texts,
    members_of,
    name_of,
    unpack,
)

RAW = "the -raw variant has other words than the paper's vocabulary of 267,735; get wikitext-103-v1"


class WikiTextSource(StagedSource):
    """`expected` are the real counts: other ones for tests."""

    expected: ClassVar[WikiText] = WikiText()


def refuse_raw(found: Survey) -> None:
    """DataProblem if only the raw texts are there."""
    raw = found.named(*(f"wiki.{split}.raw" for split in SPLITS))
    if raw and not found.named(*map(name_of, SPLITS)):
        raise DataProblem(f"{raw[0]}: {RAW}")


class Zip(WikiTextSource):
    """The archive, whatever it is called."""

    form = "zip"
    wanted = "a zip with wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens"
    action = "unpacked"

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def recognise(cls, found: Survey) -> Self | None:
        for path in found.ending(".zip"):
            if not zipfile.is_zipfile(path):
                raise DataProblem(f"{path}: not a whole zip archive; copy or download it again")
            with zipfile.ZipFile(path) as packed:
                is_raw = any(name.endswith("wiki.train.raw") for name in packed.namelist())
            if is_raw:
                raise DataProblem(f"{path}: {RAW}")
            if members_of(path):
                return cls(path)
        return None

    def describe(self) -> str:
        return f"{self.path}: WikiText's zip; unpacked and counted"

    def inputs(self) -> list[Path]:
        return [self.path]

    def bytes_needed(self) -> int:
        return sum(info.file_size for info in members_of(self.path).values())

    def write(self, folder: Path, units: Units, report: Report, say: Say) -> dict[str, Part]:
        found = file_sums(self.path, self.expected.sums, report)
        unpack(self.path, folder, report, self.expected)
        parts = count_texts(folder, self.path, self.form, self.action, report, self.expected)
        if found != dict(self.expected.sums):
            return parts
        return {name: replace(part, compared=CHECKSUMS, sums=found) for name, part in parts.items()}


class Folder(WikiTextSource):
    """The three texts, linked."""

    form = "folder"
    wanted = "wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens"
    action = "linked"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def recognise(cls, found: Survey) -> Self | None:
        refuse_raw(found)
        there = found.named(*map(name_of, SPLITS))
        folders = sorted({path.parent for path in there})
        if not folders:
            return None
        if len(folders) > 1:
            raise DataProblem(f"{', '.join(map(str, folders))}: several folders of texts; name one")
        missing = [name_of(s) for s in SPLITS if not (folders[0] / name_of(s)).is_file()]
        if missing:
            raise DataProblem(f"{folders[0]}: missing {', '.join(missing)}; copy it again")
        return cls(folders[0])

    def describe(self) -> str:
        return f"{self.folder}: WikiText's texts; counted and linked, no copy"

    def inputs(self) -> list[Path]:
        return [self.folder / name_of(split) for split in SPLITS]

    def bytes_needed(self) -> int:
        return 0

    def write(self, folder: Path, units: Units, report: Report, say: Say) -> dict[str, Part]:
        origin = self.folder
        parts = count_texts(origin, origin, self.form, self.action, report, self.expected)
        for path in self.inputs():
            link(path, folder / path.name)
        return parts


class ParquetText(WikiTextSource):
    """A column `text` with a row for each line, as Hugging Face's wikitext has it."""

    form = "Hugging Face parquet"
    wanted = "*.parquet of train, validation and test of wikitext-103-v1, with the column text"
    action = "unpacked"

    def __init__(self, splits: dict[str, list[ParquetFile]]) -> None:
        self.splits = splits

    @classmethod
    def recognise(cls, found: Survey) -> Self | None:
        files = [f for f in parquet_files(found.ending(".parquet")) if "text" in f.columns]
        if not files:
            return None
        raw = [f for f in files if any("-raw" in part for part in f.path.parts[-4:])]
        files = [f for f in files if f not in raw]
        if raw and not files:
            raise DataProblem(f"{raw[0].path}: {RAW}")
        named = [f for f in files if any("wikitext-103-v1" in part for part in f.path.parts)]
        return cls(by_split(named or files, SPLITS))

    def describe(self) -> str:
        return f"{self.inputs()[0].parent}: parquet of WikiText; written as texts and counted"

    def inputs(self) -> list[Path]:
        return [file.path for some in self.splits.values() for file in some]

    def bytes_needed(self) -> int:
        return sum(file.uncompressed for some in self.splits.values() for file in some)

    def write(self, folder: Path, units: Units, report: Report, say: Say) -> dict[str, Part]:
        for split, some in self.splits.items():
            total = max(1, sum(file.uncompressed for file in some))
            done, most = 0, self.expected.counts(split).most_bytes
            with (folder / name_of(split)).open("wb") as out:
                for file in some:
                    for row in read_rows(file, ["text"]):
                        done += out.write(_line(row["text"], file.path))
                        if done > most:
                            raise DataProblem(f"{file.path}: more than {most:,} bytes of text")
                    report(f"writing {name_of(split)}", min(done, total), total)
        origin = self.inputs()[0].parent
        return count_texts(folder, origin, self.form, self.action, report, self.expected)


def _line(text: object, origin: Path) -> bytes:
    """A row is a line, with its end or without; an empty one is " " in the original files."""
    if not isinstance(text, str):
        raise DataProblem(f"{origin}: a row without text")
    return ((text.removesuffix("\n") or " ") + "\n").encode()


FORMS: tuple[type[Source], ...] = (Zip, ParquetText, Folder)
