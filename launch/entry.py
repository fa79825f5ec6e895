"""What every command does before its own imports: streams that never fail, and stop signals.

Imports take seconds, and a signal that comes meanwhile must end the command as later ones do. So
this module imports next to nothing.
"""

from __future__ import annotations

import codecs
import errno
import io
import locale
import os
import select
import signal
import sys
from contextlib import suppress
from itertools import pairwise
from types import FrameType, TracebackType
from typing import Any

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
STOPPED = 75  # the exit status of a command that can be rerun to resume
STOPPED_EARLY = "stopped before the run started"
# Those that end with this status on a stop signal; the others are killed by it.
RESUMABLE = ("launch", "demo", "reproduce", "study", "sweep")
FAILING = ("strict", "surrogateescape")  # the second is Python's choice in the locale C
PLAIN = {"×": "x", "→": "->", "…": "...", "±": "+-", "·": "-", "–": "-", "β": "beta", "√": "sqrt"}


def command_name() -> str | None:
    """NAME if this process is `python -m scripts.NAME`."""
    modules = [after for option, after in pairwise(sys.orig_argv) if option == "-m"]
    names = [module for module in modules if module.startswith("scripts.")]
    return names[-1].removeprefix("scripts.") if names else None


def begin(command: str) -> None:
    """Makes files UTF-8 and streams safe, and has stop signals end the process in order."""
    read_files_as_utf8()
    make_streams_safe()
    sys.excepthook = _without_interrupts
    if command in RESUMABLE:
        receive_stop_signals(stop_at_once)
    elif command == "train":  # torchrun ignores it, and so would its children
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def read_files_as_utf8() -> None:
    """In any locale: where Python would read files as something else, it starts again."""
    wanted = {"PYTHONUTF8": "1"}
    if codecs.lookup(locale.getencoding()).name == "utf-8" or wanted.items() <= os.environ.items():
        return
    if sys.stdout is not None:  # what is printed stays as the locale has it
        wanted["PYTHONIOENCODING"] = sys.stdout.encoding
    os.execve(sys.executable, sys.orig_argv, os.environ | wanted)


def receive_stop_signals(handler: Any) -> dict[int, Any]:
    """Sets the handler of stop signals; returns those before. Under nohup SIGHUP stays ignored."""
    before = {}
    for number in STOP_SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            before[int(number)] = signal.signal(number, handler)
    return before


def stop_at_once(number: int, frame: FrameType | None) -> None:
    """The handler of stop signals before there is anything to save or to end."""
    write_now(STOPPED_EARLY)
    os._exit(STOPPED)  # an exception could be lost in the middle of an import


def write_now(line: str) -> None:
    """Prints from a signal handler, where `print` may find its stream in the middle of a write."""
    with suppress(OSError):
        os.write(1, f"{line}\n".encode("ascii", "replace"))


def end_of(handler: Any) -> Any:
    """The handler that takes the place of a command's own one when its work is done.

    Where `stop_at_once` was there before, signals are then ignored: what is done is done. Python
    would reset a handler of its own before it ends the process, and a signal would kill it.
    """
    return signal.SIG_IGN if handler is stop_at_once else handler


def make_streams_safe() -> None:
    """Standard output and error that never raise: not closed, not broken, not full, not ASCII."""
    codecs.register_error("plain", _as_plain_text)
    for number in (0, 1, 2):
        _open_if_closed(number)
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper):  # None where it was closed
            stream = open(number, "w", closefd=False)  # noqa: SIM115
        safe = io.TextIOWrapper(
            io.BufferedWriter(_NeverFailing(number, "w", closefd=False)),
            encoding=stream.encoding,
            errors="plain" if stream.errors in FAILING else stream.errors,
            line_buffering=stream.line_buffering or stream.isatty(),
            write_through=stream.write_through,
        )
        setattr(sys, name, safe)
        setattr(sys, f"__{name}__", safe)


def _open_if_closed(number: int) -> None:
    """Else the next file that is opened would get this number, and what is printed."""
    try:
        os.fstat(number)
    except OSError:
        opened = os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free: this one
        os.set_inheritable(opened, True)


def lost_output() -> OSError | None:
    """Why nothing that is printed arrives any more: EPIPE where the reader left; None if it does.

    For commands whose whole purpose is what they print.
    """
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return raw.lost if isinstance(raw, _NeverFailing) else None


class _NeverFailing(io.FileIO):
    """A file that becomes /dev/null when it can't be written to: a reader that left, a full disk.

    The file number itself is redirected, so the processes that this one starts are safe as well.
    """

    lost: OSError | None = None

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        done = 0
        while done < len(view):
            try:
                written = super().write(view[done:])
            except OSError as error:
                self._redirect(error)
                return len(view)
            if written is None:  # a terminal that does not wait
                select.select([], [self.fileno()], [])
            done += written or 0
        return done

    def _redirect(self, error: OSError) -> None:
        self.lost = error
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self.fileno())
        os.close(null)
        if self.fileno() == 1 and error.errno != errno.EPIPE:
            print(f"standard output can't be written to: {error.strerror}", file=sys.stderr)


def _as_plain_text(error: UnicodeError) -> tuple[str, int]:
    """For a terminal without the character: a similar one, or a question mark."""
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end]
    return "".join(PLAIN.get(character, "?") for character in text), error.end


def _without_interrupts(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    """Ctrl-C is no bug: no traceback. Python then ends the process as the signal would."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)
