"""`python -m scripts.lock`: resolves pyproject.toml into requirements.lock, every package with ==.

pip does the resolving (`--dry-run --report`, nothing is installed). Packages that only Linux
needs, such as CUDA's, get a marker, so that the lock also serves a Mac.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
HEADER = """\
# Every package that the suite runs with, transitive ones too. Made by `make lock` from
# pyproject.toml; installed by `make setup`, which treats the last line specially.
"""


def main() -> int:
    """Writes the lock; pip's own message and status if there is no resolution."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    (fairseq,) = extras.pop("fairseq")  # not resolved: it is installed without its dependencies
    wanted = [*project["dependencies"], *chain.from_iterable(extras.values())]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    command += ["--dry-run", "--ignore-installed", "--report", "-", *wanted]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        return done.returncode
    packages = [item["metadata"] for item in json.loads(done.stdout)["install"]]
    lines = [*lock_lines(packages, wanted), f"{fairseq}\n"]
    (ROOT / "requirements.lock").write_text(HEADER + "".join(lines))
    print(f"requirements.lock: {len(lines)} packages")
    return 0


def lock_lines(packages: list[dict[str, Any]], wanted: Iterable[str]) -> list[str]:
    """`name==version` lines in alphabetical order."""
    elsewhere = _needed_on("Darwin", packages, wanted)
    own = {canonicalize_name(r.name): r.marker for r in map(Requirement, wanted) if r.marker}
    lines = []
    for package in sorted(packages, key=lambda p: canonicalize_name(p["name"])):
        name = canonicalize_name(package["name"])
        marker = "" if name in elsewhere else ' ; platform_system == "Linux"'
        marker = f" ; {own[name]}" if name in own else marker
        version = package["version"].split("+")[0]  # a local build of a release stands for it
        lines.append(f"{name}=={version}{marker}\n")
    return lines


def _needed_on(system: str, packages: list[dict[str, Any]], wanted: Iterable[str]) -> set[str]:
    """Names reached from `wanted` when markers are evaluated for another operating system."""
    environment = {"platform_system": system, "sys_platform": system.lower()}
    requires = {canonicalize_name(p["name"]): p.get("requires_dist", []) for p in packages}
    open_ends = [Requirement(text) for text in wanted]
    seen: set[tuple[str, frozenset[str]]] = set()
    while open_ends:
        requirement = open_ends.pop()
        name = canonicalize_name(requirement.name)
        key = (name, frozenset(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        extras = ["", *requirement.extras]
        for dependency in map(Requirement, requires.get(name, [])):
            marker = dependency.marker
            if marker is None or any(marker.evaluate({**environment, "extra": e}) for e in extras):
                open_ends.append(dependency)
    return {name for name, _ in seen}


if __name__ == "__main__":
    sys.exit(main())
