"""Makes the data of a task: `python -m scripts.prepare TASK`, or `mini` for all small sets.

Each command checks what it is given, goes on where a stopped call was, and has nothing to do where
the data is complete. Exit status: 0 ready · 2 bad data, no space or no permission · 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import errno
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from scripts.meter import Meter


def _imagenet(options: argparse.Namespace, root: Path) -> None:
    from tasks.imagenet.archives import ILSVRC2012 as SET
    from tasks.imagenet.archives import unpack

    with Meter() as meter:
        is_new = unpack(options.archives, root, meter)
    print(
        f"{root}: {SET.train_images:,} training and {SET.val_images:,} validation images of"
        f" {SET.classes:,} classes, {'ready' if is_new else 'complete before; nothing to do'}"
    )


def _wikitext103(options: argparse.Namespace, root: Path) -> None:
    from tasks.wikitext103.prepare import WikiText, prepare

    with Meter() as meter:
        is_new = prepare(root, meter, options.archive)
    print(
        f"{root}: {WikiText().vocabulary:,} words in the vocabulary,"
        f" {'ready' if is_new else 'complete before; nothing to do'}"
    )


def _librispeech(options: argparse.Namespace, root: Path) -> None:
    from tasks.librispeech.manifest import Manifest
    from tasks.librispeech.prepare import SUBSETS, prepare

    subsets = options.subsets or list(SUBSETS)
    with Meter() as meter:
        is_new = prepare(root, meter, subsets, options.archives)
    utterances = len(Manifest(root, subsets, _say))
    print(
        f"{root}: {utterances:,} utterances in {', '.join(subsets)},"
        f" {'ready' if is_new else 'complete before; nothing to do'}"
    )


def _wmt14(options: argparse.Namespace, root: Path) -> None:
    from tasks.wmt14.corpus import Corpus
    from tasks.wmt14.prepare import prepare

    with Meter() as meter:
        is_new = prepare(root, meter, options.archives, news_commentary=options.news_commentary)
        corpus = Corpus(root, WMT14_UNITS, report=meter)
    for name, count in corpus.statistics.items():
        print(f"  {name}: {count:,}")
    print(
        f"{root}: {len(corpus.train):,} pairs for training in {corpus.units.size:,} units,"
        f" {'ready' if is_new else 'complete before; nothing to do'}"
    )


def _mini(options: argparse.Namespace, root: Path) -> None:
    """Small sets of all subjects, or of one; what was there is named in one line."""
    there = [
        str(root / folder)
        for subject, (folder, make) in SMALL.items()
        if options.only in (None, subject) and not make(root / folder, _say)
    ]
    if there:
        print(f"{' and '.join(there)}: complete before; nothing to do")


def _cifar10(root: Path, say: Callable[[str], None]) -> bool:
    from tasks.imagenet.cifar10 import make_cifar10

    is_new = not root.exists()
    make_cifar10(root, say)
    return is_new


def _small_wiki(root: Path, say: Callable[[str], None]) -> bool:
    from tasks.wikitext103.gensim_wiki import make_small_wiki

    return make_small_wiki(root, say)


def _bible(root: Path, say: Callable[[str], None]) -> bool:
    from tasks.wmt14.bible import make_bible

    return make_bible(root, say)


def _commands(root: Path, say: Callable[[str], None]) -> bool:
    from tasks.librispeech.commands import make_commands

    return make_commands(root, say)


# For scale=mini, by subject: the folder, and what makes it and says whether it is new.
SMALL: dict[str, tuple[str, Callable[[Path, Callable[[str], None]], bool]]] = {
    "imagenet": ("cifar10", _cifar10),
    "librispeech": ("spoken-commands", _commands),
    "wmt14": ("bible", _bible),
    "wikitext103": ("small-wiki", _small_wiki),
}
WMT14_UNITS = 8192  # the paper's


def _say(line: str) -> None:
    print(line, flush=True)


def _archives(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--archives", type=Path, required=True, metavar="DIR", help="where the downloaded files lie"
    )


def _archive(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--archive", type=Path, metavar="FILE", help="the archive, if you have it already"
    )


def _subsets(parser: argparse.ArgumentParser) -> None:
    _own_archives(parser)
    parser.add_argument(
        "--subsets", nargs="+", metavar="NAME", help="e.g. dev-clean train-clean-100; default: all"
    )


def _wmt14_arguments(parser: argparse.ArgumentParser) -> None:
    _own_archives(parser)
    parser.add_argument(
        "--news-commentary",
        choices=["v11", "v9"],
        default="v11",
        help="v11, of WMT16, as the paper's code used it (default), or WMT14's own v9",
    )


def _own_archives(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--archives", type=Path, metavar="DIR", help="where archives lie that you have already"
    )


def _only(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", choices=list(SMALL), help="the data of one subject")


@dataclass(frozen=True)
class Command:
    """One data set: what makes it, and its folder below the data root."""

    help: str
    folder: str
    run: Callable[[argparse.Namespace, Path], None]
    add_arguments: Callable[[argparse.ArgumentParser], None] = lambda parser: None


COMMANDS = {
    "imagenet": Command(
        "unpack ImageNet's official archives (ILSVRC2012)", "imagenet", _imagenet, _archives
    ),
    "librispeech": Command(
        "download LibriSpeech, unpack and check it", "LibriSpeech", _librispeech, _subsets
    ),
    "wmt14": Command(
        "download WMT's English-German texts, learn the units and encode them",
        "wmt14",
        _wmt14,
        _wmt14_arguments,
    ),
    "wikitext103": Command(
        "download WikiText-103 (word level) and check it", "wikitext-103", _wikitext103, _archive
    ),
    "mini": Command(
        "the small data sets of scale=mini: images, synthetic speech, verses, a small Wikipedia",
        "",
        _mini,
        _only,
    ),
}


def main(arguments: list[str] | None = None) -> int:
    """Makes one data set; never a traceback for what a user or a disk can get wrong."""
    options = _parser().parse_args(arguments)
    command = COMMANDS[options.command]
    root = options.data / command.folder
    try:
        from tasks.base import DataProblem

        try:
            command.run(options, root)
        except DataProblem as problem:
            print(problem, file=sys.stderr)
            return 2
        except OSError as error:
            print(_describe(error, root), file=sys.stderr)
            return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.prepare", description="Makes the data of a task."
    )
    parsers = parser.add_subparsers(dest="command", required=True, metavar="|".join(COMMANDS))
    for name, command in COMMANDS.items():
        sub = parsers.add_parser(name, help=command.help, description=command.help)
        sub.add_argument(
            "--data", type=Path, default=Path("data"), help="the data root (default: data)"
        )
        command.add_arguments(sub)
    return parser


def _describe(error: OSError, root: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{root}: its disk is full: free some space, then the same command goes on"
    what = error.strerror or str(error)
    return f"{error.filename or root}: {what}; put this right, then the same command goes on"


if __name__ == "__main__":
    sys.exit(main())
