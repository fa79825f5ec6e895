"""Makes the data of a task: `python -m scripts.prepare imagenet|wikitext103|mini`.

Each command checks what it is given, goes on where a stopped call was, and has nothing to do where
the data is complete. Exit status: 0 ready · 2 bad data, no space or no permission · 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TextIO

from rich import progress as bars
from rich.console import Console
from rich.filesize import decimal

INTERVAL = 10.0  # seconds between two lines of a log
REDRAW = 0.1  # seconds between two changes of the bar


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


# For scale=mini, by subject: the folder, and what makes it and says whether it is new.
SMALL: dict[str, tuple[str, Callable[[Path, Callable[[str], None]], bool]]] = {
    "imagenet": ("cifar10", _cifar10),
    "wikitext103": ("small-wiki", _small_wiki),
}


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
    "wikitext103": Command(
        "download WikiText-103 (word level) and check it", "wikitext-103", _wikitext103, _archive
    ),
    "mini": Command(
        "CIFAR-10 as image folders and a small Wikipedia, for scale=mini", "", _mini, _only
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


class Meter:
    """A report(what, done, total) in bytes: a bar on a terminal, a line now and then in a log.

    In a log each thing that is done has a first line, a last one, and one every ten seconds.
    """

    def __init__(
        self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._what = ""
        self._began = (0.0, 0)  # time and bytes at the first report of what is being done
        self._shown = (0.0, -1)  # of the last one that was shown
        self._bar: bars.Progress | None = None
        if self._stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown"):
            self._bar = bars.Progress(
                bars.TextColumn("{task.description}", markup=False),
                bars.BarColumn(),
                bars.TaskProgressColumn(),
                bars.DownloadColumn(),
                bars.TransferSpeedColumn(),
                bars.TimeRemainingColumn(),
                console=Console(file=self._stream),
                speed_estimate_period=120,
            )

    def __enter__(self) -> Meter:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        now = self._clock()
        is_first = what != self._what
        if is_first:
            self._what, self._began = what, (now, done)
            if self._bar is not None:
                self._task = self._bar.add_task(what, total=total, completed=done)
        then, last = self._shown
        is_last = done >= total and done != last
        interval = REDRAW if self._bar is not None else INTERVAL
        if not is_first and not is_last and now - then < interval:
            return
        self._shown = now, done
        if self._bar is not None:
            self._bar.update(self._task, completed=done)
        else:
            self._write(f"{what}: {self._line(now, done, total)}")

    def _line(self, now: float, done: int, total: int) -> str:
        began, first = self._began
        line = f"{decimal(done)} of {decimal(total)} ({100 * done // max(total, 1)} %)"
        if not first < done < total:
            return line
        seconds = (now - began) / (done - first) * (total - done)
        return f"{line}, {timedelta(seconds=round(seconds))} left"

    def _write(self, line: str) -> None:
        with suppress(OSError):  # a reader that has gone away must not end the work
            print(line, file=self._stream, flush=True)


if __name__ == "__main__":
    sys.exit(main())
