"""The files of configs/ and of a user's own folder (--config-dir): groups, options, headers."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parent.parent
CONFIGS = ROOT / "configs"
INTERNAL = ("fit", "local", "shrink", "sweep")  # groups that follow from others, or are no run's
SHOWN = 3  # names of each folder in a message


def folders_of(own: Sequence[Path] = ()) -> list[Path]:
    """Where configs are looked for: configs/ first, then the user's own folders."""
    return [CONFIGS, *own]


def is_group(name: str, own: Sequence[Path] = ()) -> bool:
    """Whether `name=…` chooses a file."""
    return any((folder / name).is_dir() for folder in folders_of(own)) and name not in ("", ".")


def groups() -> list[str]:
    """The config groups that a command line chooses from."""
    found = {path.name for path in CONFIGS.iterdir() if path.is_dir()}
    return sorted(name for name in found - {*INTERNAL} if options_of(name))


def options_of(group: str, own: Sequence[Path] = ()) -> list[str]:
    """The files of a config group."""
    names = set()
    for folder in (folder / group for folder in folders_of(own)):
        names |= {p.relative_to(folder).with_suffix("").as_posix() for p in folder.rglob("*.yaml")}
    return sorted(name for name in names if not name.endswith("base"))


def header_of(text: str) -> str:
    """The comment that an experiment's file begins with; empty for one that has none."""
    comments = [x for x in text.splitlines() if x.startswith("#") and "@package" not in x]
    return "\n".join(line.removeprefix("#").strip() for line in comments)


def text_of(name: str, own: Sequence[Path] = ()) -> str:
    """A config file's text, by its name in the tree; empty if there is none."""
    found = [path for folder in folders_of(own) if (path := folder / f"{name}.yaml").is_file()]
    return found[0].read_text(encoding="utf-8", errors="replace") if found else ""


def folder_problems(own: Sequence[Path]) -> list[str]:
    """What is wrong with the user's folders."""
    problems = []
    for folder in own:
        if not folder.is_dir():
            problems.append(f"--config-dir {folder} is not a folder")
            continue
        for path in sorted(folder.rglob("*.yaml")):
            name = path.relative_to(folder)
            if (CONFIGS / name).exists():
                problems.append(f"{path} has the name of configs/{name}: give it another one")
            try:
                path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                problems.append(f"{path} must be UTF-8")
    return problems


def nearest_option(name: str, known: Sequence[str]) -> str:
    """A hint to the option that is meant, or to all of them."""
    if close := difflib.get_close_matches(name, known, n=1):
        return f"; did you mean {close[0]!r}?"
    return f"; {describe_options(known)}"


def describe_options(names: Sequence[str]) -> str:
    """Options in one line; of each folder of many the number and the first ones."""
    if len(names) <= 12:
        return f"known are {', '.join(names)}"
    parts = []
    for folder, members in groupby(names, key=lambda name: name.partition("/")[0]):
        own = [name.partition("/")[2] or name for name in members]
        own = [name for name in own if "/" not in name] or own
        shown = ", ".join(own[:SHOWN]) + (", …" if own[SHOWN:] else "")
        parts.append(f"{folder}/ ({len(own)}: {shown})")
    return f"there are {', '.join(parts)}; --help lists all"
