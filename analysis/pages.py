"""The report's pages and the files that a checkout tracks: the same inputs give the same bytes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from urllib.parse import quote

from analysis.claims import FAILS, HOLDS, TESTED, UNDECIDED, StudyResult
from analysis.findings import study_results
from analysis.folders import RESULTS, ROOT
from analysis.paper import read_paper
from analysis.performance import render_performance, render_speed_lines
from analysis.report import build
from analysis.report_views import RECORD_HEAD, SCALE_NOTE, Report, record_cells
from analysis.scaling import render_scaling
from analysis.study_page import PAGES, published_files
from analysis.summaries import NOT_RUN
from analysis.tables import headline_numbers, leads_by_passes, numbers_table
from analysis.templating import Markdown, render_html, render_markdown
from analysis.trials import STUDY, TRIALS_FILE, TrialResult, read_trials
from analysis.verdicts import DIFFERS, REPRODUCED
from engine.records import RunRecord, read_own_records, read_records
from tasks.files import write_atomically

# The class of a verdict's badge.
LOOKS = {REPRODUCED: "good", TESTED: "good", HOLDS: "good", DIFFERS: "off", FAILS: "off"}
LOOKS |= {UNDECIDED: "open", NOT_RUN: "none"}
COMMON = {
    "scale_note": SCALE_NOTE,
    "not_run": NOT_RUN,
    "numbers_table": numbers_table,
    "headline_numbers": headline_numbers,
    "leads_by_passes": leads_by_passes,
    "record_head": list(RECORD_HEAD),
    "record_cells": record_cells,
}
# The fingerprints that recipes, each an experiment at a scale, have now.
Fingerprints = Callable[[Iterable[tuple[str, str]]], set[str]]
Study = tuple[list[TrialResult], dict[str, StudyResult]]  # what was run, and what it showed


def tracked_files(root: Path, fingerprints: Fingerprints) -> dict[Path, str]:
    """What a checkout tracks, from published records only, by path."""
    results, readme = root / "results", root / "README.md"
    records, studies = _read(results)
    report = build(records, fingerprints(recipes_in(records)), studies[STUDY][1], results)
    try:
        text = replace_block(readme.read_text(), "results", render_readme(report))
        text = replace_block(text, "performance", render_speed_lines(results / "bench"))
    except ValueError as problem:
        raise ValueError(f"{readme}: {problem}") from problem
    pages = [published_files(results, name, *found) for name, found in studies.items()]
    return {path: text for page in pages for path, text in page.items()} | {
        results / "REPORT.md": render_report(report, results),
        results / "report.html": render_page(report, results, results),
        root / "docs" / "performance.md": render_performance(results / "bench"),
        root / "docs" / "scaling.md": render_scaling(results / "bench"),
        readme: text,
    }


def write_own_page(
    outputs: Path,
    fingerprints: Fingerprints,
    root: Path = ROOT,
    others: Sequence[RunRecord] = (),
) -> Path:
    """Writes `report.html` beside runs, with these and other runs marked as not published."""
    outputs, results = outputs.resolve(), root / "results"
    if outputs.is_relative_to(results):
        raise ValueError(f"{outputs}: results/ has published runs only")
    own = [*others, *read_own_records(outputs)]
    records, studies = _read(results)
    current = fingerprints(recipes_in([*records, *own]))
    page = render_page(build(records, current, studies[STUDY][1], results, own), outputs, results)
    write_atomically(outputs / "report.html", page.encode(), durable=False)
    return outputs / "report.html"


def _read(results: Path) -> tuple[list[RunRecord], dict[str, Study]]:
    """Published records, and the studies by name."""
    records = read_records(results / "runs")
    by_id = {record.run_id: record for record in records}
    studies: dict[str, Study] = {}
    for name in PAGES:
        trials = read_trials(results / "studies" / name / TRIALS_FILE, by_id)
        studies[name] = trials, study_results(trials, results / "bench" / "memory.json")
    return records, studies


def recipes_in(records: Iterable[RunRecord]) -> set[tuple[str, str]]:
    """Experiments of the paper's rows and the scales at which there are records of them."""
    rows = [row for table in read_paper() for row in table.rows]
    known = {row.experiment or row.rerun for row in rows}
    return {(r.experiment, r.scale) for r in records if r.experiment in known}


def render_report(report: Report, results: Path = RESULTS) -> str:
    """`REPORT.md`: everything but the charts."""

    def link(record: RunRecord) -> Markdown:
        return Markdown(address(record, results))

    return render_markdown("report.md.j2", report=report, link=link, **COMMON)


def render_readme(report: Report) -> str:
    """The block of the README: every optimizer's first row of each task's first table."""
    return render_markdown("readme.md.j2", report=report, **COMMON).rstrip("\n")


def render_page(report: Report, folder: Path = RESULTS, results: Path = RESULTS) -> str:
    """`report.html`, self-contained, to be written to a folder."""
    return render_html(
        "report.html.j2",
        report=report,
        link=lambda record: address(record, folder),
        root=_prefix(results.parent, folder),
        data=_prefix(results, folder),
        looks=LOOKS,
        **COMMON,
    )


def markers(name: str) -> tuple[str, str]:
    """What stands before and after a rendered block of the README."""
    return f"<!-- {name}:begin -->", f"<!-- {name}:end -->"


def replace_block(text: str, name: str, block: str) -> str:
    """The text with a block between its markers; ValueError where these are not there once."""
    begin, end = markers(name)
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"needs {begin} and {end}, once each and in this order")
    before, rest = text.split(begin)
    return f"{before}{begin}\n{block}\n{end}{rest.split(end)[1]}"


def address(record: RunRecord, folder: Path) -> str:
    """Of a record's file, relative to a folder; of a run of W&B, its page."""
    return record.url if record.path is None else quote(os.path.relpath(record.path, folder))


def _prefix(path: Path, folder: Path) -> str:
    """Before addresses below a path: "", or something that ends with a slash."""
    found = os.path.relpath(path, folder)
    return "" if found == "." else f"{quote(found)}/"
