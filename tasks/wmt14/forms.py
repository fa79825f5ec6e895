"""The forms in which English-German pairs are accepted: statmt's archives, parquet, own texts."""

from __future__ import annotations

import gzip
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, ClassVar, NamedTuple, Self

from tasks.base import DataProblem
from tasks.download import CHUNK, Report
from tasks.making import Say
from tasks.manifests import COUNTS, Manifest, Part, compare, read_manifest
from tasks.parquet import ParquetFile, by_split, parquet_files, read_rows
from tasks.sources import Source, StagedSource, Survey, Units, link
from tasks.tars import open_tar
from tasks.wmt14.prepare import LANGUAGES, SPLITS, prepare, write_statmt_manifest
from tasks.wmt14.statmt import OFFICIAL_PAIRS, Wmt

TEXT = re.compile(r"(?P<base>.+?)\.(?P<language>en|de)(?:\.txt)?(?P<packed>\.gz)?", re.IGNORECASE)
NAMES = (  # the first that is found in a file's name decides
    (re.compile(r"newstest-?2013"), "valid"),
    (re.compile(r"newstest-?2014"), "test"),
    (re.compile(r"newstest"), None),
    (re.compile(r"(?:^|[^a-z])(?:valid|validation|val|dev)(?:[^a-z]|$)"), "valid"),
    (re.compile(r"(?:^|[^a-z])test(?:[^a-z]|$)"), "test"),
    (re.compile(r"(?:^|[^a-z])train|europarl|commoncrawl|news-?commentary"), "train"),
)
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".zip")
MOST_GROWTH = 50  # a text has at most so many times the bytes of its .gz
USUAL_GROWTH = 4
READING = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, OSError)


def compared(form: str, action: str, split: str, pairs: int, size: int) -> Part:
    """A split: the held-out ones have official counts, the training text has archives."""
    counts = {"pairs": pairs}
    if split in OFFICIAL_PAIRS:
        return Part(form, action, counts, size, COUNTS, compare(counts, OFFICIAL_PAIRS[split]))
    difference = f"{pairs:,} pairs that are not compared with WMT's archives"
    return Part(form, action, counts, size, "", [difference])


class Statmt(Source):
    """The archives of statmt.org, in one folder, unpacked into their place."""

    form = "statmt archives"
    wanted = "training-parallel-europarl-v7.tgz and the others of statmt.org"
    action = "unpacked"
    expected: ClassVar[Wmt] = Wmt()
    news_commentary = "v11"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def recognise(cls, found: Survey) -> Self | None:
        all_of_them = (*cls.expected.always, *cls.expected.news_commentary.values())
        there = found.named(*(corpus.archive for corpus in all_of_them))
        if not there:
            return None
        folders = sorted({path.parent for path in there})
        if len(folders) > 1:
            raise DataProblem(
                f"{', '.join(map(str, folders))}: the archives must lie in one folder (symbolic"
                " links will do)"
            )
        return cls(folders[0])

    def describe(self) -> str:
        return f"{self.folder}: WMT's archives; checksums, then unpacking"

    def prepare(self, root: Path, data: str, report: Report, say: Say) -> tuple[Manifest, bool]:
        names = [corpus.archive for corpus in self.expected.corpora(self.news_commentary)]
        missing = [name for name in names if not (self.folder / name).is_file()]
        if missing:
            raise DataProblem(
                f"{self.folder}: missing {', '.join(missing)}; without --from all archives are"
                " downloaded"
            )
        say(self.describe())
        is_new = prepare(
            root,
            report,
            self.folder,
            news_commentary=self.news_commentary,
            expected=self.expected,
            say=say,
        )
        manifest = read_manifest(root) or write_statmt_manifest(root, self.expected)
        return manifest, is_new


class ParquetPairs(StagedSource):
    """A column `translation` with de and en, as Hugging Face's wmt14 has it."""

    form = "Hugging Face parquet"
    wanted = "*.parquet of train, validation and test with the column translation (en, de)"
    action = "unpacked"
    COLUMNS: ClassVar = [f"translation.{language}" for language in LANGUAGES]

    def __init__(self, splits: dict[str, list[ParquetFile]]) -> None:
        self.splits = splits

    @classmethod
    def recognise(cls, found: Survey) -> Self | None:
        files = parquet_files(found.ending(".parquet"))
        files = [file for file in files if set(cls.COLUMNS) <= set(file.columns)]
        return cls(by_split(files, SPLITS)) if files else None

    def describe(self) -> str:
        rows = sum(file.rows for file in self.splits["train"])
        return f"{self.inputs()[0].parent}: parquet of {rows:,} training pairs, written as texts"

    def inputs(self) -> list[Path]:
        return [file.path for some in self.splits.values() for file in some]

    def bytes_needed(self) -> int:
        return sum(file.uncompressed for some in self.splits.values() for file in some)

    def write(self, folder: Path, units: Units, report: Report, say: Say) -> dict[str, Part]:
        parts, done, total = {}, 0, max(1, self.bytes_needed())
        report("writing pairs", 0, total)
        for split, some in self.splits.items():
            pairs = 0
            targets = [folder / f"{split}.{language}" for language in LANGUAGES]
            with targets[0].open("wb") as en, targets[1].open("wb") as de:
                for file in some:
                    for row in read_rows(file, self.COLUMNS):
                        pair = row["translation"] or {}
                        en.write(_line(pair.get("en"), file.path))
                        de.write(_line(pair.get("de"), file.path))
                        pairs += 1
                    done += file.uncompressed
                    report("writing pairs", done, total)
            size = sum(target.stat().st_size for target in targets)
            parts[split] = compared(self.form, self.action, split, pairs, size)
        return parts


def _line(text: object, origin: Path) -> bytes:
    """One line, whatever ends of lines are in the text."""
    if not isinstance(text, str):
        raise DataProblem(f"{origin}: a row without a text in both languages")
    return (" ".join(re.split(r"[\r\n]+", text)).strip() + "\n").encode()


@dataclass(frozen=True)
class Text:
    """One language of one corpus: a file, or a member of an archive."""

    path: Path
    member: str  # empty if the file itself is the text
    base: str
    split: str
    language: str
    size: int  # bytes, unpacked; of a .gz a guess

    @property
    def is_plain(self) -> bool:
        return not self.member and not self.path.name.lower().endswith(".gz")

    @property
    def name(self) -> str:
        return f"{self.path}, {self.member}" if self.member else str(self.path)


class Pair(NamedTuple):
    """Both languages of a corpus."""

    en: Text
    de: Text


class Texts(StagedSource):
    """Line-aligned texts in both languages, plain, as .gz, or in tar or zip archives."""

    form = "own texts"
    wanted = "{train,valid,test}.{en,de}, also .gz or in a tar or zip (dev and val do for valid)"
    action = "linked"

    def __init__(self, splits: dict[str, list[Pair]]) -> None:
        self.splits = splits
        texts = [text for some in splits.values() for pair in some for text in pair]
        if any(text.member for text in texts):
            self.form = "texts in archives"
        if not all(text.is_plain for text in texts) or any(len(s) > 1 for s in splits.values()):
            self.action = "unpacked"  # type: ignore[misc]

    @classmethod
    def recognise(cls, found: Survey) -> Self | None:
        texts = [text for text in map(_text, found.files) if text]
        for path in found.ending(*ARCHIVES):
            texts += _texts_in(path)
        splits = {split: _pairs([t for t in texts if t.split == split]) for split in SPLITS}
        if not any(splits.values()):
            return None
        missing = [split for split, some in splits.items() if not some]
        if missing:
            raise DataProblem(
                f"{', '.join(map(str, found.paths))}: no {' and no '.join(missing)} in both"
                f" languages; expected {', '.join(f'{s}.en and {s}.de' for s in missing)}"
            )
        for split in SPLITS[1:]:
            if len(splits[split]) > 1:
                names = ", ".join(pair.en.name for pair in splits[split])
                raise DataProblem(f"{names}: several texts for {split}; name one")
        return cls(splits)

    def describe(self) -> str:
        some = self.splits["train"]
        names = ", ".join(pair.en.base for pair in some)
        how = "linked, no copy" if self.action == "linked" else "written one after another"
        return f"{some[0].en.path.parent}: {self.form}, {names} for training; {how}"

    def inputs(self) -> list[Path]:
        texts = [text for some in self.splits.values() for pair in some for text in pair]
        return [*dict.fromkeys(text.path for text in texts)]

    def bytes_needed(self) -> int:
        if self.action == "linked":
            return 0
        return sum(t.size for some in self.splits.values() for pair in some for t in pair)

    def write(self, folder: Path, units: Units, report: Report, say: Say) -> dict[str, Part]:
        parts, done = {}, 0
        total = max(1, sum(t.size for s in self.splits.values() for pair in s for t in pair))
        for split, some in self.splits.items():
            pairs = size = 0
            for pair in some:
                counts = []
                for text in pair:
                    target = folder / f"{split}.{text.language}"
                    if self.action == "linked":
                        counts.append(_count_lines(text))
                        link(text.path, target)
                    else:
                        counts.append(_append(text, target, is_first=pair is some[0]))
                    done += text.size
                    report("reading texts", min(done, total), total)
                if counts[0] != counts[1]:
                    raise DataProblem(
                        f"{pair.de.name}: {counts[1]:,} lines, but {pair.en.name} has"
                        f" {counts[0]:,}; line i of one must translate line i of the other"
                    )
                pairs += counts[0]
            size = sum((folder / f"{split}.{lang}").stat().st_size for lang in LANGUAGES)
            parts[split] = compared(self.form, self.action, split, pairs, size)
        return parts


def split_of_text(base: str) -> str | None:
    """Which split a text belongs to by its name."""
    name = base.lower()
    return next((split for pattern, split in NAMES if pattern.search(name)), None)


def _text(path: Path, member: str = "", size: int | None = None) -> Text | None:
    match = TEXT.fullmatch(Path(member or path.name).name)
    split = split_of_text(match["base"]) if match else None
    if match is None or split is None or (member and match["packed"]):
        return None
    if size is None:
        growth = USUAL_GROWTH if match["packed"] else 1
        size = path.stat().st_size * growth
    return Text(path, member, match["base"], split, match["language"].lower(), size)


def _texts_in(path: Path) -> list[Text]:
    """Texts in an archive; what else is in it does not matter."""
    found: list[Text] = []
    try:
        if path.name.lower().endswith(".zip"):
            with zipfile.ZipFile(path) as packed:
                sizes = {info.filename: info.file_size for info in packed.infolist()}
        else:
            with open_tar(path, "r:*") as tar:
                sizes = {member.name: member.size for member in tar if member.isreg()}
    except READING as error:
        raise DataProblem(f"{path}: cannot be read: {error}; get it again") from error
    for name, size in sizes.items():
        text = _text(path, name, size)
        if text is not None:
            if size > MOST_GROWTH * path.stat().st_size + CHUNK:
                raise DataProblem(
                    f"{path}: {name} declares {size:,} bytes, too many for {path.stat().st_size:,}"
                    " packed ones"
                )
            found.append(text)
    return found


def _pairs(texts: Sequence[Text]) -> list[Pair]:
    """Texts of the same name in both languages, in the order of the names."""
    found: dict[str, dict[str, Text]] = {}
    for text in texts:
        sides = found.setdefault(f"{text.path.parent if not text.member else ''}/{text.base}", {})
        other = sides.setdefault(text.language, text)
        if other is not text and other.is_plain == text.is_plain:
            raise DataProblem(f"{other.name} and {text.name}: the same text twice; name one")
        if text.is_plain:
            sides[text.language] = text  # rather than its .gz beside it
    return [Pair(sides["en"], sides["de"]) for _, sides in sorted(found.items()) if len(sides) == 2]


@contextmanager
def _opened(text: Text) -> Iterator[IO[bytes]]:
    try:
        if text.member and text.path.name.lower().endswith(".zip"):
            with zipfile.ZipFile(text.path) as packed, packed.open(text.member) as file:
                yield file
        elif text.member:
            with open_tar(text.path, "r:*") as tar:
                member = tar.extractfile(text.member)
                if member is None:
                    raise DataProblem(f"{text.name}: not a file")
                yield member
        elif text.is_plain:
            with text.path.open("rb") as plain:
                yield plain
        else:
            with gzip.open(text.path) as unpacked:
                yield unpacked  # type: ignore[misc]
    except READING as error:
        raise DataProblem(f"{text.name}: cannot be read: {error}") from error


def _chunks(text: Text) -> Iterator[bytes]:
    """The whole text; never more than it may have by its size in the archive."""
    most = text.size if text.member or text.is_plain else MOST_GROWTH * text.path.stat().st_size
    done = 0
    with _opened(text) as file:
        while chunk := file.read(CHUNK):
            done += len(chunk)
            if done > most + CHUNK:
                raise DataProblem(f"{text.name}: more than {most:,} bytes come out of it")
            yield chunk


def _count_lines(text: Text) -> int:
    lines, last = 0, b"\n"
    for chunk in _chunks(text):
        lines += chunk.count(b"\n")
        last = chunk[-1:]
    return lines + (last != b"\n")


def _append(text: Text, target: Path, *, is_first: bool) -> int:
    """Its lines at the end of a file, each with an end."""
    lines, last = 0, b"\n"
    with target.open("wb" if is_first else "ab") as file:
        for chunk in _chunks(text):
            file.write(chunk)
            lines += chunk.count(b"\n")
            last = chunk[-1:]
        if last != b"\n":
            file.write(b"\n")
            lines += 1
    return lines


FORMS: tuple[type[Source], ...] = (Statmt, ParquetPairs, Texts)
