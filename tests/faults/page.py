"""The figures of results/bench/faults.json in docs/reliability.md."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analysis.pages import replace_block
from engine.records import read_json
from tasks.files import write_atomically

ROOT = Path(__file__).parents[2]
RECORD, PAGE = ROOT / "results" / "bench" / "faults.json", ROOT / "docs" / "reliability.md"


def render(record: Mapping[str, Mapping[str, Any]]) -> str:
    """A table of all faults, and what was not survived."""
    if not record:
        return "Not run yet."
    tried = sum(one["tried"] for one in record.values())
    survived = sum(one["survived"] for one in record.values())
    minutes = sum(one["seconds"] for one in record.values()) / 60
    lines = [
        f"{survived:,} of {tried:,} attacks of {len(record)} kinds survived, in {minutes:.0f} "
        f"minutes ({_sources(record)}).",
        "",
        "| fault | surviving means | tried | survived |",
        "|---|---|--:|--:|",
    ]
    for name, one in record.items():
        counts = f"{one['tried']} | {one['survived']}"
        if one["skipped"]:
            counts = f"not tried: {_cell(one['skipped'])} | –"
        lines.append(f"| `{name}`: {_cell(one['what'])} | {_cell(one['promise'])} | {counts} |")
    problems = {name: one["problems"] for name, one in record.items() if one["problems"]}
    if problems:
        lines += ["", "Not survived:", ""]
        for name, found in problems.items():
            lines += [f"- `{name}`: {_cell(problem)}" for problem in found]
    return "\n".join(lines)


def _sources(record: Mapping[str, Mapping[str, Any]]) -> str:
    """The commits, days and machines of the figures."""
    found = set()
    for one in record.values():
        commit = str(one["commit"])[:12] + (" with changes" if one["dirty"] else "")
        machine = one["machine"].get("name") or one["machine"]["names"][0]
        found.add(f"commit {commit}, {one['date']}, {machine}")
    return "; ".join(sorted(found))


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def with_figures(page: str, record: Mapping[str, Mapping[str, Any]]) -> str:
    """The page with the record's figures between its markers."""
    return replace_block(page, "results", render(record))


def read_record() -> dict[str, Any]:
    """The figures of all faults that were tried."""
    return read_json(RECORD) if RECORD.exists() else {}


def write_page(record: Mapping[str, Mapping[str, Any]]) -> None:
    write_atomically(PAGE, with_figures(PAGE.read_text(), record).encode())
