"""`results/STUDY.md`: what the study asked, how it was run and what came out, claim by claim.

Numbers, verdicts and rules come from the files; `studies/remarks.yaml` has what people saw in the
curves, in words.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import cleandoc
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from results.claims import EXPLANATIONS, Claim, ClaimProblem, Study, read_claims
from results.findings import FINDINGS
from results.markdown import grid, numbers_grid
from results.names import OPTIMIZERS
from results.trials import DECAY, DIVERGED, HEADLINE, RATES, Outcome, read_trials, tune

OTHER_RULES = {
    "memory": "Holds if NovoGrad's state is half of Adam's and its peak lower, for all four models."
}


@dataclass(frozen=True)
class Remarks:
    """What the numbers do not say themselves."""

    about: str = ""
    studies: dict[str, str] = field(default_factory=dict)  # by name
    limits: list[str] = field(default_factory=list)


def render_study(results: Path, studies: Mapping[str, Study]) -> str:
    """The page, from the files below a folder; short where nothing was run."""
    trials = read_trials(results / "studies" / "trials.csv")
    remarks = read_remarks(results / "studies" / "remarks.yaml")
    head = [
        "# The paper's claims on small data",
        "Written by `make report` from `studies/` and `runs/`; `make study` runs it all again.",
        remarks.about.strip(),
    ]
    if not trials:
        return _text([*head, "Not run."])
    records = _records(results / "runs", trials)
    parts = [
        *head,
        "## What came out",
        "Verdicts follow from the rules below; one data set alone decides nothing.",
        _verdicts(read_claims(), studies),
        "## How it was run",
        _how(trials, records),
        _data_table(trials, records),
        "## What tuning found",
        "The best of each optimizer's own trials by the metric on validation data, all with the "
        "first seed. Everything below starts from these.",
        _tuning(trials, records),
    ]
    for claim in read_claims():
        study = studies.get(claim.study or "")
        if study is not None:
            parts += _section(claim.claim, claim.where, study, remarks)
    for name, heading in EXPLANATIONS.items():
        if name in studies:
            where = "An explanation of ours, not a claim of the paper"
            parts += _section(heading, where, studies[name], remarks)
    if remarks.limits:
        parts += ["## Limits", "\n".join(f"- {' '.join(line.split())}" for line in remarks.limits)]
    return _text(parts)


def picture_of(study: Study) -> str:
    """Where its curves are drawn, below results/."""
    return f"studies/{study.study}.svg"


def read_remarks(path: Path) -> Remarks:
    """Empty where there is no file."""
    if not path.exists():
        return Remarks()
    try:
        return Remarks(**yaml.safe_load(path.read_text()))
    except (TypeError, yaml.YAMLError) as problem:
        raise ClaimProblem(f"{path}: {problem}") from problem


def _text(parts: Sequence[str]) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"


def _records(runs: Path, trials: Sequence[Outcome]) -> dict[str, dict[str, Any]]:
    """Of the study's runs, by their ids."""
    wanted = {trial.run_id.rpartition("/")[2] for trial in trials}
    paths = [path for path in sorted(runs.rglob("*.json")) if path.stem in wanted]
    read = [json.loads(path.read_text()) for path in paths]
    return {record["run_id"]: record for record in read}


def _verdicts(claims: Sequence[Claim], studies: Mapping[str, Study]) -> str:
    lines = []
    for claim in claims:
        study = studies.get(claim.study or "")
        verdict = claim.verdict(studies)
        lines.append([claim.claim, f"**{verdict}**", study.summary if study else ""])
    return grid(["claim", "verdict", "in short"], lines)


def _how(trials: Sequence[Outcome], records: Mapping[str, Mapping[str, Any]]) -> str:
    runs = {trial.run_id for trial in trials}
    diverged = {trial.run_id for trial in trials if trial.status == DIVERGED}
    hours = sum(float(record["wall_s"]) for record in records.values()) / 3600
    environments = [record["environment"] for record in records.values()]
    versions = sorted({environment["versions"]["torch"] for environment in environments})
    threads = sorted({record["config"]["hardware"]["threads"] for record in records.values()})
    return (
        f"{len(runs)} runs, {hours:.1f} hours of them in all, on CPUs with torch "
        f"{', '.join(versions)} and {' or '.join(map(str, threads))} thread each; {len(diverged)} "
        "diverged, which counts as a result. Every run is a launch of the suite at `scale=mini`; "
        "its record has its configuration."
    )


def _data_table(trials: Sequence[Outcome], records: Mapping[str, Mapping[str, Any]]) -> str:
    lines = []
    for data in dict.fromkeys(trial.data for trial in trials):
        own = [
            records[trial.run_id]
            for trial in trials
            if trial.data == data and trial.study in (HEADLINE, RATES) and trial.run_id in records
        ]
        if not own:
            continue
        plan = own[0]["plan"]
        minutes = fmean(float(record["wall_s"]) for record in own) / 60
        lines.append(
            [
                data,
                str(own[0]["config"]["task"]["name"]),
                f"{own[0]['parameters']:,}",
                f"{plan['steps']:,} × {plan['global_batch']:,} {plan['unit']}s",
                f"{plan['steps'] / plan['steps_per_epoch']:.2g}",
                f"{minutes:.1f}",
                str(len({t.run_id for t in trials if t.data == data})),
            ]
        )
    head = ["data", "code of", "parameters", "steps × batch", "epochs", "minutes", "runs"]
    return grid(head, lines)


def _tuning(trials: Sequence[Outcome], records: Mapping[str, Mapping[str, Any]]) -> str:
    lines = []
    for (data, optimizer), tuned in tune(trials).items():
        own = [trial for trial in trials if (trial.data, trial.optimizer) == (data, optimizer)]
        tried = [trial for trial in own if trial.study in (RATES, DECAY)]
        final = [trial for trial in own if trial.study == HEADLINE and trial.value is not None]
        on_test = [
            value
            for trial in final
            if (value := _on_test(records.get(trial.run_id, {}), trial.metric)) is not None
        ]
        lines.append(
            [
                data,
                OPTIMIZERS[optimizer],
                _among(tuned.lr, {trial.lr for trial in tried}),
                _among(tuned.weight_decay, {trial.weight_decay for trial in tried}),
                str(tuned.trials),
                own[0].metric,
                ", ".join(f"{trial.value:.2f}" for trial in final) or "not run",
                ", ".join(f"{value:.2f}" for value in on_test),
            ]
        )
    head = [
        "data",
        "optimizer",
        "learning rate",
        "weight decay",
        "trials",
        "metric",
        "of each seed",
        "on test data",
    ]
    return grid(head, lines)


def _among(value: float | None, tried: Iterable[float | None]) -> str:
    """A value, and whether a better one may lie beyond those that were tried."""
    known = sorted(one for one in tried if one is not None)
    if value is None:
        return ""
    edge = {known[0]: " (lowest tried)", known[-1]: " (highest tried)"} if len(known) > 1 else {}
    return f"{value:g}{edge.get(value, '')}"


def _on_test(record: Mapping[str, Any], metric: str) -> float | None:
    """The metric on the split that tuning does not see; none where the data has no such split."""
    split, _, name = metric.partition("/")
    test = {"valid": "test", "dev-clean": "test-clean"}.get(split)
    found = record.get("final", {}).get(f"{test}/{name}")
    return None if found is None else float(found)


def _section(heading: str, where: str, study: Study, remarks: Remarks) -> list[str]:
    found = FINDINGS.get(study.study)
    rule = cleandoc(found.__doc__ or "") if found else OTHER_RULES[study.study]
    return [
        f"## {heading}",
        f"{where}. **{study.verdict[0].upper()}{study.verdict[1:]}.**",
        " ".join(rule.split()),
        study.summary,
        grid(*numbers_grid(study.numbers)),
        f"![Curves]({picture_of(study)})" if study.curves else "",
        " ".join(remarks.studies.get(study.study, "").split()),
    ]
