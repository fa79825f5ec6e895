"""WikiText-103, word level: from its archive to the folder that `tasks.wikitext103.text` reads.

The archive is downloaded, unless the user has it. Its three texts are unpacked, their lines, words
and vocabulary counted, and only then does the folder get its name. The manifest has the sizes, so
that a second call need not count.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from tasks.base import DataProblem
from tasks.download import CHUNK, Patience, Report, check_space, fetch
from tasks.files import rename
from tasks.making import Say, alone
from tasks.manifests import CHECKSUMS, COUNTS, Manifest, Part, read_manifest, write_manifest

SPLITS = ("train", "valid", "test")
DATA = "wikitext-103"
ADVICE = "get it again, or from another place (docs/data.md)"
LINES_AT_ONCE = 1 << 24  # bytes


@dataclass(frozen=True)
class Counts:
    """What a text holds; every end of a line, also of an empty one, counts as the word <eos>."""

    lines: int
    tokens: int
    most_bytes: int  # that are unpacked of it


@dataclass(frozen=True)
class WikiText:
    """The archive and what must be in it: other values for tests.

    Both checksums are those that several libraries have for this file. The numbers of tokens and
    the vocabulary are those of Dai et al., Transformer-XL.
    """

    urls: tuple[str, ...] = (
        "https://wikitext.smerity.com/wikitext-103-v1.zip",
        "https://s3.amazonaws.com/research.metamind.io/wikitext/wikitext-103-v1.zip",
    )
    archive: str = "wikitext-103-v1.zip"
    size: int | None = 190_229_076  # bytes
    sums: Mapping[str, str] = field(
        default_factory=lambda: MappingProxyType(
            {
                "md5": "9ddaacaf6af0710eda8c456decff7832",
                "sha256": "242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590",
            }
        )
    )
    train: Counts = Counts(1_801_350, 103_227_021, 1_000_000_000)
    valid: Counts = Counts(3_760, 217_646, 10_000_000)
    test: Counts = Counts(4_358, 245_569, 10_000_000)
    vocabulary: int = 267_735  # of train, with <eos>

    def counts(self, split: str) -> Counts:
        return {"train": self.train, "valid": self.valid, "test": self.test}[split]


WIKITEXT_2 = WikiText(
    urls=(
        "https://wikitext.smerity.com/wikitext-2-v1.zip",
        "https://s3.amazonaws.com/research.metamind.io/wikitext/wikitext-2-v1.zip",
    ),
    archive="wikitext-2-v1.zip",
    size=None,
    sums={"sha256": "92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c"},
    train=Counts(36_718, 2_088_628, 50_000_000),
    vocabulary=33_278,
)


def prepare(
    root: Path,
    report: Report,
    *,
    expected: WikiText | None = None,
    patience: Patience | None = None,
    say: Say = print,
) -> bool:
    """Makes `root` of the downloaded archive; False if it was complete before."""
    expected = expected or WikiText()
    if is_counted(root):
        return False
    with alone(root, say) as temporary:
        if is_counted(root):  # another process was quicker
            return False
        if root.exists():  # unpacked by the user: counted once
            parts = count_texts(root, root, "folder", "in place", report, expected)
            write_manifest(root, Manifest(DATA, parts), in_place=True)
            return False
        archive = root.parent / expected.archive
        is_new = fetch(
            expected.urls, archive, expected.sums, report, size=expected.size, patience=patience
        )
        made = temporary / root.name
        made.mkdir()
        unpack(archive, made, report, expected)
        action = "downloaded and unpacked" if is_new else "unpacked"
        parts = count_texts(made, archive, "official archive", action, report, expected)
        parts = {name: replace(part, compared=CHECKSUMS) for name, part in parts.items()}
        write_manifest(made, Manifest(DATA, parts))
        os.sync()  # the texts are on the disk before the folder has its name
        rename(made, root)
        if is_new:
            archive.unlink()
    return True


# Unpacking.


def members_of(archive: Path) -> dict[str, zipfile.ZipInfo]:
    """The three texts in a zip, in whatever folder, by split; those that are there."""
    found: dict[str, zipfile.ZipInfo] = {}
    try:
        with zipfile.ZipFile(archive) as packed:
            names = {name_of(split): split for split in SPLITS}
            for info in packed.infolist():
                split = names.get(info.filename.rpartition("/")[2])
                if split and found.setdefault(split, info) is not info:
                    raise DataProblem(f"{archive}: {name_of(split)} is in it twice")
    except zipfile.BadZipFile as error:
        raise DataProblem(f"{archive}: cannot be unpacked: {error}; get it again") from error
    return found


def unpack(archive: Path, folder: Path, report: Report, expected: WikiText) -> None:
    """The three texts and nothing else, into files of our own names, never longer than bounded."""
    members = members_of(archive)
    missing = [name_of(split) for split in SPLITS if split not in members]
    if missing:
        raise DataProblem(f"{archive}: no {missing[0]} in it; it is not {expected.archive}")
    for split, info in members.items():
        most = expected.counts(split).most_bytes
        if info.file_size > most:
            raise DataProblem(
                f"{archive}: {info.filename} would have {info.file_size:,} bytes, but must have no"
                f" more than {most:,}"
            )
    check_space(folder, sum(info.file_size for info in members.values()))
    try:
        with zipfile.ZipFile(archive) as packed:
            for split, info in members.items():
                _copy(packed, info, folder / name_of(split), report)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise DataProblem(f"{archive}: cannot be unpacked: {error}; get it again") from error


def _copy(packed: zipfile.ZipFile, info: zipfile.ZipInfo, target: Path, report: Report) -> None:
    done = 0
    with packed.open(info) as source, target.open("wb") as file:
        while chunk := source.read(CHUNK):
            done += len(chunk)
            if done > info.file_size:
                raise zipfile.BadZipFile(f"{info.filename} is longer than it says")
            file.write(chunk)
            report(f"unpacking {target.name}", done, info.file_size)


# Checking.


def count_texts(
    root: Path, origin: Path, form: str, action: str, report: Report, expected: WikiText
) -> dict[str, Part]:
    """Counts every text; DataProblem unless all is as in WikiText-103. `origin` is for messages."""
    parts = {}
    for split in SPLITS:
        file = root / name_of(split)
        if not file.is_file():
            raise DataProblem(f"{file}: missing, so {root} is not whole; {ADVICE}")
        lines, tokens, words = _count(file, report, with_words=split == "train")
        wanted = expected.counts(split)
        found = {"lines": (lines, wanted.lines), "tokens with <eos>": (tokens, wanted.tokens)}
        if split == "train":
            found["words in its vocabulary with <eos>"] = (len(words) + 1, expected.vocabulary)
        for what, (is_there, must_be) in found.items():
            if is_there != must_be:
                raise DataProblem(
                    f"{origin}: {file.name} has {is_there:,} {what}, but must have {must_be:,}: it"
                    f" is not the text of {expected.archive}{_raw_hint(words)}; {ADVICE}"
                )
        counts = {"lines": lines, "tokens": tokens}
        if split == "train":
            counts["vocabulary"] = len(words) + 1
        parts[split] = Part(form, action, counts, file.stat().st_size, COUNTS)
    return parts


def _raw_hint(words: set[str]) -> str:
    is_raw = bool(words) and "<unk>" not in words
    return " but perhaps of the -raw variant, which the paper did not use" if is_raw else ""


def _count(file: Path, report: Report, with_words: bool) -> tuple[int, int, set[str]]:
    lines, tokens, done, size = 0, 0, 0, file.stat().st_size
    words: set[str] = set()
    with file.open("rb") as text:
        while some := text.readlines(LINES_AT_ONCE):
            joined = b"".join(some)
            try:
                found = joined.decode().split()
            except UnicodeDecodeError as error:
                raise DataProblem(f"{file}: not UTF-8: {error}") from error
            lines += len(some)
            tokens += len(some) + len(found)
            done += len(joined)
            if with_words:
                words.update(found)
            report(f"counting {file.name}", done, size)
    return lines, tokens, words


def name_of(split: str) -> str:
    """The file of a split."""
    return f"wiki.{split}.tokens"


def is_counted(root: Path) -> bool:
    """Whether the folder was counted, and its files still have the sizes that they had then."""
    manifest = read_manifest(root)
    try:
        return manifest is not None and all(
            (root / name_of(s)).stat().st_size == manifest.parts[s].bytes for s in SPLITS
        )
    except (OSError, KeyError):
        return False
