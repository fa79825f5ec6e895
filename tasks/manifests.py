"""What a prepared data set was made from, how much is in it, and how that compares to the official.

`manifest.json` lies in the folder that was prepared. A folder that the suite did not make is never
written into; what is known about it lies in the user's cache.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from tasks.files import parse_json, write_atomically
from tasks.making import cache_folder

MANIFEST = "manifest.json"
VERSION = 1
CHECKSUMS, COUNTS = "checksums", "counts"  # how a part was compared to the official one


@dataclass(frozen=True)
class Part:
    """A split or subset: where it comes from and what is in it.

    `compared` is "checksums" or "counts" where the official ones are known, else empty.
    """

    form: str  # e.g. "Kaggle's zip"
    action: str  # "linked", "unpacked", "downloaded and unpacked", "in place"
    counts: dict[str, int]
    bytes: int
    compared: str = ""
    differences: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    sums: dict[str, str] = field(default_factory=dict)  # checksums that were found right


@dataclass(frozen=True)
class Manifest:
    """All parts of a prepared set; `origin` are paths on this machine and are never published."""

    data: str
    parts: dict[str, Part]
    origin: list[str] = field(default_factory=list)
    identity: str = ""  # of the source files: another one is another source

    @property
    def differences(self) -> list[str]:
        return [f"{name}: {text}" for name, part in self.parts.items() for text in part.differences]

    def verdict(self) -> str:
        """One clause: identical, equal in counts, different, or not compared."""
        if self.differences:
            return f"differs from the official set: {'; '.join(self.differences)}"
        ways = {part.compared for part in self.parts.values()}
        if ways == {CHECKSUMS}:
            return "identical to the official set (checksums)"
        if ways and "" not in ways:
            return "every count is the official set's"
        return "not compared with an official set"

    def merged(self, other: Manifest) -> Manifest:
        """With the parts of another one, which replace those of the same name."""
        origin = [*dict.fromkeys([*self.origin, *other.origin])]
        return Manifest(self.data, {**self.parts, **other.parts}, origin, other.identity)

    def published(self) -> dict[str, Any]:
        """For records: without anything that names a path."""
        parts = {name: asdict(part) for name, part in self.parts.items()}
        return {
            "parts": {n: {k: v for k, v in part.items() if v} for n, part in parts.items()},
            "official": self.verdict(),
            "differences": self.differences,
        }


def compare(found: Mapping[str, int], official: Mapping[str, int]) -> list[str]:
    """Each count that differs from the official one: "12 images fewer (3 instead of 15)"."""
    differences = []
    for what, wanted in official.items():
        count = found.get(what, 0)
        if count != wanted:
            kind = "fewer" if count < wanted else "more"
            differences.append(
                f"{abs(wanted - count):,} {what} {kind} ({count:,} instead of {wanted:,})"
            )
    return differences


def describe_data(
    root: Path,
    name: str,
    counts: Mapping[str, Mapping[str, int]],
    sums: Mapping[str, str],
    official: Mapping[str, Mapping[str, int]],
) -> dict[str, Any]:
    """What a run records about its data: names no path.

    `counts` are by split what the run reads now, `sums` SHA-256 sums that identify it. `official`
    are counts of the paper's set, empty if the run's set is another one.
    """
    described: dict[str, Any] = {
        "name": name,
        "counts": {split: dict(some) for split, some in counts.items()},
        "sha256": dict(sums),
    }
    manifest = read_manifest(root)
    if manifest is not None:
        described |= manifest.published()
    if official:
        now = [
            f"{split}: {text}"
            for split, wanted in official.items()
            for text in compare(counts.get(split, {}), wanted)
        ]
        described["differences"] = [*dict.fromkeys([*described.get("differences", []), *now])]
    return described


def write_manifest(root: Path, manifest: Manifest, *, in_place: bool = False) -> None:
    """Into the prepared folder, or into the cache if the folder is the user's own."""
    file = _cached(root) if in_place else root / MANIFEST
    text = json.dumps({"version": VERSION, **asdict(manifest)}, indent=2, ensure_ascii=False)
    write_atomically(file, f"{text}\n".encode())


def read_manifest(root: Path) -> Manifest | None:
    """None if there is none that can be read."""
    for file in (root / MANIFEST, _cached(root)):
        try:
            raw = parse_json(file.read_text(encoding="utf-8"))
            if raw.pop("version") != VERSION:
                continue
            parts = {name: Part(**part) for name, part in raw.pop("parts").items()}
            return Manifest(parts=parts, **raw)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return None


def _cached(root: Path) -> Path:
    mark = sha256(os.fsencode(root.absolute())).hexdigest()[:16]
    return cache_folder("manifests") / f"{mark}.json"
