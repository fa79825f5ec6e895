"""WikiText-103, word level: from its archive to the folder that `tasks.wikitext103.text` reads.

The archive is downloaded, unless the user has it. Its three texts are unpacked, their lines, words
and vocabulary counted, and only then does the folder get its name; `complete.json` in it has the
sizes, so that a second call need not count.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tasks.base import DataProblem
from tasks.download import CHUNK, Patience, Report, check_space, check_sums, fetch
from tasks.making import Say, alone

SPLITS = ("train", "valid", "test")
COMPLETE = "complete.json"
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
    folder: str = "wikitext-103"
    size: int = 190_229_076  # bytes
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


def prepare(
    root: Path,
    report: Report,
    archive: Path | None = None,
    *,
    expected: WikiText | None = None,
    patience: Patience | None = None,
    say: Say = print,
) -> bool:
    """Makes `root` of the archive, or of a downloaded one; False if it was complete before."""
    expected = expected or WikiText()
    if _is_stamped(root):
        return False
    if archive is not None and not archive.is_file():
        raise DataProblem(f"{archive}: no such file; expected {expected.archive}")
    with alone(root, say) as temporary:
        if _is_stamped(root):  # another process was quicker
            return False
        if root.exists():  # unpacked by the user: counted once
            _stamp(root, _check(root, root, report, expected))
            return False
        own, is_new = archive or root.parent / expected.archive, False
        if archive is None:
            is_new = fetch(
                expected.urls, own, expected.sums, report, size=expected.size, patience=patience
            )
        else:
            check_sums(archive, expected.sums, report)
        made = temporary / root.name
        made.mkdir()
        _unpack(own, made, report, expected)
        _stamp(made, _check(made, own, report, expected))
        made.rename(root)
        if is_new:
            own.unlink()
    return True


# Unpacking.


def _unpack(archive: Path, folder: Path, report: Report, expected: WikiText) -> None:
    """The three texts and nothing else, into files of our own names, never longer than bounded."""
    try:
        with zipfile.ZipFile(archive) as packed:
            names = {split: f"{expected.folder}/{_name(split)}" for split in SPLITS}
            sizes = {split: packed.getinfo(name).file_size for split, name in names.items()}
            for split, size in sizes.items():
                most = expected.counts(split).most_bytes
                if size > most:
                    raise DataProblem(
                        f"{archive}: {names[split]} would have {size:,} bytes, but must have no"
                        f" more than {most:,}"
                    )
            check_space(folder, sum(sizes.values()))
            for split, name in names.items():
                _copy(packed, name, folder / _name(split), sizes[split], report)
    except KeyError as error:
        raise DataProblem(f"{archive}: {error.args[0]}; it is not {expected.archive}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise DataProblem(f"{archive}: cannot be unpacked: {error}; get it again") from error


def _copy(packed: zipfile.ZipFile, name: str, target: Path, size: int, report: Report) -> None:
    done = 0
    with packed.open(name) as source, target.open("xb") as file:
        while chunk := source.read(CHUNK):
            done += len(chunk)
            if done > size:
                raise zipfile.BadZipFile(f"{name} is longer than it says")
            file.write(chunk)
            report(f"unpacking {target.name}", done, size)


# Checking.


def _check(root: Path, origin: Path, report: Report, expected: WikiText) -> dict[str, int]:
    """Counts every text, and returns the sizes of the files; `origin` is what a message names."""
    sizes = {}
    for split in SPLITS:
        file = root / _name(split)
        if not file.is_file():
            raise DataProblem(
                f"{file}: missing, so {root} is not whole; remove the folder to have it made again"
            )
        lines, tokens, words = _count(file, report, with_words=split == "train")
        wanted = expected.counts(split)
        found = {"lines": (lines, wanted.lines), "tokens with <eos>": (tokens, wanted.tokens)}
        if split == "train":
            found["words in its vocabulary with <eos>"] = (len(words) + 1, expected.vocabulary)
        for what, (is_there, must_be) in found.items():
            if is_there != must_be:
                raise DataProblem(
                    f"{origin}: {file.name} has {is_there:,} {what}, but must have {must_be:,}: it"
                    f" is not the text of {expected.archive}; remove {origin} to have it made again"
                )
        sizes[file.name] = file.stat().st_size
    return sizes


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


def _name(split: str) -> str:
    return f"wiki.{split}.tokens"


def _stamp(root: Path, sizes: Mapping[str, int]) -> None:
    text = json.dumps({"bytes": sizes})
    (root / COMPLETE).write_text(f"{text}\n")


def _is_stamped(root: Path) -> bool:
    """Whether the folder was counted, and its files still have the sizes that they had then."""
    try:
        sizes: Any = json.loads((root / COMPLETE).read_text())["bytes"]
        return all((root / _name(s)).stat().st_size == sizes[_name(s)] for s in SPLITS)
    except (OSError, ValueError, KeyError, TypeError):
        return False
