"""One checkpoint: a file that torch.save writes, and its manifest with size and SHA-256."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch
from torch import Tensor, nn

from tasks.files import parse_json

FORMAT = 1
# Bytes of the archive beside the tensors' own: for each of them, and once.
PER_TENSOR, ONCE = 1 << 10, 1 << 16
# States of these in dicts, lists and tuples are read back without executing code from a file.
PLAIN = {type(None), bool, int, float, str, bytes, torch.dtype, torch.device, torch.Size}


class DamagedError(Exception):
    """What is wrong with one checkpoint."""


@dataclass(frozen=True)
class Manifest:
    """What a data file must be.

    While one data file takes the place of another of the same name, the manifest describes the new
    one and in `replaces` the old ones, so that there is no moment at which nothing is valid.
    """

    step: int
    size: int
    sha256: str
    fingerprint: str
    settings: dict[str, Any]
    replaces: Sequence[Sequence[Any]] = ()
    format: int = FORMAT

    @classmethod
    def read(cls, path: Path) -> Manifest:
        try:
            content = parse_json(path.read_bytes())
            if content.pop("checksum") != _checksum(content):
                raise DamagedError(f"its manifest {path.name} was changed")
            if (version := content["format"]) != FORMAT:
                raise DamagedError(f"it has format {version}, and format {FORMAT} can be read")
            return cls(**content)
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise DamagedError(f"its manifest {path.name} is unreadable ({error})") from None

    def encode(self) -> bytes:
        content = asdict(self)
        return json.dumps(content | {"checksum": _checksum(content)}, indent=1).encode()

    def described(self) -> list[Sequence[Any]]:
        """The files that fit: step, size and SHA-256 of each."""
        return [(self.step, self.size, self.sha256), *self.replaces]

    def step_of(self, file: BufferedReader) -> int:
        """The step of a file that fits, bit for bit."""
        actual = os.fstat(file.fileno()).st_size
        if all(actual != size for _, size, _ in self.described()):
            raise DamagedError(f"it has {actual:,} bytes instead of {self.size:,}")
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        for step, size, sha256 in self.described():
            if (size, sha256) == (actual, digest):
                return int(step)
        raise DamagedError("its SHA-256 is not the one in the manifest: bytes were changed")


def bytes_needed(state: dict[str, Any]) -> int:
    """About the size of a checkpoint; TypeError if it could not be read back."""
    storages = {}
    for tensor in _tensors(state, "state"):
        storage = tensor.untyped_storage()  # saved whole and once, however many tensors share it
        storages[storage.device, storage.data_ptr()] = storage.nbytes()
    return sum(storages.values()) + PER_TENSOR * len(storages) + ONCE


def _tensors(value: Any, where: str) -> Iterator[Tensor]:
    kind = type(value)  # exactly: numpy's float64 is a float, and is refused when loading
    if kind in (Tensor, nn.Parameter):
        yield value
    elif kind in (dict, OrderedDict):
        for key, item in value.items():
            yield from _tensors(key, f"a key of {where}")
            yield from _tensors(item, f"{where}[{key!r}]")
    elif kind in (list, tuple):
        for index, item in enumerate(value):
            yield from _tensors(item, f"{where}[{index}]")
    elif kind not in PLAIN:
        name = f"{kind.__module__}.{kind.__qualname__}"
        raise TypeError(f"{where} is a {name}: a checkpoint holds tensors and plain values only")


class _HashingFile:
    """What torch.save writes into: it only appends, so that the hash needs no second pass."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.flush, self.sha256 = file, file.flush, hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: memoryview) -> int:
        try:
            self._file.write(data)
        except OSError as error:
            self.error = self.error or error  # torch turns it into "unexpected pos"
            raise
        self.sha256.update(data)
        return len(data)


def write_state(path: Path, state: dict[str, Any]) -> tuple[int, str]:
    """Size and SHA-256 of what is then on the disk."""
    with path.open("wb") as file:
        hashing = _HashingFile(file)
        try:
            torch.save(state, cast(BinaryIO, hashing))
        except RuntimeError:
            if hashing.error is not None:
                raise hashing.error from None
            raise
        file.flush()
        os.fsync(file.fileno())
        return file.tell(), hashing.sha256.hexdigest()


def read_state(file: BufferedReader) -> dict[str, Any]:
    """A state from a file that is what was written; runs nothing that the file asks for."""
    try:
        state = torch.load(file, map_location="cpu", weights_only=True, mmap=False)
    except (OSError, MemoryError):
        raise
    except pickle.UnpicklingError as error:
        wanted = re.search(r"GLOBAL (\S+)", str(error))
        what = f"it asks to run {wanted[1]}" if wanted else "it holds more than a state"
        raise DamagedError(f"refused: {what}") from None
    except Exception as error:
        reason = (str(error).splitlines() or [repr(error)])[0]
        raise DamagedError(f"it can't be loaded ({reason})") from None
    if not isinstance(state, dict):
        raise DamagedError(f"it holds a {type(state).__name__}, not a state")
    return state


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
