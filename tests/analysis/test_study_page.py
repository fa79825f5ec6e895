"""STUDY.md: only what trials, records and remarks have."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.claims import ClaimProblem
from analysis.findings import study_results
from analysis.folders import RESULTS
from analysis.study_page import Remarks, read_remarks, render_study, write_study
from analysis.trials import HEADLINE, TrialResult, read_trials, to_csv
from engine.records import read_records
from tests.analysis.fake_trials import along, result

NOWHERE = Path("nowhere")


def page_of(trials: list[TrialResult], remarks: Remarks | None = None) -> str:
    results = study_results(trials, NOWHERE)
    return render_study(trials, results, remarks or Remarks(), Path("curves"))


@pytest.fixture
def trials() -> list[TrialResult]:
    """Two optimizers on a data set: three rates each, one of which diverged, and three seeds."""
    made = []
    for name in ("sgd", "novograd"):
        given: dict[str, Any] = {"optimizer": name, "run_id": f"imagenet/{name}_100ep-0-s0"}
        made += [result(v, **given, at=x) for x, v in ((0.1, 40.0), (1.0, 50.0), (10.0, None))]
        made += [result(50.0 + s, **given, study=HEADLINE, seed=s, at=0.0) for s in range(3)]
    return made


def test_nothing_was_run():
    assert page_of([]).endswith("\n\nNot run.\n")


def test_tuning_verdicts_and_rules(trials: list[TrialResult]):
    remarks = Remarks("Why.", {HEADLINE: "Seen in\nthe `curves`."}, ["Small."])
    page = page_of(trials, remarks)
    assert "| one | NovoGrad | 1 | 0.001 | 3 | val/top1 | 50.00, 51.00, 52.00 |  |" in page
    assert "2 runs, 0.0 hours" in page
    assert "| one | imagenet | 12,345 | 9 × 64 images | 3 | 1.0 | 2 |" in page
    assert "On par or better on 1 of 1 data sets" in page
    assert "No results yet: `librispeech`, `wmt14`, `wikitext103`." in page
    assert "**Undecided.**" in page  # by one data set
    assert "the interval lies below 0, and the mean below -1 %" in page
    assert "Seen in the `curves`." in page
    assert page.endswith("## Limits\n\n- Small.\n")
    assert "| **not run** |  |" in page  # claims without results
    assert "\n\n\n" not in page


def test_an_explanation_comes_after_the_claims():
    made = [result(49.0, data=data, study="tensor_sizes") for data in ("one", "two")]
    made += [
        result(value, data=data, study=HEADLINE, optimizer=name)
        for data in ("one", "two")
        for name, value in (("sgd", 50.0), ("novograd", 40.0))
    ]
    page = page_of(made)
    assert page.index("## Is NovoGrad behind here because") > page.index("## In all four tasks")
    where = "An explanation of ours, not a claim of the paper; study `tensor_sizes`."
    assert f"{where} **Holds at this scale.**" in page
    assert "| 40 | 49 | 50 | 90 |" in page


def test_the_page_begins_with_the_headline_and_the_figure_of_passes(trials: list[TrialResult]):
    for at, lead in ((1.5, -2.0), (30.0, 1.0)):
        trials += [
            result(50.0 + s + better, study="passes", optimizer=name, seed=s, at=at)
            for name, better in (("sgd", 0.0), ("novograd", lead))
            for s in range(3)
        ]
    page = page_of(trials)
    places = [
        page.index(text)
        for text in (
            "The question: does NovoGrad end on par",
            "| one, val top-1, % | 51.0 ± 1.0 | 51.0 ± 1.0 | +0.0 \\[+0.0, +0.0\\] |",
            "](curves/passes.svg)",
            "| claim | verdict | in short |",
            "| lead, %, after | 1.5 passes | 30 passes |",
        )
    ]
    assert places == sorted(places)
    assert page.count("passes.svg") == 1


def test_the_edge_of_what_was_tried_and_the_test_split():
    made = [result(x, metric="valid/ppl", at=x) for x in (0.1, 1.0)]
    final = {"valid/ppl": 30.0, "test/ppl": 31.5}
    made += [
        result(30.0, study=HEADLINE, metric="valid/ppl", final=final),
        result(32.5, study=HEADLINE, metric="test/ppl", seed=1, final={"valid/ppl": 31.0}),
    ]
    row = "| 0.1 (lowest tried) | 0.001 | 2 | valid/ppl | 30.00, 31.00 | 31.50, 32.50 |"
    assert row in page_of(made)


def test_text_of_records_is_escaped(trials: list[TrialResult]):
    page = page_of([*trials, result(data="<script>|`x`")])
    assert "<script>" not in page
    assert r"&lt;script&gt;\|\`x\`" in page


def test_the_page_of_own_runs(tmp_path: Path):
    gains = {0.25: 40.0, 1.0: 50.0, 4.0: 40.0}
    made = along("initialisation", {"sgd": gains, "novograd": gains})
    made = [replace(one, run_id=f"a/b-{number}-s0") for number, one in enumerate(made)]
    (tmp_path / "trials.csv").write_text(to_csv(made))
    records = [replace(one.record, run_id=one.run_id) for one in made if one.record]
    memory = tmp_path / "memory.json"
    sizes = {"state_mb": 1, "peak_mb": 1}
    memory.write_text(json.dumps({"A": {"adam": sizes, "novograd": sizes}}))
    page = write_study(tmp_path, records, memory).read_text()
    assert "Written by `make study` from its own runs" in page
    assert "NovoGrad's state as a part of Adam's: A 1.000." in page
    assert "](curves/initialisation.svg)" in page
    assert (tmp_path / "curves" / "initialisation.svg").exists()


def test_every_published_trial_has_its_record():
    records = {record.run_id: record for record in read_records(RESULTS / "runs")}
    trials = [
        one
        for file in sorted((RESULTS / "studies").glob("*/trials.csv"))
        for one in read_trials(file, records)
    ]
    assert trials
    assert all(one.value is not None for one in trials if one.status == "finished")


def test_remarks_that_cannot_be_read(tmp_path: Path):
    path = tmp_path / "remarks.yaml"
    assert read_remarks(path) == Remarks()
    path.write_text("abuot: Why.")
    with pytest.raises(ClaimProblem, match=r"remarks.yaml: .*abuot"):
        read_remarks(path)
