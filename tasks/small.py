"""Small public sets, from their own hosts or from files that the user has; all are checksummed.

`MINI` are the sets of scale=mini and short, which a run makes by itself.
"""

from __future__ import annotations

import gzip
import shutil
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks.base import DataProblem
from tasks.download import Report, check_space, check_sums, fetch
from tasks.files import rename
from tasks.making import Say, alone
from tasks.manifests import CHECKSUMS, Manifest, Part, read_manifest, write_manifest
from tasks.sources import Source, recognise, survey

MULTI30K = (
    "https://raw.githubusercontent.com/multi30k/dataset"
    "/a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw"
)
MULTI30K_FILES = {  # name: our name, bytes and SHA-256 of the .gz
    "train.en.gz": (
        "train.en",
        568_929,
        "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    ),
    "train.de.gz": (
        "train.de",
        637_044,
        "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    ),
    "val.en.gz": (
        "valid.en",
        21_650,
        "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    ),
    "val.de.gz": (
        "valid.de",
        24_681,
        "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    ),
    "test_2016_flickr.en.gz": (
        "test.en",
        21_077,
        "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
    ),
    "test_2016_flickr.de.gz": (
        "test.de",
        22_890,
        "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
    ),
}
MOST_TEXT = 1 << 25  # bytes of an unpacked text


@dataclass(frozen=True)
class Remote:
    """A file, where it is had, and how it is known."""

    urls: tuple[str, ...]
    sums: Mapping[str, str]
    size: int | None = None

    @property
    def name(self) -> str:
        return self.urls[0].rpartition("/")[2]


Fill = Callable[[dict[str, Path], Path, Report], None]  # of files by name, into a folder


def _make(
    root: Path,
    name: str,
    remotes: Sequence[Remote],
    sources: Sequence[str],
    space: int,
    fill: Fill,
    report: Report,
    say: Say,
) -> None:
    """Files from the user or from their hosts, then the folder; it appears complete."""
    if read_manifest(root) is not None:
        say(f"{root}: complete; nothing to do")
        return
    if root.exists():
        raise DataProblem(f"{root}: is there already; it is left as it is, name another --data")
    downloads = root.with_name(f".{root.name}.downloads")
    with alone(root, say) as temporary:
        if root.exists():  # another process was quicker
            return
        check_space(temporary, space + sum(remote.size or space for remote in remotes))
        files = {}
        own = survey([Path(source) for source in sources]) if sources else None
        for remote in remotes:
            if own is not None:
                found = own.named(remote.name)
                if not found:
                    raise DataProblem(f"{', '.join(sources)}: no {remote.name} in it")
                check_sums(found[0], remote.sums, report)
                files[remote.name] = found[0]
            else:
                target = downloads / remote.name
                fetch(remote.urls, target, remote.sums, report, size=remote.size)
                files[remote.name] = target
        made = temporary / root.name
        made.mkdir()
        fill(files, made, report)
        action = "unpacked" if sources else "downloaded and unpacked"
        size = sum(p.stat().st_size for p in made.rglob("*") if p.is_file())
        sums = {remote.name: next(iter(remote.sums.values())) for remote in remotes}
        part = Part("official files", action, {"files": len(files)}, size, CHECKSUMS, sums=sums)
        write_manifest(made, Manifest(name, {"all": part}))
        rename(made, root)
        shutil.rmtree(downloads, ignore_errors=True)
    say(f"{root}: ready")


def _multi30k(data: Path, sources: Sequence[str], report: Report, say: Say) -> None:
    remotes = [
        Remote((f"{MULTI30K}/{name}",), {"sha256": digest}, size)
        for name, (_, size, digest) in MULTI30K_FILES.items()
    ]

    def fill(files: dict[str, Path], folder: Path, report: Report) -> None:
        for name, path in files.items():
            _gunzip(path, folder / MULTI30K_FILES[name][0])

    _make(data / "multi30k", "multi30k", remotes, sources, MOST_TEXT, fill, report, say)


def _gunzip(path: Path, target: Path) -> None:
    try:
        with gzip.open(path) as packed:
            text = packed.read(MOST_TEXT + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataProblem(f"{path}: cannot be unpacked: {error}") from error
    if len(text) > MOST_TEXT:
        raise DataProblem(f"{path}: more than {MOST_TEXT:,} bytes come out of it")
    target.write_bytes(text)


def _wikitext_2(data: Path, sources: Sequence[str], report: Report, say: Say) -> None:
    from tasks.wikitext103.forms import FORMS
    from tasks.wikitext103.prepare import WIKITEXT_2, prepare

    root = data / "wikitext-2"
    if not sources:
        is_new = prepare(root, report, expected=WIKITEXT_2, say=say)
        say(f"{root}: {'ready' if is_new else 'complete; nothing to do'}")
        return
    forms: list[type[Source]] = [
        type(form.__name__, (form,), {"expected": WIKITEXT_2}) for form in FORMS
    ]
    source, _ = recognise(forms, [Path(s) for s in sources], "wikitext-2")
    manifest, is_new = source.prepare(root, "wikitext-2", report, say)
    say(f"{root}: {'ready' if is_new else 'complete; nothing to do'}; {manifest.verdict()}")


def _an4(data: Path, sources: Sequence[str], report: Report, say: Say) -> None:
    from tasks.librispeech.an4 import An4, convert

    expected = An4()

    def fill(files: dict[str, Path], folder: Path, report: Report) -> None:
        (archive,) = files.values()
        convert(archive, folder, report, expected)

    remote = Remote(expected.urls, expected.sums)
    root = data / "an4" / "LibriSpeech"
    _make(root, "an4", [remote], sources, expected.about, fill, report, say)


def _tiny_imagenet(data: Path, sources: Sequence[str], report: Report, say: Say) -> None:
    from tasks.imagenet.tiny import TinyImageNet, convert

    expected = TinyImageNet()

    def fill(files: dict[str, Path], folder: Path, report: Report) -> None:
        (archive,) = files.values()
        convert(archive, folder, report, expected)

    remote = Remote(expected.urls, expected.sums)
    root = data / "tiny-imagenet-200"
    _make(root, "tiny-imagenet-200", [remote], sources, expected.about, fill, report, say)


def _mini_librispeech(data: Path, sources: Sequence[str], report: Report, say: Say) -> None:
    """Its dev set is read under the name that a run evaluates, dev-clean."""
    from tasks.librispeech.prepare import MINI_LIBRISPEECH, prepare

    root = data / "mini-librispeech"
    folder = None
    if sources:
        names = [f"{name}.tar.gz" for name in MINI_LIBRISPEECH.subsets]
        found = survey([Path(source) for source in sources]).named(*names)
        if {path.name for path in found} != set(names):
            raise DataProblem(f"{', '.join(sources)}: must have {' and '.join(names)}")
        folder = found[0].parent
    subsets = list(MINI_LIBRISPEECH.subsets)
    is_new = prepare(root, report, subsets, folder, expected=MINI_LIBRISPEECH, say=say)
    if not (root / "dev-clean").is_symlink():
        (root / "dev-clean").symlink_to("dev-clean-2")
    say(f"{root}: {'ready' if is_new else 'complete; nothing to do'}")


def _cifar10(data: Path, sources: Sequence[str], report: Report, say: Say) -> None:
    from tasks.imagenet.cifar10 import ARCHIVE, make_cifar10

    copies = None
    if sources:
        found = survey([Path(source) for source in sources]).named(ARCHIVE)
        if not found:
            raise DataProblem(f"{', '.join(sources)}: no {ARCHIVE} in it")
        copies = found[0].parent
    is_new = make_cifar10(data / "cifar10", say, copies=copies)
    if not is_new:
        say(f"{data / 'cifar10'}: complete; nothing to do")


SMALL: dict[str, Callable[[Path, Sequence[str], Report, Say], None]] = {
    "multi30k": _multi30k,
    "wikitext-2": _wikitext_2,
    "an4": _an4,
    "tiny-imagenet-200": _tiny_imagenet,
    "mini-librispeech": _mini_librispeech,
    "cifar10": _cifar10,
}


def prepare_small(name: str, data: Path, sources: Sequence[str], report: Report, say: Say) -> None:
    """One small public set below the data root."""
    SMALL[name](data, sources, report, say)


# The sets of scale=mini and scale=short.


def _mini_cifar10(root: Path, say: Say) -> bool:
    from tasks.imagenet.cifar10 import make_cifar10

    return make_cifar10(root, say)


def _mini_wiki(root: Path, say: Say) -> bool:
    from tasks.wikitext103.gensim_wiki import make_small_wiki

    return make_small_wiki(root, say)


def _mini_bible(root: Path, say: Say) -> bool:
    from tasks.wmt14.bible import make_bible

    return make_bible(root, say)


def _mini_messages(root: Path, say: Say) -> bool:
    from tasks.wmt14.messages import make_messages

    return make_messages(root, say)


def _mini_commands(root: Path, say: Say) -> bool:
    from tasks.librispeech.commands import make_many_commands

    return make_many_commands(root, say)


def _short_commands(root: Path, say: Say) -> bool:
    from tasks.librispeech.commands import make_commands

    return make_commands(root, say)


MINI: dict[str, dict[str, Callable[[Path, Say], bool]]] = {  # by task and folder: who makes it
    "imagenet": {"cifar10": _mini_cifar10},
    "librispeech": {"many-commands": _mini_commands, "spoken-commands": _short_commands},
    "wmt14": {"messages": _mini_messages, "bible": _mini_bible},
    "wikitext103": {"small-wiki": _mini_wiki},
}


def prepare_mini(data: Path, only: str | None, say: Say) -> None:
    """The sets of small scales, or those of one task; those there before are named in one line."""
    there = [
        str(data / folder)
        for task, sets in MINI.items()
        for folder, make in sets.items()
        if only in (None, task) and not make(data / folder, say)
    ]
    if there:
        say(f"{' and '.join(there)}: complete before; nothing to do")
