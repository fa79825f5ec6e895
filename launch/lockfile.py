"""requirements.lock: every package of the suite with its exact version and its files' checksums.

pip resolves (`--dry-run --report`, nothing is installed) and its index lists the files. Versions in
the present lock are kept unless an upgrade is asked for. Packages that only Linux needs, such as
CUDA's, get a marker, so that the lock also serves a Mac.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from html import unescape
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from packaging.requirements import Requirement
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)

from launch.config_files import ROOT

LOCK = ROOT / "requirements.lock"
HEADER = """\
# Every package that the suite runs with, transitive ones too, and the SHA-256 of its files. Made by
# `make lock` from pyproject.toml; installed by `make setup`, which installs the last one last.
"""
_FILE = re.compile(r'href="[^"#]*/([^"#/]+)#sha256=([0-9a-f]{64})"')
_PLATFORMS = re.compile(r"any|(many)?linux.*_(x86_64|aarch64)|macosx_.*")


class LockError(Exception):
    """No lock can be made; the message says why."""


def make_lock(*, upgrade: bool) -> str:
    """The text of requirements.lock."""
    groups = dependency_groups()
    (fairseq,) = groups.pop("fairseq")  # installed without its dependencies: not resolved
    wanted = list(chain.from_iterable(groups.values()))
    packages = _resolve(wanted, upgrade=upgrade)
    lines = [*pinned_lines(packages, wanted), fairseq]
    return HEADER + "".join(_with_hashes(line) for line in lines)


def dependency_groups() -> dict[str, list[str]]:
    """What the suite needs, by group; the package `novograd` itself needs torch alone."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups: dict[str, list[str]] = project["dependency-groups"]
    return groups


def read_lock(text: str) -> dict[str, tuple[str, list[str]]]:
    """Version and checksums of every package, by name."""
    found: dict[str, tuple[str, list[str]]] = {}
    name = ""
    for line in text.splitlines():
        if pinned := re.match(r"([a-z0-9.-]+)==([^\s;\\]+)", line):
            name = pinned[1]
            found[name] = (pinned[2], [])
        if name:
            found[name][1].extend(re.findall(r"--hash=sha256:([0-9a-f]{64})", line))
    return found


def pinned_lines(packages: list[dict[str, Any]], wanted: Iterable[str]) -> list[str]:
    """`name==version` with a marker where one is needed, in alphabetical order."""
    wanted = list(wanted)
    elsewhere = _needed_on("Darwin", packages, wanted)
    own = {canonicalize_name(r.name): r.marker for r in map(Requirement, wanted) if r.marker}
    lines = []
    for package in sorted(packages, key=lambda p: canonicalize_name(p["name"])):
        name = canonicalize_name(package["name"])
        marker = "" if name in elsewhere else ' ; platform_system == "Linux"'
        marker = f" ; {own[name]}" if name in own else marker
        version = package["version"].split("+")[0]  # a local build of a release stands for it
        lines.append(f"{name}=={version}{marker}")
    return lines


def hashes_of(page: str, version: str) -> list[str]:
    """Checksums of a release's files on an index page: those that Python 3.11 could install."""
    files = {unescape(unquote(name)): digest for name, digest in _FILE.findall(page)}
    return sorted({digest for name, digest in files.items() if _is_installable(name, version)})


def _is_installable(file: str, version: str) -> bool:
    try:
        if not file.endswith(".whl"):
            return str(parse_sdist_filename(file)[1]) == version
        _, found, _, tags = parse_wheel_filename(file)
    except (InvalidWheelFilename, InvalidSdistFilename, ValueError):
        return False

    def fits(interpreter: str, abi: str) -> bool:
        minor = re.fullmatch(r"cp3(\d+)", interpreter)
        stable = abi == "abi3" and minor is not None and int(minor[1]) <= 11
        return interpreter in ("py3", "py311", "cp311") or stable

    return str(found) == version and any(
        fits(tag.interpreter, tag.abi) and _PLATFORMS.fullmatch(tag.platform) for tag in tags
    )


def _with_hashes(line: str) -> str:
    name, version = re.split(r"[=\s;]+", line)[:2]
    digests = hashes_of(_index_page(name), version)
    if not digests:
        raise LockError(f"{name}=={version}: the package index lists no file with a checksum")
    return " \\\n".join([line, *(f"    --hash=sha256:{digest}" for digest in digests)]) + "\n"


def _index_page(name: str) -> str:
    """A package's page of the index that pip itself uses by default."""
    from pip._internal.models.index import PyPI
    from pip._vendor import requests

    verify = os.environ.get("PIP_CERT", True)
    answer = requests.get(f"{PyPI.simple_url}/{name}/", timeout=60, verify=verify)
    if answer.status_code != 200:
        raise LockError(f"{name}: the package index answers with status {answer.status_code}")
    return str(answer.text)


def _resolve(wanted: list[str], *, upgrade: bool) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    command += ["--dry-run", "--ignore-installed", "--report", "-"]
    with tempfile.TemporaryDirectory() as folder:
        if not upgrade and LOCK.exists():
            kept = Path(folder) / "constraints.txt"
            pins = {n: v for n, (v, _) in read_lock(LOCK.read_text()).items()}
            kept.write_text("".join(f"{name}=={version}\n" for name, version in pins.items()))
            command += ["--constraint", str(kept)]
        done = subprocess.run(
            [*command, *wanted], stdout=subprocess.PIPE, text=True, check=False, cwd=ROOT
        )
    if done.returncode != 0:
        raise LockError("pip found no set of versions that fits; its own message is above")
    return [item["metadata"] for item in json.loads(done.stdout)["install"]]


def _needed_on(system: str, packages: list[dict[str, Any]], wanted: Iterable[str]) -> set[str]:
    """Names reached from `wanted` when markers are evaluated for another operating system."""
    environment = {"platform_system": system, "sys_platform": system.lower()}
    requires = {canonicalize_name(p["name"]): p.get("requires_dist", []) for p in packages}
    seen: set[tuple[str, frozenset[str]]] = set()

    def visit(requirement: Requirement) -> None:
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, extras) in seen:
            return
        seen.add((name, extras))
        for dependency in map(Requirement, requires.get(name, [])):
            given = [environment | {"extra": extra} for extra in ("", *extras)]
            if dependency.marker is None or any(map(dependency.marker.evaluate, given)):
                visit(dependency)

    for text in wanted:
        visit(Requirement(text))
    return {name for name, _ in seen}
