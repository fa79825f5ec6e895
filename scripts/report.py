"""`python -m scripts.report [--check | --own]`: the paper's claims and numbers, and our runs.

Writes `results/REPORT.md`, `results/report.html`, `results/STUDY.md`, the study's charts and the
table in README.md from published records only: the same files give the same bytes. `--check`
writes nothing and names what is stale. `--own` writes `outputs/report.html` instead, which also
shows the runs below `outputs/`, marked as not published.

Exit status: 0 written, or up to date · 1 stale · 2 a file that can't be used.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from analysis.report_files import recipes_in, tracked_files, write_own_page
from engine.config import ConfigProblem
from engine.records import read_records
from launch.compose import ROOT
from launch.fingerprints import recipe_fingerprints
from tasks.files import write_atomically


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """From records to pages."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.report", description="Writes the report from the records of runs."
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="write nothing; 1 if anything is stale")
    mode.add_argument("--own", action="store_true", help="a page with the runs of this checkout")
    parser.add_argument("--outputs", type=Path, default=root / "outputs", help="of --own")
    options = parser.parse_args(arguments)
    try:
        if options.own:
            print(f"wrote {write_own_page(options.outputs, recipe_fingerprints, root)}")
            return 0
        published = read_records(root / "results" / "runs")
        files = tracked_files(root, recipe_fingerprints(recipes_in(published)))
        stale = {path: text for path, text in files.items() if _read(path) != text}
        for path, text in stale.items():
            name = path.relative_to(root)
            if options.check:
                print(f"{name} is stale: run make report", file=sys.stderr)
            else:
                write_atomically(path, text.encode(), durable=False)
                print(f"wrote {name}")
    except (ConfigProblem, ValueError, OSError) as problem:
        print(problem, file=sys.stderr)
        return 2
    if not stale:
        print("the report is up to date")
    return 1 if stale and options.check else 0


def _read(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


if __name__ == "__main__":
    sys.exit(main())
