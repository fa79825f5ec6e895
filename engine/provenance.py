"""What a run's numbers came from: the suite's commit, versions, hardware; and a config's identity.

Records are published, so nothing here names a host, a user or a path.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("torch", "torchvision", "numpy")


def describe_environment() -> dict[str, Any]:
    """Commit, versions and hardware; None for what is not known."""
    commit, dirty = _commit(ROOT)
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        versions[package] = None
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return {"commit": commit, "dirty": dirty, "versions": versions, "hardware": _hardware()}


def fingerprint(config: Mapping[str, Any], leave_out: Sequence[str] = ()) -> str:
    """12 hex digits that depend on the values of a config, not on the order of its keys.

    `leave_out` names keys that do not count, dotted ones (`data.root`) too; one that the config
    does not have is no error.
    """
    plain = json.loads(json.dumps(config))
    for key in leave_out:
        *parents, last = key.split(".")
        node: Any = plain
        for parent in parents:
            node = node.get(parent) if isinstance(node, dict) else None
        if isinstance(node, dict):
            node.pop(last, None)
    canonical = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def _commit(root: Path) -> tuple[str | None, bool | None]:
    """The commit, and whether anything but data (`results/`) and texts (`*.md`) differs from it.

    (None, None) where there is no git or the root is not a checkout of its own.
    """
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        prefix, commit = _git(root, "rev-parse", "--show-prefix", "HEAD").split("\n")[:2]
        if not prefix:
            changed = _git(
                root, "status", "--porcelain", "--", ".", ":(exclude)results", ":(exclude)*.md"
            )
            return commit, bool(changed)
    return None, None


def _git(root: Path, *arguments: str) -> str:
    # Without git's variables, which name another repository inside its hooks.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    return subprocess.run(
        ["git", "--no-optional-locks", *arguments],
        cwd=root,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=10,
    ).stdout


def _hardware() -> dict[str, Any]:
    import torch  # not at the top: `fingerprint` is used where torch is not needed

    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        names = [torch.cuda.get_device_name(index) for index in range(count)]
        return {"device": "cuda", "cuda": torch.version.cuda, "count": count, "names": names}
    return {"device": "cpu", "name": _cpu_name(), "threads": torch.get_num_threads()}


def _cpu_name() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine() or "unknown"
