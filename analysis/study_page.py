"""A study's page: what it asked, how it was run and what came out, claim by claim.

Numbers, verdicts and rules come from trials and records; `remarks.yaml` beside the trials has what
people saw in the curves, in words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from analysis.charts_draw import draw_panel
from analysis.claims import EXPLANATIONS, ClaimProblem, StudyResult, read_claims
from analysis.findings import study_results
from analysis.paper import OPTIMIZERS, tasks_besides
from analysis.questions import data_sets
from analysis.tables import headline_numbers, leads_by_passes, numbers_table
from analysis.templating import Markdown, render_markdown
from analysis.trials import (
    DECAY,
    DIVERGED,
    HEADLINE,
    RATES,
    STUDY,
    STUDY_SHORT,
    TRIALS_FILE,
    TrialResult,
    read_trials,
    tune,
)
from engine.records import RunRecord
from tasks.files import write_atomically

# By the split that tuning sees: the one that it does not, where the data has one.
TEST_SPLITS = {"val": "test", "valid": "test", "dev-clean": "test-clean"}
OUR_OWN = "An explanation of ours, not a claim of the paper"
# Published pages, below results/.
PAGES = {STUDY: "STUDY.md", STUDY_SHORT: "STUDY-short.md"}


@dataclass(frozen=True)
class Remarks:
    """What the numbers do not show by themselves."""

    about: str = ""
    studies: dict[str, str] = field(default_factory=dict)  # by name
    limits: list[str] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)  # to the plan, after it was written down


def study_files(
    page: Path,
    folder: Path,
    trials: Sequence[TrialResult],
    studies: Mapping[str, StudyResult],
    remarks: Remarks,
    *,
    published: str = "",
) -> dict[Path, str]:
    """The page, and below `folder` the pictures that it shows.

    `published` is the name of a published study; the default: a user's own.
    """
    pictures = {
        f"{study.study}.svg": draw_panel(study.curves) for study in studies.values() if study.curves
    }
    links = folder.relative_to(page.parent)
    text = render_study(trials, studies, remarks, links, published=published)
    return {folder / name: picture for name, picture in pictures.items()} | {page: text}


def published_files(
    results: Path, name: str, trials: Sequence[TrialResult], studies: Mapping[str, StudyResult]
) -> dict[Path, str]:
    """Those of a published study."""
    folder = results / "studies" / name
    remarks = read_remarks(folder / "remarks.yaml")
    return study_files(results / PAGES[name], folder, trials, studies, remarks, published=name)


def write_study(folder: Path, records: Iterable[RunRecord], memory: Path) -> Path:
    """The page of a user's own study, from the trials in its folder."""
    trials = read_trials(folder / TRIALS_FILE, {record.run_id: record for record in records})
    studies = study_results(trials, memory)
    page = folder / "STUDY.md"
    for path, text in study_files(page, folder / "curves", trials, studies, Remarks()).items():
        write_atomically(path, text.encode(), durable=False)
    return page


def render_study(
    trials: Sequence[TrialResult],
    studies: Mapping[str, StudyResult],
    remarks: Remarks,
    pictures: Path,
    *,
    published: str = "",
) -> str:
    """The page; short where nothing was run."""
    claims = read_claims()
    sections = [
        _section(claim.claim, claim.where, studies[claim.study or ""], pictures)
        for claim in claims
        if claim.study in studies
    ]
    sections += [
        _section(heading, OUR_OWN, studies[name], pictures)
        for name, heading in EXPLANATIONS.items()
        if name in studies
    ]
    verdicts = [
        [
            claim.claim,
            Markdown(f"**{claim.verdict(studies)}**"),
            studies[claim.study or ""].summary if claim.study in studies else "",
        ]
        for claim in claims
    ]
    return render_markdown(
        "study.md.j2",
        published=published,
        remarks=remarks,
        trials=trials,
        studies=studies,
        passes_picture=(pictures / "passes.svg").as_posix(),
        headline_numbers=headline_numbers,
        absent=tasks_besides(_tasks(trials)),
        verdicts=verdicts,
        how=_how(trials),
        data_rows=_data_rows(trials),
        tuning_rows=_tuning_rows(trials),
        sections=sections,
    )


def read_remarks(path: Path) -> Remarks:
    """Empty where there is no file."""
    if not path.exists():
        return Remarks()
    try:
        return Remarks(**yaml.safe_load(path.read_text()))
    except (TypeError, yaml.YAMLError) as problem:
        raise ClaimProblem(f"{path}: {problem}") from problem


def _records(trials: Iterable[TrialResult]) -> list[RunRecord]:
    """Each once."""
    return [*{one.run_id: one.record for one in trials if one.record is not None}.values()]


def _tasks(trials: Iterable[TrialResult]) -> set[str]:
    """Of the headline's runs."""
    return {record.task for record in _records(t for t in trials if t.trial.study == HEADLINE)}


def _how(trials: Sequence[TrialResult]) -> dict[str, Any]:
    records = _records(trials)
    return {
        "runs": len({one.run_id for one in trials}),
        "diverged": len({one.run_id for one in trials if one.status == DIVERGED}),
        "hours": sum(record.wall_s for record in records) / 3600,
        "machines": sorted({record.hardware for record in records}),
        "versions": sorted({record.torch_version for record in records}),
        "threads": sorted({str(record.config["hardware"]["threads"]) for record in records}),
        "scales": sorted({record.scale for record in records}),
    }


def _data_rows(trials: Sequence[TrialResult]) -> list[list[str]]:
    rows = []
    for data in data_sets(trials):
        of_data = [one for one in trials if one.trial.data == data]
        own = _records(one for one in of_data if one.trial.study in (HEADLINE, RATES))
        if not own:
            continue
        plan = own[0].plan
        rows.append(
            [
                data,
                own[0].task,
                f"{own[0].parameters:,}",
                f"{plan['steps']:,} × {plan['global_batch']:,} {plan['unit']}s",
                f"{plan['steps'] / plan['steps_per_epoch']:.3g}",
                f"{fmean(record.wall_s for record in own) / 60:.1f}",
                str(len({one.run_id for one in of_data})),
            ]
        )
    return rows


def _tuning_rows(trials: Sequence[TrialResult]) -> list[list[str]]:
    rows = []
    for (data, optimizer), tuned in tune(trials).items():
        own = [one for one in trials if (one.trial.data, one.trial.optimizer) == (data, optimizer)]
        tried = [one for one in own if one.trial.study in (RATES, DECAY)]
        final = [one for one in own if one.trial.study == HEADLINE and one.value is not None]
        metric = tried[0].trial.metric
        split, _, name = metric.partition("/")
        unseen = [one.final(f"{TEST_SPLITS.get(split)}/{name}") for one in final]
        rates = {one.trial.at for one in tried if one.trial.study == RATES}
        decays = {one.option("weight_decay") for one in tried}
        rows.append(
            [
                data,
                OPTIMIZERS[optimizer],
                _among(tuned.lr, rates),
                _among(tuned.weight_decay, decays),
                str(len(tried)),
                metric,
                _values(one.final(metric) for one in final) or "not run",
                _values(unseen),
            ]
        )
    return rows


def _values(values: Iterable[float | None]) -> str:
    return ", ".join(f"{value:.2f}" for value in values if value is not None)


def _among(value: float | None, tried: Iterable[float | None]) -> str:
    """A value, marked where a better one may lie beyond those that were tried."""
    known = sorted(one for one in tried if one is not None)
    if value is None:
        return ""
    edge = {known[0]: " (lowest tried)", known[-1]: " (highest tried)"} if len(known) > 1 else {}
    return f"{value:g}{edge.get(value, '')}"


def _section(heading: str, where: str, study: StudyResult, pictures: Path) -> dict[str, Any]:
    picture = (pictures / f"{study.study}.svg").as_posix() if study.curves else ""
    table = (leads_by_passes if study.study == "passes" else numbers_table)(study.numbers)
    return {"heading": heading, "where": where, "study": study, "table": table, "picture": picture}
