"""Terminals, pipes and descriptors that break under a command."""

from __future__ import annotations

import fcntl
import os
import pty
import shutil
import signal
import struct
import sys
import termios
import time
from contextlib import suppress
from functools import partial

from tests.faults.matrix import fault
from tests.faults.site import Launched, Site, expect
from tests.faults.stops import expect_stopped

CLOSED = ("sh", "-c", 'exec "$@" >&- 2>&-', "sh")
FULL = ("sh", "-c", 'exec "$@" >/dev/full 2>&1', "sh")
ASCII = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def through_head(site: Site, command: list[str]) -> Launched:
    """`command | head -1`: the pipe's reader leaves after the first line."""
    reader, writer = os.pipe()
    launched = site.start(command, stdout=writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        pipe.readline()
    return launched


def stop_after_head(site: Site) -> None:
    launched = through_head(site, site.command())
    launched.until(lambda: site.step() >= 5)
    launched.send(signal.SIGTERM)
    expect_stopped(site, launched)
    site.finish()
    site.expect_as(site.reference())


def finish_after_head(site: Site) -> None:
    site.expect_exit(through_head(site, site.command()), 0)
    site.expect_as(site.reference())


def finish_in(site: Site, *prefix: str) -> None:
    launched = site.start([*prefix, *site.command()])
    site.expect_exit(launched, 0)
    site.expect_as(site.reference())


def finish_in_ascii(site: Site) -> None:
    site.expect_exit(site.launch(environment=ASCII), 0)
    site.expect_as(site.reference())


def other_command(site: Site, *arguments: str) -> None:
    """Any end but one with a traceback."""
    launched = through_head(site, [sys.executable, "-m", *arguments])
    launched.wait()
    expect("Traceback" not in launched.output, f"a traceback: {launched.last_lines()}")


CASES = {
    "launch | head -1, then TERM": stop_after_head,
    "launch | head -1, to the end": finish_after_head,
    "stdout and stderr closed": lambda site: finish_in(site, *CLOSED),
    "stdout and stderr are /dev/full": lambda site: finish_in(site, *FULL),
    "an ASCII-only stdout": finish_in_ascii,
    "plan | head -1": lambda site: other_command(site, "scripts.plan", *site.arguments()),
    "sweep --help | head -1": lambda site: other_command(site, "scripts.sweep", "--help"),
}


@fault(
    "stdout broken, closed, full or ASCII-only",
    "the run and its exit status are as ever; no traceback",
    tries=len(CASES),
    quick=2,
)
def broken_stdout(site: Site, tries: int) -> None:
    for name in [*CASES][:tries]:
        with site.attempt(name):
            shutil.rmtree(site.outputs, ignore_errors=True)
            CASES[name](site)


class Terminal:
    """A pseudo-terminal whose output is read and kept."""

    def __init__(self) -> None:
        self.master, self.slave = pty.openpty()
        os.set_blocking(self.master, False)
        self.text = b""

    def read(self) -> None:
        with suppress(OSError):
            while data := os.read(self.master, 1 << 16):
                self.text += data

    def shows(self, site: Site, step: int) -> bool:
        """Whether a run has come to a checkpoint; the output is read meanwhile."""
        self.read()
        return site.step() >= step

    def resize(self, rows: int, columns: int) -> None:
        with suppress(OSError):
            fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def start(self, site: Site) -> Launched:
        """With this terminal as its controlling one, so that it gets SIGWINCH and SIGHUP."""
        command = ["setsid", "--ctty", "--wait", *site.command()]
        launched = site.start(
            command, {"TERM": "xterm"}, stdin=self.slave, stdout=self.slave, stderr=self.slave
        )
        os.close(self.slave)
        return launched


@fault(
    "a terminal that is resized all the time, to nothing as well",
    "the run is not disturbed",
    tries=1,
    quick=1,
)
def terminal_resized(site: Site, tries: int) -> None:
    reference = site.reference()
    for _ in range(tries):
        with site.attempt("every 20 ms"):
            terminal = Terminal()
            launched = terminal.start(site)
            while launched.is_running:
                terminal.resize(site.random.randrange(50), site.random.randrange(200))
                terminal.read()
                time.sleep(0.02)
            terminal.read()
            os.close(terminal.master)
            code = launched.wait()
            expect(code == 0, f"exit status {code}: {terminal.text[-300:]!r}")
            expect(b"Traceback" not in terminal.text, "a traceback")
            site.expect_as(reference)


@fault(
    "a terminal that is closed (SIGHUP)",
    "stopped as by TERM, saved; the same command resumes to the same bits",
    tries=1,
    quick=1,
)
def terminal_closed(site: Site, tries: int) -> None:
    for _ in range(tries):
        with site.attempt("after some steps"):
            terminal = Terminal()
            launched = terminal.start(site)
            launched.until(partial(terminal.shows, site, 10))
            os.close(terminal.master)
            code = launched.wait(60)
            expect(code == 75, f"exit status {code} instead of 75")
            site.expect_no_process()
            kind = site.status().kind
            expect(kind == "preempted", f"the status is {kind!r} instead of 'preempted'")
    with site.attempt("then to the end"):
        site.finish()
        site.expect_as(site.reference())
