"""LibriSpeech: from its archives, one for each subset, to the folders that the task reads.

An archive is downloaded, unless the user has it, and unpacked beside the data's folder. When all
its utterances are there, its subset gets its place by a rename. So what has its name is whole, and
a second call resumes with the subset that is missing. The manifest has the number of utterances of
each subset that was counted, so that they are counted once.
"""

from __future__ import annotations

import os
import re
import shutil
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import IO

from tasks.base import DataProblem
from tasks.download import Patience, Report, check_space, check_sums, fetch
from tasks.files import rename
from tasks.librispeech.manifest import sounds_in, transcript_of
from tasks.making import Say, alone
from tasks.manifests import (
    CHECKSUMS,
    COUNTS,
    MANIFEST,
    Manifest,
    Part,
    compare,
    read_manifest,
    write_manifest,
)
from tasks.tars import open_tar

CHUNK = 1 << 20  # bytes read at once
GROWTH = 1.05  # unpacked bytes for one of an archive: the last block of each file, and the folders
ADVICE = "copy or download it again"
DATA = "librispeech"
MOST_GROWTH = 2  # FLAC is hardly compressed again: an archive that declares more is refused


@dataclass(frozen=True)
class Subset:
    """An archive and how many utterances must be in it."""

    size: int | None  # bytes, if known
    md5: str
    sha256: str  # empty if not known
    utterances: int | None
    about: int = 0  # bytes, where the size is not known

    @property
    def sums(self) -> dict[str, str]:
        sums = {"md5": self.md5, "sha256": self.sha256}
        return {name: digest for name, digest in sums.items() if digest}

    @property
    def space(self) -> int:
        return self.size or self.about


SUBSETS = MappingProxyType(
    {
        "dev-clean": Subset(
            337_926_286,
            "42e2234ba48799c1f50f24a7926300a1",
            "76f87d090650617fca0cac8f88b9416e0ebf80350acb97b343a85fa903728ab3",
            2_703,
        ),
        "dev-other": Subset(
            314_305_928,
            "c8d0bcc9cca99d4f8b62fcc847357931",
            "12661c48e8c3fe1de2c1caa4c3e135193bfb1811584f11f569dd12645aa84365",
            2_864,
        ),
        "test-clean": Subset(
            346_663_984,
            "32fa31d27d2e1cad72775fee3f4849a9",
            "39fde525e59672dc6d1551919b1478f724438a95aa55f874b576be21967e6c23",
            2_620,
        ),
        "test-other": Subset(
            328_757_843,
            "fb5a50374b501bb3bac4815ee91d3135",
            "d09c181bba5cf717b3dee7d4d592af11a3ee3a09e08ae025c5506f6ebe961c29",
            2_939,
        ),
        "train-clean-100": Subset(
            6_387_309_499,
            "2a93770f6d5c6c964bc36631d331a522",
            "d4ddd1d5a6ab303066f14971d768ee43278a5f2a0aa43dc716b0e64ecbbbf6e2",
            28_539,
        ),
        "train-clean-360": Subset(
            23_049_477_885,
            "c0e676e450a7ff2f54aeade5171606fa",
            "146a56496217e96c14334a160df97fffedd6e0a04e66b9c5af0d40be3c792ecf",
            104_014,
        ),
        "train-other-500": Subset(
            30_593_501_606,
            "d1a0fd59409feb2c614ce4d30c387708",
            "ddb22f27f96ec163645d53215559df6aa36515f26e01dd70798188350adcb6d2",
            148_688,
        ),
    }
)
ALL = tuple(SUBSETS)
MINI_SUBSETS = MappingProxyType(  # SLR31, which has only MD5 sums
    {
        "train-clean-5": Subset(
            None, "5df7d4e78065366204ca6845bb08f490", "", None, about=350_000_000
        ),
        "dev-clean-2": Subset(
            None, "6d7ab67ac6a1d2c993d050e16d61080d", "", None, about=130_000_000
        ),
    }
)


def official_counts(held_out: Sequence[str]) -> dict[str, dict[str, int]]:
    """Utterances of all training subsets together, and of held-out ones."""
    sizes = {name: subset.utterances or 0 for name, subset in SUBSETS.items()}
    train = sum(count for name, count in sizes.items() if name.startswith("train"))
    return {
        "train": {"utterances": train},
        **{name: {"utterances": sizes[name]} for name in held_out},
    }


@dataclass(frozen=True)
class LibriSpeech:
    """Where the archives are, and what must be in them: other values for tests."""

    mirrors: tuple[str, ...] = (
        "https://www.openslr.org/resources/12",
        "https://us.openslr.org/resources/12",
        "https://openslr.elda.org/resources/12",
    )
    folder: str = "LibriSpeech"  # the archives' outermost
    subsets: Mapping[str, Subset] = field(default_factory=lambda: SUBSETS)


MINI_LIBRISPEECH = LibriSpeech(
    mirrors=tuple(mirror.replace("/12", "/31") for mirror in LibriSpeech().mirrors),
    subsets=MINI_SUBSETS,
)


def prepare(
    root: Path,
    report: Report,
    subsets: Sequence[str] = ALL,
    archives: Path | None = None,
    *,
    expected: LibriSpeech | None = None,
    patience: Patience | None = None,
    say: Say = print,
) -> bool:
    """Makes `root`/<subset> of each; False if they were complete before.

    `archives` is a folder with the downloaded files, which are only read. Without it they are
    downloaded into `root`, and each is removed when its subset is complete.
    """
    expected = expected or LibriSpeech()
    unknown = [name for name in subsets if name not in expected.subsets]
    if unknown:
        raise DataProblem(f"{unknown[0]}: no subset; they are {', '.join(expected.subsets)}")
    if _are_complete(root, subsets):
        return False
    with alone(root, say) as temporary:
        is_ours = not root.exists() or not any(root.iterdir()) or (root / MANIFEST).exists()
        root.mkdir(exist_ok=True)
        left = []
        for name in subsets:
            if _are_complete(root, [name]):
                continue
            if (root / name).exists():  # unpacked by the user: counted once
                part = check_subset(root / name, root / name, "folders", "in place", expected)
                _add(root, name, part, in_place=not is_ours)
            else:
                left.append(name)
        if archives is not None:
            _check_there(archives, left, expected)
        _check_space(root, left, expected, downloads=archives is None)
        for name in left:
            archive = (archives or root) / _file(name)
            sums, size = expected.subsets[name].sums, expected.subsets[name].size
            if archives is None:
                urls = [f"{mirror}/{_file(name)}" for mirror in expected.mirrors]
                fetch(urls, archive, sums, report, size=size, patience=patience)
            else:
                check_sums(archive, sums, report)
            action = "downloaded and unpacked" if archives is None else "unpacked"
            _install(archive, root, name, temporary, report, expected, action)
            if archives is None:
                archive.unlink()
    return bool(left)


def _file(name: str) -> str:
    return f"{name}.tar.gz"


# Before anything is written.


def _check_there(archives: Path, names: Sequence[str], expected: LibriSpeech) -> None:
    missing = [_file(name) for name in names if not (archives / _file(name)).is_file()]
    if missing:
        where = str(archives) if archives.is_dir() else f"{archives} (no such folder)"
        raise DataProblem(
            f"{where}: missing {', '.join(missing)}; put them there, or leave the folder out to"
            " have them downloaded"
        )
    for name in names:
        file, wanted = archives / _file(name), expected.subsets[name].size
        size = file.stat().st_size
        if wanted is not None and size != wanted:
            raise DataProblem(
                f"{file}: {size:,} bytes, but must have {wanted:,}; download it again from"
                f" {expected.mirrors[0]}/{_file(name)}"
            )


def _check_space(
    root: Path, names: Sequence[str], expected: LibriSpeech, *, downloads: bool
) -> None:
    """A downloaded archive takes space until its subset is unpacked, so only one does at a time."""
    unpacked, most = 0.0, 0.0
    for name in names:
        size = expected.subsets[name].space
        unpacked += GROWTH * size
        begun = [root / _file(name), root / f"{_file(name)}.part"]
        have = sum(path.stat().st_size for path in begun if path.exists())
        most = max(most, unpacked + (size - have if downloads else 0))
    check_space(root, round(most))


# Unpacking.


def _install(
    archive: Path,
    root: Path,
    name: str,
    temporary: Path,
    report: Report,
    expected: LibriSpeech,
    action: str,
) -> None:
    made = temporary / name
    made.mkdir()
    try:
        _unpack(archive, made, name, report, expected)
    except (tarfile.TarError, zlib.error, EOFError) as error:
        raise DataProblem(f"{archive}: cannot be unpacked: {error}; get it again") from error
    part = check_subset(made / name, archive, "official archives", action, expected)
    if part.differences:
        raise DataProblem(f"{archive}: {name} has {part.differences[0]}; {ADVICE}")
    sums = {key: f"{value}" for key, value in expected.subsets[name].sums.items()}
    part = replace(part, compared=CHECKSUMS, sums=sums)
    os.sync()  # the sound is on the disk before it has its name
    for text in made.glob("*.TXT"):  # the same in all archives
        rename(text, root / text.name)
    rename(made / name, root / name)
    _add(root, name, part)
    shutil.rmtree(made)


def _unpack(archive: Path, made: Path, name: str, report: Report, expected: LibriSpeech) -> None:
    """The subset's files and the texts above it; anything else is refused."""
    what, size = f"unpacking {archive.name}", archive.stat().st_size
    layout = re.compile(
        rf"{expected.folder}/(?P<path>[A-Z]+\.TXT"
        rf"|{name}/(?P<s>\d+)/(?P<c>\d+)/(?P=s)-(?P=c)(?:-\d+\.flac|\.trans\.txt))",
        re.ASCII,
    )
    folders = re.compile(rf"{expected.folder}(?:/{name}(?:/\d+){{0,2}})?", re.ASCII)
    declared = 0
    with archive.open("rb") as packed, open_tar(packed, "r|gz") as members:
        for member in members:
            declared += member.size
            if declared > MOST_GROWTH * size + CHUNK:
                raise DataProblem(
                    f"{archive}: declares {declared:,} bytes and more, too many for {size:,} packed"
                    f" ones; {ADVICE}"
                )
            found = layout.fullmatch(member.name.removeprefix("./"))
            if found and member.type in (tarfile.REGTYPE, tarfile.AREGTYPE):
                source = members.extractfile(member)
                assert source is not None
                _copy(source, made / found["path"], archive)
            elif not (member.isdir() and folders.fullmatch(member.name.removeprefix("./"))):
                raise DataProblem(
                    f"{archive}: {member.name!r} in it, but there must only be files named as"
                    f" {expected.folder}/{name}/1/2/1-2-0003.flac and"
                    f" {expected.folder}/{name}/1/2/1-2.trans.txt"
                )
            report(what, packed.tell(), size)
    report(what, size, size)


def _copy(source: IO[bytes], target: Path, archive: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        file = target.open("xb")
    except FileExistsError:
        raise DataProblem(f"{archive}: {target.name} is in it twice") from None
    with file:
        shutil.copyfileobj(source, file, CHUNK)


# When a subset is unpacked.


def check_subset(folder: Path, origin: Path, form: str, action: str, expected: LibriSpeech) -> Part:
    """Every sound has a line in its chapter's transcript; `origin` is what a message names.

    Another number of utterances than the official one is a difference, no problem.
    """
    utterances = size = 0
    for chapter in _chapters(folder):
        name = f"{chapter.parent.name}-{chapter.name}"
        where = f"{origin}: {folder.name}/{chapter.parent.name}/{chapter.name}"
        sounds = sounds_in(chapter)
        sizes = {file: (chapter / file).stat().st_size for file in sounds.values()}
        empty = sorted(file for file, size in sizes.items() if not size)
        if empty:
            raise DataProblem(f"{where}/{empty[0]} is empty; {ADVICE}")
        try:
            lines = transcript_of(chapter).read_text("utf-8").splitlines()
        except (FileNotFoundError, UnicodeDecodeError):
            raise DataProblem(
                f"{where} has no {name}.trans.txt that can be read; {ADVICE}"
            ) from None
        said = {line.partition(" ")[0] for line in lines if line}
        for utterance in sorted(said ^ sounds.keys()):
            missing = f"{utterance}.flac is missing"
            wrong = f"{sounds.get(utterance)} has no line in {name}.trans.txt"
            raise DataProblem(f"{where}/{missing if utterance in said else wrong}; {ADVICE}")
        utterances += len(sizes)
        size += sum(sizes.values())
    if not utterances:
        raise DataProblem(f"{origin}: no utterances of {folder.name} in it; {ADVICE}")
    counts = {"utterances": utterances}
    official = expected.subsets.get(folder.name)
    if official is None or official.utterances is None:
        return Part(form, action, counts, size)
    differences = compare(counts, {"utterances": official.utterances})
    return Part(form, action, counts, size, COUNTS, differences)


def _chapters(folder: Path) -> Iterator[Path]:
    if not folder.is_dir():
        return
    for speaker in sorted(path for path in folder.iterdir() if path.is_dir()):
        yield from sorted(path for path in speaker.iterdir() if path.is_dir())


def _add(root: Path, name: str, part: Part, *, in_place: bool = False) -> None:
    manifest = Manifest(DATA, {name: part})
    before = read_manifest(root)
    if before is not None:
        manifest = before.merged(manifest)
    write_manifest(root, manifest, in_place=in_place)


def _are_complete(root: Path, names: Sequence[str]) -> bool:
    manifest = read_manifest(root)
    return manifest is not None and all(
        name in manifest.parts and (root / name).is_dir() for name in names
    )
