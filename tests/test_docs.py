"""Every command that the README and the docs show can be parsed; links lead somewhere."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.config import read_config
from launch.compose import compose
from launch.sweep import read_sweep

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "optim" / "README.md"])
COMPOSED = ("launch", "plan")  # their arguments are overrides of a configuration


def shown_commands(page: Path) -> Iterator[str]:
    """Lines of code blocks that call make or a script; a line may show two make commands."""
    for block in re.findall(r"^```\w*\n(.*?)^```", page.read_text(), re.M | re.S):
        for line in block.splitlines():
            for part in re.split(r"\s{2,}(?=make )", line.removeprefix("$ ")):
                command = re.sub(r"\s+(#|> ).*", "", part).strip()
                if "<" in command or "…" in command:
                    continue  # a pattern, not a command
                if re.match(r"(\w+=\S+ )*(\.venv/bin/)?(make|python -m scripts\.)", command):
                    yield command


COMMANDS = sorted({(page.name, one) for page in PAGES for one in shown_commands(page)})


def script_calls(command: str) -> list[list[str]]:
    """The calls of scripts behind a command, each as [script, argument, …]."""
    parts = shlex.split(command)
    if "make" in parts:
        done = subprocess.run(
            ["make", "-n", *parts[parts.index("make") + 1 :]],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        lines = [line for line in done.stdout.splitlines() if "-m scripts." in line]
        calls = [shlex.split(line) for line in lines]
    else:
        calls = [parts]
    found = []
    for call in calls:
        at = next(i for i, part in enumerate(call) if part.startswith("scripts."))
        found.append([call[at].removeprefix("scripts."), *call[at + 1 :]])
    return [call for call in found if call[0] != "build_kernels"]


class Parsed(Exception):
    """Ends a script right after it has read its command line."""


def parse_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("parse_args", "parse_intermixed_args"):
        parse = getattr(argparse.ArgumentParser, name)

        def stop(parser: Any, arguments: Any = None, *, parse: Any = parse) -> None:
            raise Parsed(parse(parser, arguments))

        monkeypatch.setattr(argparse.ArgumentParser, name, stop)


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_shown_commands_can_be_parsed(page, command, monkeypatch):
    for script, *arguments in script_calls(command):
        main = importlib.import_module(f"scripts.{script}").main
        with monkeypatch.context() as patch:
            parse_only(patch)
            patch.setattr(sys, "argv", [script, *arguments])
            with pytest.raises(Parsed):
                main()
        overrides = [one for one in arguments if "=" in one and not one.startswith("-")]
        if script == "sweep" or "-m" in arguments:
            read_sweep([*overrides, "scale=mini"])
        elif script in COMPOSED:
            read_config(compose(overrides))


def test_there_are_commands_to_check():
    assert len(COMMANDS) > 30


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) < 150
