"""The figures of results/bench/faults.json in docs/reliability.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.pages import replace_block
from analysis.templating import Markdown, escape, markdown_table
from engine.records import read_json
from tasks.files import write_atomically
from tests.faults.matrix import FAULTS

ROOT = Path(__file__).parents[2]
RECORD, PAGE = ROOT / "results" / "bench" / "faults.json", ROOT / "docs" / "reliability.md"
HEAD = ("fault", "surviving means", "tried", "survived")


def render(record: Mapping[str, Mapping[str, Any]]) -> str:
    """A table of all faults, those that were not tried too, and what was not survived."""
    if not record:
        return "Not run yet."
    missing = [name for name in FAULTS if name not in record]
    not_run = f" Not run yet: {', '.join(f'`{name}`' for name in missing)}." if missing else ""
    tried = sum(one["tried"] for one in record.values())
    survived = sum(one["survived"] for one in record.values())
    minutes = sum(one["seconds"] for one in record.values()) / 60
    parts = [
        f"{survived:,} of {tried:,} attacks of {len(record)} kinds survived; one after another "
        f"they take {minutes:.0f} minutes ({escape(_sources(record))}).{not_run}",
        markdown_table(HEAD, (_row(name, one) for name, one in record.items())),
    ]
    lines = [
        f"- `{name}`: {escape(problem)}"
        for name, one in record.items()
        for problem in one["problems"]
    ]
    return "\n\n".join(parts + (["Not survived:", "\n".join(lines)] if lines else []))


def _row(name: str, one: Mapping[str, Any]) -> Sequence[Any]:
    skipped = f"not tried: {one['skipped']}" if one["skipped"] else ""
    counts = (skipped, "–") if skipped else (one["tried"], one["survived"])
    return (Markdown(f"`{name}`: {escape(one['what'])}"), one["promise"], *counts)


def _sources(record: Mapping[str, Mapping[str, Any]]) -> str:
    """The commits, days and machines of the figures."""
    found = set()
    for one in record.values():
        commit = str(one["commit"])[:12] + (" with changes" if one["dirty"] else "")
        machine = one["machine"].get("name") or one["machine"]["names"][0]
        found.add(f"commit {commit}, {one['date']}, {machine}")
    return "; ".join(sorted(found))


def with_figures(page: str, record: Mapping[str, Mapping[str, Any]]) -> str:
    """The page with the record's figures between its markers."""
    return replace_block(page, "results", render(record))


def read_record() -> dict[str, Any]:
    """The figures of all faults that were tried."""
    return read_json(RECORD) if RECORD.exists() else {}


def write_page(record: Mapping[str, Mapping[str, Any]]) -> None:
    write_atomically(PAGE, with_figures(PAGE.read_text(), record).encode())
