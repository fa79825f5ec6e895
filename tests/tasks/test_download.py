"""Downloads from a server that behaves as badly as real ones do."""

from __future__ import annotations

import hashlib
import shutil
import threading
import time
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tasks import download
from tasks.base import DataProblem
from tasks.download import CHUNK, Patience, fetch

DATA = bytes(range(256)) * 1000
OTHER = b"another file " * 30_000
SUMS = {"md5": hashlib.md5(DATA).hexdigest(), "sha256": hashlib.sha256(DATA).hexdigest()}
QUICK = Patience(silence=0.3, tries=3, pause=0.001)


@dataclass
class Server:
    """What each path does, and what was asked."""

    address: str = ""
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    cut_at: list[int] = field(default_factory=list)  # lengths of the next answers of /cut
    failures: int = 0  # answers 503 that /busy still gives
    data: bytes = DATA
    drips: int = 0  # bytes that /drips could send
    dripped: threading.Event = field(default_factory=threading.Event)  # /drips was cut off

    def __call__(self, path: str) -> str:
        return f"{self.address}{path}"


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            wanted = self.headers.get("Range")
            state.asked.append((self.path, wanted))
            if self.path == "/forbidden":
                is_browser = self.headers.get("User-Agent", "").startswith("Mozilla/")
                return self.send_error(403 if is_browser else 400)
            if self.path == "/moved":
                self.send_response(302)
                self.send_header("Location", "/good")
                return self.end_headers()
            if self.path == "/drips":
                self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
                for _ in range(200):
                    try:
                        self.wfile.write(b"x")
                        self.wfile.flush()
                        state.drips += 1
                    except OSError:
                        break
                    time.sleep(0.1)
                state.dripped.set()
                return None
            if self.path == "/silent":
                return time.sleep(1)
            if self.path == "/busy" and state.failures:
                state.failures -= 1
                return self.send_error(503)
            if self.path not in ("/good", "/cut", "/ignores", "/other", "/busy", "/unmeasured"):
                return self.send_error(404)
            self.give(OTHER if self.path == "/other" else state.data, wanted)

        def give(self, data, wanted):
            start = 0
            if wanted and self.path != "/ignores":
                start = int(wanted.removeprefix("bytes=").removesuffix("-"))
                if start >= len(data):
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{len(data)}")
                    return self.end_headers()
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            else:
                self.send_response(200)
            if self.path != "/unmeasured":
                self.send_header("Content-Length", str(len(data) - start))
            self.end_headers()
            is_cut = self.path in ("/cut", "/ignores") and state.cut_at
            end = start + state.cut_at.pop(0) if is_cut else len(data)
            self.wfile.write(data[start:end])

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.address = f"http://127.0.0.1:{http.server_address[1]}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield state
    http.shutdown()
    thread.join()
    http.server_close()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "data" / "a.zip"


def part(target: Path) -> Path:
    return target.with_name("a.zip.part")


def get(target: Path, *urls: str, size: int | None = len(DATA)) -> bool:
    return fetch(urls, target, SUMS, lambda *_: None, size=size, patience=QUICK)


def is_clean(target: Path) -> bool:
    return target.read_bytes() == DATA and [p.name for p in target.parent.iterdir()] == ["a.zip"]


def test_a_file_and_its_progress(server: Server, target: Path):
    seen: list[tuple[str, int, int]] = []
    assert fetch([server("/good")], target, SUMS, lambda *line: seen.append(line), patience=QUICK)
    assert is_clean(target)
    total = len(DATA)
    assert ("downloading a.zip", total, total) in seen
    assert seen[-1] == ("checking a.zip.part", total, total)
    downloading = [done for what, done, _ in seen if what.startswith("downloading")]
    assert downloading == sorted(downloading)


def test_a_file_that_is_there_is_used(server: Server, target: Path):
    target.parent.mkdir()
    target.write_bytes(DATA)
    assert not get(target, server("/good"))
    assert server.asked == []


def test_another_file_in_its_place(server: Server, target: Path):
    target.parent.mkdir()
    target.write_bytes(OTHER)
    found = hashlib.md5(OTHER).hexdigest()
    with pytest.raises(
        DataProblem, match=f"^{target}: its MD5 is {found}, but must be {SUMS['md5']}"
    ):
        get(target, server("/good"))
    assert target.read_bytes() == OTHER


def test_a_cut_connection_is_resumed(server: Server, target: Path):
    server.cut_at = [100_000, 50_000]
    assert get(target, server("/cut"))
    assert server.asked == [
        ("/cut", None),
        ("/cut", "bytes=100000-"),
        ("/cut", "bytes=150000-"),
    ]
    assert is_clean(target)


def test_a_later_call_resumes(server: Server, target: Path):
    server.cut_at = [1000, 10, 10]
    with pytest.raises(
        DataProblem, match=r"/cut \(cut after 1,020 of 256,000 bytes, 3 times\)\. Try again later"
    ):
        get(target, server("/cut"))
    assert not target.exists()
    assert part(target).read_bytes() == DATA[:1020]
    assert get(target, server("/missing"), server("/good"))
    assert server.asked[-1] == ("/good", "bytes=1020-")
    assert is_clean(target)


def test_progress_gives_new_tries(server: Server, target: Path, monkeypatch):
    server.data = DATA * 24
    server.cut_at = [CHUNK] * 5
    sums = {"md5": hashlib.md5(server.data).hexdigest()}
    fetch([server("/cut")], target, sums, lambda *_: None, patience=QUICK)
    assert len(server.asked) == 6
    assert target.read_bytes() == server.data


def test_a_server_that_ignores_the_range(server: Server, target: Path):
    server.cut_at = [1000]
    assert get(target, server("/ignores"))
    assert server.asked == [("/ignores", None), ("/ignores", "bytes=1000-")]
    assert is_clean(target)


@pytest.mark.parametrize("stale", [OTHER[:5000], OTHER, DATA[:-1] + b"x", DATA + b"x"])
def test_a_part_of_another_file(stale: bytes, server: Server, target: Path):
    target.parent.mkdir()
    part(target).write_bytes(stale)
    assert get(target, server("/good"))
    assert is_clean(target)


def test_a_part_that_was_whole(server: Server, target: Path):
    """Killed before the file got its name."""
    target.parent.mkdir()
    part(target).write_bytes(DATA)
    assert get(target, server("/good"))
    assert server.asked == [("/good", f"bytes={len(DATA)}-")]
    assert is_clean(target)


def test_redirects(server: Server, target: Path):
    assert get(target, server("/moved"))
    assert is_clean(target)


def test_the_next_mirror(server: Server, target: Path):
    assert get(target, server("/forbidden"), server("/good"))
    assert [path for path, _ in server.asked] == ["/forbidden", "/good"]
    assert is_clean(target)


def test_no_mirror_has_it(server: Server, target: Path):
    with pytest.raises(DataProblem) as caught:
        get(target, server("/forbidden"), server("/missing"), server("/none"), "nonsense")
    message = str(caught.value)
    assert message.startswith(f"{target}: not there, and could not be had from ")
    assert f"{server('/forbidden')} (403 Forbidden)" in message
    assert f"{server('/missing')} (404 Not Found)" in message
    assert "nonsense (unknown url type" in message
    assert message.endswith(f"put the file at {target}")
    assert len(server.asked) == 3
    assert list(target.parent.iterdir()) == []


def test_a_wrong_file(server: Server, target: Path):
    with pytest.raises(DataProblem, match=r"/other \(390,000 bytes instead of 256,000\)"):
        get(target, server("/other"))
    found = hashlib.md5(OTHER).hexdigest()
    with pytest.raises(DataProblem, match=rf"/other \(MD5 {found} instead of {SUMS['md5']}\)"):
        get(target, server("/other"), size=None)
    assert list(target.parent.iterdir()) == []
    assert get(target, server("/other"), server("/good"), size=None)
    assert is_clean(target)


def test_without_a_length(server: Server, target: Path):
    assert get(target, server("/unmeasured"), size=None)
    assert is_clean(target)
    target.unlink()
    with pytest.raises(DataProblem, match=r"/unmeasured \(more than 255,999 bytes\)"):
        get(target, server("/unmeasured"), size=len(DATA) - 1)


def test_a_busy_server(server: Server, target: Path):
    server.failures = 2
    assert get(target, server("/busy"))
    assert is_clean(target)
    target.unlink()
    server.failures = 3
    with pytest.raises(DataProblem, match=r"/busy \(503 Service Unavailable, 3 times\)"):
        get(target, server("/busy"))


def test_a_silent_server(server: Server, target: Path):
    began = time.monotonic()
    with pytest.raises(DataProblem, match=r"/silent \(timed out, 3 times\)"):
        get(target, server("/silent"))
    assert len(server.asked) == 3
    assert time.monotonic() - began >= 3 * QUICK.silence


def test_a_server_that_trickles(server: Server, target: Path):
    slow = Patience(tries=2, pause=0.001, window=0.0, trickle=10**9)
    with pytest.raises(DataProblem, match=r"/good \(too slow, 2 times\)"):
        fetch([server("/good")], target, SUMS, lambda *_: None, patience=slow)


def test_nobody_listens(server: Server, target: Path):
    with pytest.raises(DataProblem, match=r"127\.0\.0\.1:1/x \(Connection refused, 3 times\)"):
        get(target, "http://127.0.0.1:1/x")


def test_no_space(server: Server, target: Path, monkeypatch: pytest.MonkeyPatch):
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(100_000))
    with pytest.raises(DataProblem, match=r"not enough space: 0\.3 MB are needed and 0\.1 MB are"):
        get(target, server("/good"), server("/good"))
    assert len(server.asked) == 1


def test_a_file_of_unknown_size_has_a_limit(server: Server, target: Path, monkeypatch):
    """With a length in the answer it is refused at once, without one when it is reached."""
    monkeypatch.setattr(download, "MOST_UNKNOWN", 100_000)
    for path, reason in (
        ("/good", "256,000 bytes, more than the 100,000 that are read at most"),
        ("/unmeasured", "more than 100,000 bytes"),
    ):
        with pytest.raises(DataProblem, match=reason):
            fetch([server(path)], target, SUMS, lambda *_: None, patience=QUICK)
        part = target.with_name(f"{target.name}.part")
        assert not part.exists() or part.stat().st_size <= 100_000
        part.unlink(missing_ok=True)
    assert fetch([server("/good")], target, SUMS, lambda *_: None, size=len(DATA), patience=QUICK)


def test_headers_that_trickle(server: Server, target: Path):
    """A byte every tenth of a second: no timeout of the socket ever ends that."""
    patience = Patience(silence=5, headers=0.5, tries=1, pause=0)
    with pytest.raises(DataProblem, match="could not be had from"):
        fetch([server("/drips")], target, SUMS, lambda *_: None, patience=patience)
    assert server.dripped.wait(60)
    assert server.drips < 200  # the connection was cut before the server had finished
