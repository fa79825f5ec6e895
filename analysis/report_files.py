"""The files of the report, and their texts: the same inputs give the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

from analysis.claims import StudyResult
from analysis.findings import study_results
from analysis.folders import ROOT
from analysis.pages import render_page, render_readme, render_report, replace_block
from analysis.paper import read_paper
from analysis.performance import render_performance, render_speed_lines
from analysis.report import build
from analysis.scaling import render_scaling
from analysis.study_page import PAGES, published_files
from analysis.trials import STUDY, TRIALS_FILE, TrialResult, read_trials
from engine.records import RunRecord, read_own_records, read_records
from tasks.files import write_atomically


def tracked_files(root: Path, current: AbstractSet[str]) -> dict[Path, str]:
    """What a checkout tracks, from published records only, by path.

    `current` are the fingerprints of the recipes as they are now.
    """
    results, readme = root / "results", root / "README.md"
    records, found = _read(results)
    report = build(records, current, found[STUDY][1], results)
    try:
        text = replace_block(readme.read_text(), "results", render_readme(report))
        text = replace_block(text, "performance", render_speed_lines(results / "bench"))
    except ValueError as problem:
        raise ValueError(f"{readme}: {problem}") from problem
    pages = [published_files(results, name, *read) for name, read in found.items()]
    return {path: text for page in pages for path, text in page.items()} | {
        results / "REPORT.md": render_report(report, results),
        results / "report.html": render_page(report, results, results),
        root / "docs" / "performance.md": render_performance(results / "bench"),
        root / "docs" / "scaling.md": render_scaling(results / "bench"),
        readme: text,
    }


def page_with_own_runs(
    root: Path, current: AbstractSet[str], own: Sequence[RunRecord], folder: Path
) -> str:
    """The HTML page with runs that are not published beside the others, for another folder."""
    results = root / "results"
    records, found = _read(results)
    report = build(records, current, found[STUDY][1], results, own)
    return render_page(report, folder, results)


def write_own_page(
    outputs: Path,
    fingerprints: Callable[[Iterable[tuple[str, str]]], set[str]],
    root: Path = ROOT,
    others: Sequence[RunRecord] = (),
) -> Path:
    """Writes `report.html` beside runs, with these and other runs marked as not published."""
    outputs = outputs.resolve()
    if outputs.is_relative_to(root / "results"):
        raise ValueError(f"{outputs}: results/ has published runs only")
    own = [*others, *read_own_records(outputs)]
    current = fingerprints(recipes_in([*read_records(root / "results" / "runs"), *own]))
    page = page_with_own_runs(root, current, own, outputs)
    write_atomically(outputs / "report.html", page.encode(), durable=False)
    return outputs / "report.html"


Study = tuple[list[TrialResult], dict[str, StudyResult]]  # what was run, and what it showed


def _read(results: Path) -> tuple[list[RunRecord], dict[str, Study]]:
    """Published records, and the studies by name."""
    records = read_records(results / "runs")
    by_id = {record.run_id: record for record in records}
    found: dict[str, Study] = {}
    for name in PAGES:
        trials = read_trials(results / "studies" / name / TRIALS_FILE, by_id)
        found[name] = trials, study_results(trials, results / "bench" / "memory.json")
    return records, found


def recipes_in(records: Iterable[RunRecord]) -> set[tuple[str, str]]:
    """Experiments of the paper's rows and the scales at which there are records of them."""
    rows = [row for table in read_paper() for row in table.rows]
    known = {row.experiment or row.rerun for row in rows}
    return {(r.experiment, r.scale) for r in records if r.experiment in known}
