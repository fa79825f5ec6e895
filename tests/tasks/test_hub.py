"""hf:// addresses, against a server on this machine that answers as the hub does."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tasks import hub
from tasks.base import DataProblem

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    files: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    damaged: set[str] = field(default_factory=set)  # served with wrong bytes
    cut_once: set[str] = field(default_factory=set)  # the first answer ends early

    def info(self) -> dict[str, object]:
        siblings = [
            {
                "rfilename": name,
                "size": len(data),
                "blobId": hashlib.sha1(data).hexdigest(),
                "lfs": {
                    "size": len(data),
                    "sha256": hashlib.sha256(data).hexdigest(),
                    "pointerSize": 130,
                },
            }
            for name, data in self.files.items()
        ]
        return {"id": "owner/name", "sha": COMMIT, "siblings": siblings, "private": False}


@pytest.fixture
def server(monkeypatch, tmp_path) -> Iterator[Hub]:
    state = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_HEAD(self):
            self.answer(body=False)

        def do_GET(self):
            self.answer(body=True)

        def answer(self, body: bool) -> None:
            path = unquote(urlsplit(self.path).path)
            if body:
                state.asked.append(path)
            if path.startswith("/api/datasets/owner/name"):
                if "/tree/" in path:
                    entries = [
                        {
                            "type": "file",
                            "path": one["rfilename"],
                            "size": one["size"],
                            "oid": one["blobId"],
                            "lfs": {
                                "oid": one["lfs"]["sha256"],
                                "size": one["size"],
                                "pointerSize": 130,
                            },
                        }
                        for one in state.info()["siblings"]  # type: ignore[attr-defined]
                    ]
                    return self.send(json.dumps(entries).encode(), {}, body)
                return self.send(json.dumps(state.info()).encode(), {}, body)
            _, _, name = path.partition(f"/resolve/{COMMIT}/")
            data = state.files.get(name)
            if data is None:
                self.send_response(404)
                self.send_header("X-Error-Code", "RepoNotFound")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return None
            digest = hashlib.sha256(data).hexdigest()
            if name in state.damaged:
                data = bytes(len(data))
            headers = {
                "X-Repo-Commit": COMMIT,
                "ETag": f'"{digest}"',
                "X-Linked-Size": str(len(data)),
            }
            return self.send(data, headers, body, name)

        def send(self, data: bytes, headers: dict[str, str], body: bool, name: str = "") -> None:
            start = 0
            wanted = self.headers.get("Range", "")
            if body and wanted.startswith("bytes="):
                start = int(wanted.removeprefix("bytes=").partition("-")[0])
            self.send_response(206 if start else 200)
            for key, value in headers.items():
                self.send_header(key, value)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            self.send_header("Content-Length", str(len(data) - start))
            self.end_headers()
            if body:
                end = len(data)
                if name in state.cut_once:
                    state.cut_once.remove(name)
                    end = len(data) // 2
                    self.close_connection = True
                self.wfile.write(data[start:end])

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{http.server_address[1]}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield state
    http.shutdown()
    thread.join()
    http.server_close()


def downloads(server: Hub) -> list[str]:
    return [path for path in server.asked if "/resolve/" in path]


def test_a_data_set_is_downloaded_once(server: Hub):
    server.files = {"a/train-0.parquet": b"x" * 1000, "a/README.md": b"r", "b/test.parquet": b"y"}
    said: list[str] = []
    place = hub.download("hf://owner/name", said.append)
    assert (place / "a" / "train-0.parquet").read_bytes() == b"x" * 1000
    assert not (place / "a" / "README.md").exists()
    assert said == ["hf://owner/name: 2 files, 0.00 GB"]
    assert len(downloads(server)) == 2
    assert hub.download("hf://owner/name", said.append) == place
    assert len(downloads(server)) == 2


def test_a_folder_of_it(server: Hub):
    server.files = {"a/train-0.parquet": b"x" * 1000, "b/test.parquet": b"y"}
    place = hub.download("hf://owner/name/a", lambda _: None)
    assert [p.name for p in place.iterdir()] == ["train-0.parquet"]
    with pytest.raises(DataProblem, match=r"hf://owner/name/c: no \*\.parquet, .* in it"):
        hub.download("hf://owner/name/c", lambda _: None)


def test_a_cut_download_is_resumed(server: Hub):
    server.files = {"a.parquet": bytes(range(256)) * 4000}
    server.cut_once = {"a.parquet"}
    place = hub.download("hf://owner/name", lambda _: None)
    assert (place / "a.parquet").read_bytes() == server.files["a.parquet"]
    assert len(downloads(server)) == 2


def test_wrong_bytes_are_found_by_the_checksum(server: Hub):
    server.files = {"a.parquet": b"x" * 1000}
    server.damaged = {"a.parquet"}
    said: list[str] = []
    with pytest.raises(DataProblem, match=r"a\.parquet: its size or SHA-256 is not the one that"):
        hub.download("hf://owner/name", said.append)
    assert "damaged and is downloaded again" in said[1]
    server.damaged.clear()
    place = hub.download("hf://owner/name", said.append)
    assert (place / "a.parquet").read_bytes() == b"x" * 1000


@pytest.mark.parametrize(
    "address", ["hf://name", "hf://", "hf://a/b/../c", "hf://a/b c", "hf://a/b/;x"]
)
def test_addresses_that_are_none(address: str):
    with pytest.raises(DataProblem, match="must be as hf://owner/name"):
        hub.download(address, lambda _: None)


def test_an_unknown_set_and_no_network(server: Hub, monkeypatch):
    with pytest.raises(
        DataProblem, match=r"^hf://owner/other: cannot be had from the hub: "
    ) as found:
        hub.download("hf://owner/other", lambda _: None)
    assert "\n" not in str(found.value)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(
        DataProblem, match=r"^hf://owner/name: cannot be had from the hub: "
    ) as found:
        hub.download("hf://owner/name", lambda _: None)
    assert "\n" not in str(found.value)


def test_not_enough_space(server: Hub, monkeypatch, tmp_path: Path):
    import shutil

    server.files = {"a.parquet": b"x" * 1000}
    usage = shutil._ntuple_diskusage(10, 10, 999)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(DataProblem, match="not enough space"):
        hub.download("hf://owner/name", lambda _: None)
    assert not downloads(server)
