"""`python -m scripts.report [--check]`: what the paper claims, what was run, how they compare.

Writes `results/REPORT.md`, `results/report.html`, `results/STUDY.md` and the table in README.md
from the records in `results/runs/`, the trials in `results/studies/` and the paper's numbers, and
what the study found into `results/studies/*.json`, with its curves in `*.svg`. The same files give
the same bytes. `--check` writes nothing and names what is stale.

Exit status: 0 written, or up to date · 1 stale · 2 a file that can't be used.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from engine.config import NOT_SCIENCE, ConfigProblem, read_config
from engine.provenance import fingerprint
from engine.record import write_atomically
from results.claims import parse_study, read_studies
from results.findings import all_findings
from results.markdown import render_readme, render_report, replace_block
from results.page import render_page
from results.panel import draw_panel
from results.records import Run, read_runs
from results.report import build
from results.schema import read_paper
from results.study_page import picture_of, render_study
from scripts.launch import compose
from scripts.supervise import ROOT


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """From records to pages."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.report", description="Writes the report from the records of runs."
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; 1 if anything is stale"
    )
    options = parser.parse_args(arguments)
    try:
        files = render(root)
    except (ConfigProblem, ValueError, OSError) as problem:
        print(problem, file=sys.stderr)
        return 2
    stale = [path for path, text in files.items() if _read(path) != text]
    for path in stale:
        name = path.relative_to(root)
        if options.check:
            print(f"{name} is stale: run make report", file=sys.stderr)
        else:
            write_atomically(path, files[path].encode(), durable=False)
            print(f"wrote {name}")
    if not stale:
        print("the report is up to date")
    return 1 if stale and options.check else 0


def render(root: Path) -> dict[Path, str]:
    """The files that there should be, and their texts."""
    results, readme = root / "results", root / "README.md"
    runs = read_runs(results / "runs")
    folder = results / "studies"
    found = {folder / f"{name}.json": text for name, text in all_findings(results).items()}
    studies = read_studies(folder) | {p.stem: parse_study(text, p) for p, text in found.items()}
    report = build(runs, current_fingerprints(runs), studies, results)
    try:
        with_table = replace_block(readme.read_text(), render_readme(report))
    except ValueError as problem:
        raise ValueError(f"{readme}: {problem}") from problem
    drawn = {
        results / picture_of(study): draw_panel(study.curves)
        for study in studies.values()
        if study.curves
    }
    return (
        found
        | drawn
        | {
            results / "REPORT.md": render_report(report),
            results / "report.html": render_page(report),
            results / "STUDY.md": render_study(results, studies),
            readme: with_table,
        }
    )


def current_fingerprints(runs: Iterable[Run]) -> set[str]:
    """Of the rows' experiments that have records, as they are configured now."""
    rows = [row for table in read_paper() for row in table.rows]
    known = {row.experiment or row.rerun for row in rows}
    wanted = sorted({(run.experiment, run.scale) for run in runs if run.experiment in known})
    return {_fingerprint(experiment, scale) for experiment, scale in wanted}


def _fingerprint(experiment: str, scale: str) -> str:
    """That of a launch without further words; needs neither data nor a device."""
    config = read_config(compose([f"experiment={experiment}", f"scale={scale}"]))
    return fingerprint(asdict(config), (*NOT_SCIENCE, "seed"))


def _read(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


if __name__ == "__main__":
    sys.exit(main())
