"""WMT's English and German: from its archives to {train,valid,test}.{en,de}, one sentence a line.

The archives are downloaded into `downloads`, unless the user has them, and removed when all is
made. Of each one only the German and English texts are read, straight out of it. Texts are raw and
cased. `statistics.json` says how many pairs there are of which corpus, and how long the files must
be, so that a second call need not read them.
"""

from __future__ import annotations

import html
import json
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from tasks.base import DataProblem
from tasks.download import CHUNK, Patience, Report, check_space, check_sums, fetch
from tasks.files import parse_json
from tasks.making import Say, alone
from tasks.manifests import CHECKSUMS, Manifest, Part, read_manifest, write_manifest
from tasks.tars import open_tar
from tasks.wmt14.statmt import Corpus, Wmt

SPLITS = ("train", "valid", "test")
LANGUAGES = ("en", "de")
FILES = tuple(f"{split}.{language}" for split in SPLITS for language in LANGUAGES)
STATISTICS = "statistics.json"
DOWNLOADS = "downloads"
REPORT_EVERY = 20_000  # pairs
MOST_GROWTH = 5  # a text that declares so many times the expected bytes is refused

DOCUMENT_OR_SEGMENT = re.compile(
    r'<doc\b[^>]*?\bdocid\s*=\s*"(?P<document>[^"]*)"'
    r'|<seg\b[^>]*?\bid\s*=\s*"?(?P<segment>[^"\s>]+)"?[^>]*>(?P<text>.*?)</seg\s*>',
    re.DOTALL | re.IGNORECASE,
)
SEGMENT_BEGINS = re.compile(r"<seg\b", re.IGNORECASE)
ENTITY = re.compile(r"&(amp|lt|gt|quot|apos|#\d+|#x[0-9a-f]+);", re.IGNORECASE)


class Count(NamedTuple):
    """Of one corpus: pairs that were written, and those left out because a side is empty."""

    pairs: int
    dropped: int


class Sentence(NamedTuple):
    """A text, and where it is in its file: the same for its translation."""

    text: str
    place: str = ""  # of SGM: the document and the number in it


def prepare(
    root: Path,
    report: Report,
    archives: Path | None = None,
    *,
    news_commentary: str = "v11",
    expected: Wmt | None = None,
    patience: Patience | None = None,
    say: Say = print,
) -> bool:
    """Makes the texts below `root`; False if they were complete before.

    Archives in the folder `archives` are read there and stay; the others are downloaded.
    """
    corpora = (expected or Wmt()).corpora(news_commentary)
    downloads = root / DOWNLOADS
    if _is_complete(root, corpora):
        _remove_downloads(root, corpora, say)  # if a call was stopped before it did so
        if read_manifest(root) is None:
            write_statmt_manifest(root, expected or Wmt())
        return False
    own = _own_archives(archives, corpora)
    with alone(root, say) as temporary:
        if _is_complete(root, corpora):  # another process was quicker
            return False
        downloads.mkdir(parents=True, exist_ok=True)
        try:
            paths = {c.name: own.get(c.name, downloads / c.archive) for c in corpora}
            _check_space(root, corpora, paths)
            for corpus in corpora:
                path, sums = paths[corpus.name], corpus.sums
                if corpus.name in own:
                    check_sums(path, sums, report)
                else:
                    fetch(corpus.urls, path, sums, report, size=corpus.size, patience=patience)
            counts = {c.name: _add(c, paths[c.name], temporary, report) for c in corpora}
            _publish(temporary, root, corpora, counts)
            action = "unpacked" if own else "downloaded and unpacked"
            write_statmt_manifest(root, expected or Wmt(), action)
        finally:
            _remove_if_empty(downloads, root)
        _remove_downloads(root, corpora, say)
    return True


def read_statistics(root: Path) -> dict[str, Any]:
    """What `statistics.json` says; nothing if it is not there or damaged."""
    try:
        found = parse_json((root / STATISTICS).read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


# What is there.


def _is_complete(root: Path, corpora: Sequence[Corpus]) -> bool:
    """Whether all texts are there; DataProblem if something else is in their place."""
    there = [name for name in FILES if (root / name).exists()]
    if not there:
        return False
    statistics = read_statistics(root)
    advice = "it is left as it is; name another folder with --data"
    for name in there:
        size = (root / name).stat().st_size
        if dict(statistics.get("bytes", {})).get(name) != size:
            raise DataProblem(
                f"{root / name}: a file of {size:,} bytes that was not prepared from WMT's"
                f" archives; {advice}"
            )
    made, asked = sorted(statistics.get("corpora", ())), sorted(c.name for c in corpora)
    if made != asked:
        raise DataProblem(
            f"{root}: made of {', '.join(made)}, but must be of {', '.join(asked)}; {advice}"
        )
    return len(there) == len(FILES)  # fewer: a call was stopped when it gave them their names


def _own_archives(folder: Path | None, corpora: Sequence[Corpus]) -> dict[str, Path]:
    """Those of the user, by corpus."""
    if folder is None:
        return {}
    found = {c.name: folder / c.archive for c in corpora if (folder / c.archive).is_file()}
    if not found:
        names = ", ".join(c.archive for c in corpora)
        raise DataProblem(f"{folder}: none of the archives in it; expected {names}")
    return found


def _check_space(root: Path, corpora: Sequence[Corpus], paths: Mapping[str, Path]) -> None:
    """For what is to be downloaded, all texts, and those of one corpus as they are unpacked."""
    needed = sum(c.about for c in corpora) + max(c.about for c in corpora)
    for corpus in corpora:
        path = paths[corpus.name]
        part = path.with_name(f"{path.name}.part")
        if corpus.size and not path.exists():
            needed += corpus.size - (part.stat().st_size if part.exists() else 0)
    check_space(root, needed)


# From archives to pairs.


def _add(corpus: Corpus, archive: Path, folder: Path, report: Report) -> Count:
    """Appends a corpus to its split's two files."""
    unpacked = {text: folder / f"unpacked.{i}" for i, text in enumerate(corpus.texts)}
    _unpack(corpus, archive, unpacked, report)
    sides = [_sentences(file, f"{archive}, {text}") for text, file in unpacked.items()]
    what, total = f"writing {corpus.name}", sum(file.stat().st_size for file in unpacked.values())
    pairs = dropped = done = 0
    with ExitStack() as stack:
        targets = [folder / f"{corpus.split}.{language}" for language in LANGUAGES]
        files = [stack.enter_context(target.open("ab")) for target in targets]
        for pair in _pairs(corpus, archive, *sides):
            if not all(pair):
                dropped += 1
                continue
            done += sum(f.write(f"{s}\n".encode()) for f, s in zip(files, pair, strict=True))
            pairs += 1
            if pairs % REPORT_EVERY == 0:
                report(what, min(done, total), total)
    report(what, total, total)
    for unneeded in unpacked.values():
        unneeded.unlink()
    return Count(pairs, dropped)


def _pairs(
    corpus: Corpus, archive: Path, english: Iterator[Sentence], german: Iterator[Sentence]
) -> Iterator[tuple[str, str]]:
    """Sentences of the same number; DataProblem where they cannot be translations."""
    for number, (en, de) in enumerate(zip_longest(english, german), 1):
        if en is None or de is None:
            longer = number + sum(1 for _ in (german if en is None else english))
            counts = (number - 1, longer) if en is None else (longer, number - 1)
            raise DataProblem(
                f"{archive}: {corpus.texts[0]} has {counts[0]:,} sentences and {corpus.texts[1]}"
                f" {counts[1]:,}; both must have as many"
            )
        if en.place != de.place:
            raise DataProblem(
                f"{archive}: sentence {number:,} is {en.place} in {corpus.texts[0]}, but"
                f" {de.place} in {corpus.texts[1]}; it must be the same"
            )
        yield en.text, de.text


def _unpack(corpus: Corpus, archive: Path, targets: Mapping[str, Path], report: Report) -> None:
    """The two texts and nothing else, into files of our own names."""
    left = dict(targets)
    what, total = f"unpacking {corpus.archive}", archive.stat().st_size
    try:
        with archive.open("rb") as packed, open_tar(packed, "r|gz") as tar:
            for member in tar:
                report(what, packed.tell(), total)
                target = left.pop(member.name.removeprefix("./"), None)
                if target is None:
                    continue
                source = tar.extractfile(member) if member.isreg() else None
                if source is None:
                    raise DataProblem(f"{archive}: {member.name} in it is no file")
                if member.size > MOST_GROWTH * corpus.about:
                    raise DataProblem(
                        f"{archive}: {member.name} declares {member.size:,} bytes; about"
                        f" {corpus.about:,} were expected of both texts"
                    )
                with source, target.open("xb") as file:
                    while chunk := source.read(CHUNK):
                        file.write(chunk)
                        report(what, packed.tell(), total)
                if not left:
                    break
    except (tarfile.TarError, zlib.error, EOFError) as error:
        raise DataProblem(f"{archive}: cannot be unpacked: {error}; get it again") from error
    if left:
        raise DataProblem(f"{archive}: no {' and no '.join(left)} in it")
    report(what, total, total)


def _sentences(file: Path, origin: str) -> Iterator[Sentence]:
    """One a segment of SGM; otherwise one a line, without a carriage return anywhere."""
    if origin.endswith(".sgm"):
        yield from _segments(file, origin)
    else:
        for line in _decoded(file, origin):
            yield Sentence(line.replace("\r", " ").strip())


def _segments(file: Path, origin: str) -> Iterator[Sentence]:
    """Of SGM as WMT has it, which is no XML."""
    text = "".join(_decoded(file, origin))
    document, found = "", 0
    for match in DOCUMENT_OR_SEGMENT.finditer(text):
        if match["segment"] is None:
            document = match["document"]
            continue
        found += 1
        unescaped = ENTITY.sub(lambda entity: html.unescape(entity[0]), match["text"])
        yield Sentence(" ".join(unescaped.split()), f"segment {match['segment']} of {document!r}")
    begun = len(SEGMENT_BEGINS.findall(text))
    if found != begun or not found:
        raise DataProblem(
            f"{origin}: {found:,} whole segments of {begun:,}; each must be as"
            ' <seg id="1">text</seg>'
        )


def _decoded(file: Path, origin: str) -> Iterator[str]:
    """Lines, which end at a line feed and at no other character that Python splits text at."""
    with file.open("rb") as text:
        for number, line in enumerate(text, 1):
            try:
                yield line.decode()
            except UnicodeDecodeError as error:
                raise DataProblem(f"{origin}: line {number:,} is not UTF-8: {error}") from error


# When everything is written.


def write_statmt_manifest(root: Path, expected: Wmt, action: str = "unpacked") -> Manifest:
    """Of texts that `statistics.json` describes."""
    statistics = read_statistics(root)
    known = {c.name: c for c in (*expected.always, *expected.news_commentary.values())}
    parts = {}
    for split in SPLITS:
        of_split = {n: c for n, c in statistics["corpora"].items() if c["split"] == split}
        counts = {"pairs": sum(c["pairs"] for c in of_split.values())}
        size = sum(statistics["bytes"][f"{split}.{language}"] for language in LANGUAGES)
        sums = {known[n].archive: next(iter(known[n].sums.values())) for n in of_split}
        remarks = [f"{n}: {c['pairs']:,} pairs" for n, c in of_split.items()]
        parts[split] = Part("statmt archives", action, counts, size, CHECKSUMS, [], remarks, sums)
    manifest = Manifest("wmt14", parts)
    write_manifest(root, manifest)
    return manifest


def _publish(made: Path, root: Path, corpora: Sequence[Corpus], counts: dict[str, Count]) -> None:
    """Gives the files their names; the statistics come first, and know when all are there."""
    statistics = {
        "corpora": {c.name: {"split": c.split, **counts[c.name]._asdict()} for c in corpora},
        "bytes": {name: (made / name).stat().st_size for name in FILES},
    }
    (made / STATISTICS).write_text(json.dumps(statistics, indent=2) + "\n")
    for name in (STATISTICS, *FILES):
        (made / name).replace(root / name)


def _remove_downloads(root: Path, corpora: Sequence[Corpus], say: Say) -> None:
    downloads, freed = root / DOWNLOADS, 0
    for corpus in corpora:
        for file in (downloads / corpus.archive, downloads / f"{corpus.archive}.part"):
            if file.exists():
                freed += file.stat().st_size
                file.unlink(missing_ok=True)
    _remove_if_empty(downloads)
    if freed:
        say(f"{downloads}: no longer needed, {freed / 1e6:,.1f} MB freed")


def _remove_if_empty(*folders: Path) -> None:
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()
