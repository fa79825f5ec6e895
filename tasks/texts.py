"""Texts that a user gives a model: files, or ("-") the standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

from tasks.base import BadInput, Input


def name_of(source: str) -> str:
    """For messages."""
    return "the standard input" if source == "-" else source


def read_lines(source: str) -> Iterator[Input]:
    """Each line as soon as it is there; one BadInput for what can't be read or has no lines."""
    name, number = name_of(source), 0
    try:
        with nullcontext(sys.stdin.buffer) if source == "-" else Path(source).open("rb") as file:
            for number, line in enumerate(iter(file.readline, b""), 1):
                place = f"{name}, line {number}"
                try:
                    yield Input(place, line.decode().removesuffix("\n").removesuffix("\r"))
                except UnicodeDecodeError:
                    yield Input(place, BadInput("is not UTF-8"))
    except OSError as error:
        yield Input(name, BadInput(f"can't be read: {error.strerror}"))
        return
    if not number:
        yield Input(name, BadInput("is empty"))


def read_text(source: str) -> Input:
    """All of it."""
    lines = []
    for name, value in read_lines(source):
        if isinstance(value, BadInput):
            return Input(name, value)
        lines.append(value)
    if not any(line.strip() for line in lines):
        return Input(name_of(source), BadInput("is empty"))
    return Input(name_of(source), "\n".join(lines))
