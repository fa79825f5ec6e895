"""One file from the first of its mirrors that has it, for all tasks; standard library only.

What was read of a cut download stays in `<name>.part` beside the target, and the next attempt, of
this call or of another, asks for the rest. The file gets its name when its checksums are right.
One process at a time: who calls sees to that (`tasks.making.alone`).
"""

from __future__ import annotations

import hashlib
import http.client
import re
import shutil
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.base import DataProblem
from tasks.files import rename

Report = Callable[[str, int, int], None]  # what is done, bytes done, bytes in all

BROWSER = "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0"
CHUNK = 1 << 20  # bytes read at once, at most
MOST_UNKNOWN = 1 << 30  # bytes of a file whose size is not known beforehand
PASSING = (408, 425, 429, 500, 502, 503, 504)  # answers that may be others a little later


@dataclass(frozen=True)
class Patience:
    """How long a server is waited for, and how often it is asked."""

    silence: float = 30.0  # seconds for a connection, and from one byte to the next
    headers: float = 60.0  # seconds for all headers of an answer
    tries: int = 4  # attempts that bring less than a chunk each, of one mirror
    pause: float = 2.0  # seconds before the second attempt, twice as many before each later one
    window: float = 60.0  # seconds in which at least `trickle` bytes have to come
    trickle: int = 60_000


class _Refused(Exception):
    """Why a mirror is of no use, in a few words; the next one is tried."""


class _Cut(Exception):
    """Why an attempt ended before the file did; the same mirror is asked again."""


def fetch(
    urls: Sequence[str],
    target: Path,
    sums: Mapping[str, str],
    report: Report,
    *,
    size: int | None = None,
    patience: Patience | None = None,
) -> bool:
    """Makes `target` a file of these checksums; False if it was one before.

    `sums` is by the names of hashlib, in lower case hexadecimal. Raises DataProblem if the file is
    there and another one, or if no mirror gives it.
    """
    if target.exists():
        check_sums(target, sums, report)
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    reasons = []
    for url in urls:
        try:
            download = _Download(url, target, sums, report, size, patience or Patience())
            download.run()
            return True
        except _Refused as reason:
            reasons.append(f"{url} ({reason})")
    raise DataProblem(
        f"{target}: not there, and could not be had from {', '.join(reasons)}. Try again later, or"
        f" put the file at {target}"
    )


def check_sums(path: Path, sums: Mapping[str, str], report: Report) -> None:
    """Raises DataProblem, which names both, if a checksum of the file is not the wanted one."""
    for name, found in file_sums(path, sums, report).items():
        if found != sums[name]:
            raise DataProblem(
                f"{path}: its {_spelled(name)} is {found}, but must be {sums[name]}: it is damaged,"
                " or another file; replace it"
            )


def file_sums(path: Path, names: Mapping[str, str], report: Report) -> dict[str, str]:
    """Checksums of a file by these names of hashlib, in one pass."""
    digests = {name: hashlib.new(name, usedforsecurity=False) for name in names}
    size, done = path.stat().st_size, 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            for digest in digests.values():
                digest.update(chunk)
            done += len(chunk)
            report(f"checking {path.name}", done, size)
    return {name: digest.hexdigest() for name, digest in digests.items()}


def check_space(folder: Path, needed: int) -> None:
    """Raises DataProblem if so many bytes more do not fit on the folder's disk."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DataProblem(
            f"{folder}: not enough space: {needed / 1e6:,.1f} MB are needed and {free / 1e6:,.1f}"
            " MB are free"
        )


class _Download:
    """One file from one mirror."""

    def __init__(
        self,
        url: str,
        target: Path,
        sums: Mapping[str, str],
        report: Report,
        size: int | None,
        patience: Patience,
    ) -> None:
        self.url, self.target, self.sums, self.size = url, target, sums, size
        self.report, self.patience = report, patience
        self.part = target.with_name(f"{target.name}.part")
        self._opener = _opener(patience.headers)

    def run(self) -> None:
        """Attempts until the file is whole; a wrong one that was begun before is read anew."""
        while True:
            was_begun = self._have() > 0
            self._read_to_end()
            found = file_sums(self.part, self.sums, self.report)
            wrong = [name for name in self.sums if found[name] != self.sums[name]]
            if not wrong:
                rename(self.part, self.target)
                return
            self.part.unlink()
            if not was_begun:
                name = wrong[0]
                raise _Refused(f"{_spelled(name)} {found[name]} instead of {self.sums[name]}")

    def _have(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _read_to_end(self) -> None:
        failed = 0
        while True:
            before = self._have()
            try:
                self._attempt(before)
                return
            except _Cut as reason:
                failed = 1 if self._have() - before >= CHUNK else failed + 1
                if failed >= self.patience.tries:
                    raise _Refused(f"{reason}, {failed} times") from None
            time.sleep(self.patience.pause * 2 ** (failed - 1))

    def _attempt(self, begun: int) -> None:
        headers = {"User-Agent": BROWSER, "Accept": "*/*"}
        if begun:
            headers["Range"] = f"bytes={begun}-"
        try:
            request = urllib.request.Request(self.url, headers=headers)
            answer = self._opener.open(request, timeout=self.patience.silence)
        except urllib.error.HTTPError as error:
            with error:
                self._refusal(error, begun)
            return
        except (OSError, http.client.HTTPException) as error:
            raise _Cut(_in_short(error)) from error
        except ValueError as error:  # an address that is none
            raise _Refused(_in_short(error)) from error
        with answer:
            self._save(answer, *self._extent(answer, begun))

    def _refusal(self, error: urllib.error.HTTPError, begun: int) -> None:
        """Returns if there was nothing left to read."""
        if error.code == 416 and begun:
            if error.headers.get("Content-Range", "").strip() == f"bytes */{begun}":
                return
            self.part.unlink()  # longer than the file: of another one
            raise _Cut("a part that does not fit")
        what = f"{error.code} {error.reason}".strip()
        raise _Cut(what) if error.code in PASSING else _Refused(what)

    def _extent(self, answer: Any, begun: int) -> tuple[int, int | None]:
        """Where the answer's bytes begin in the file, and how long the file is."""
        if answer.status == 206:
            span = re.fullmatch(
                r"bytes (\d+)-\d+/(\d+|\*)", answer.headers.get("Content-Range", "").strip()
            )
            if span is None or int(span[1]) != begun:
                self.part.unlink(missing_ok=True)
                raise _Cut("an answer of another range")
            start, total = begun, None if span[2] == "*" else int(span[2])
        else:  # the whole file, whatever was asked for
            length = answer.headers.get("Content-Length", "")
            start, total = 0, int(length) if length.isdecimal() else None
        if total is not None and self.size is not None and total != self.size:
            raise _Refused(f"{total:,} bytes instead of {self.size:,}")
        if total is not None and self.size is None and total > MOST_UNKNOWN:
            raise _Refused(f"{total:,} bytes, more than the {MOST_UNKNOWN:,} that are read at most")
        return start, total if total is not None else self.size

    def _save(self, answer: Any, done: int, total: int | None) -> None:
        what = f"downloading {self.target.name}"
        most = MOST_UNKNOWN if total is None else total
        if total is not None:
            check_space(self.part.parent, total - done)
        since, mark = time.monotonic(), done
        with self.part.open("r+b" if done else "wb") as file:
            file.seek(done)
            while True:
                try:
                    chunk = answer.read1(CHUNK)
                except (OSError, http.client.HTTPException) as error:
                    raise _Cut(_in_short(error)) from error
                if not chunk:
                    break
                if done + len(chunk) > most:
                    raise _Refused(f"more than {most:,} bytes")
                file.write(chunk)
                done += len(chunk)
                self.report(what, done, total or done)
                now = time.monotonic()
                if now - since >= self.patience.window:
                    if done - mark < self.patience.trickle:
                        raise _Cut("too slow")
                    since, mark = now, done
        if total is not None and done < total:
            raise _Cut(f"cut after {done:,} of {total:,} bytes")


def _opener(limit: float) -> urllib.request.OpenerDirector:
    """Opens addresses; an answer whose headers take longer than `limit` seconds is cut.

    A timeout of the socket starts anew with every byte, so a server could send one a minute.
    """

    class Limited(http.client.HTTPConnection):
        def getresponse(self) -> http.client.HTTPResponse:
            sock = self.sock
            timer = threading.Timer(limit, lambda: _shut(sock))
            timer.daemon = True
            timer.start()
            try:
                return super().getresponse()
            finally:
                timer.cancel()

    class LimitedTls(Limited, http.client.HTTPSConnection):
        pass

    class Http(urllib.request.HTTPHandler):
        def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(Limited, req)

    class Https(urllib.request.HTTPSHandler):
        def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(LimitedTls, req)

    return urllib.request.build_opener(Http, Https)


def _shut(sock: Any) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _spelled(name: str) -> str:
    return {"md5": "MD5", "sha1": "SHA-1", "sha256": "SHA-256"}.get(name, name)


def _in_short(error: Exception) -> str:
    """The first line of what went wrong; an URLError has it inside."""
    reason = getattr(error, "reason", None) or error
    text = str(getattr(reason, "strerror", None) or reason).strip()
    return text.splitlines()[0] if text else type(reason).__name__
