"""STUDY.md: only what the files say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from results.claims import ClaimProblem, parse_study
from results.findings import all_findings
from results.study_page import read_remarks, render_study
from results.trials import DIVERGED, to_csv
from tests.results.made_up import outcome, record


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Two optimizers on a data set: three rates each, one of which diverged, and three seeds."""
    outcomes = []
    for name in ("sgd", "novograd"):
        made = {"optimizer": name, "run_id": f"imagenet/{name}_100ep-mini-s0"}
        outcomes += [
            outcome(**made, at=rate, lr=rate, value=value, status="finished" if value else DIVERGED)
            for rate, value in ((0.1, 40.0), (1.0, 50.0), (10.0, None))
        ]
        outcomes += [
            outcome(**made, study="headline", seed=seed, value=50.0 + seed) for seed in range(3)
        ]
        one = record(f"imagenet/{name}_100ep", {"val/top1": 50.0}, scale="mini")
        one |= {"run_id": made["run_id"], "parameters": 12_345}
        one["plan"] |= {"steps": 9, "steps_per_epoch": 3, "global_batch": 64, "unit": "image"}
        one["config"] |= {"hardware": {"threads": 1}, "task": {"name": "imagenet"}}
        path = tmp_path / "runs" / f"{one['run_id']}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(one))
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "trials.csv").write_text(to_csv(outcomes))
    return tmp_path


def render(results: Path) -> str:
    found = all_findings(results)
    return render_study(results, {n: parse_study(t, Path(f"{n}.json")) for n, t in found.items()})


def test_nothing_was_run(tmp_path: Path):
    assert render(tmp_path).endswith("\n\nNot run.\n")


def test_tuning_verdicts_and_rules(results: Path):
    (results / "studies" / "remarks.yaml").write_text(
        "about: Why.\nstudies: {headline: Seen in the curves.}\nlimits: [Small.]\n"
    )
    page = render(results)
    assert "| one | NovoGrad | 1 | 0.001 | 3 | val/top1 | 50.00, 51.00, 52.00 |  |" in page
    assert "2 runs, " in page
    assert "12,345" in page
    assert "On par or better on 1 of 1 data sets" in page
    assert "**Undecided.**" in page  # by one data set
    assert "Holds if NovoGrad is on par or better on all others" in page  # the rule
    assert "Seen in the curves." in page
    assert page.endswith("## Limits\n\n- Small.\n")
    assert "| **not run** |  |" in page  # claims without results


def test_an_explanation_comes_after_the_claims(results: Path):
    trials = results / "studies" / "trials.csv"
    made = [outcome(data=data, study="tensor_sizes", value=49.0) for data in ("one", "two")]
    made += [
        outcome(data=data, study="headline", optimizer=name, value=value)
        for data in ("one", "two")
        for name, value in (("sgd", 50.0), ("novograd", 40.0))
    ]
    trials.write_text(to_csv(made))
    page = render(results)
    assert page.index("## Is NovoGrad behind here because") > page.index("## In all four tasks")
    assert "An explanation of ours, not a claim of the paper. **Holds at this scale.**" in page
    assert "| one, val/top1 | 40 | 49 | 50 | 90 |" in page


def test_the_edge_of_what_was_tried_and_the_test_split(results: Path):
    run = "wikitext103/novograd-mini-s0"
    made = {"data": "words", "optimizer": "novograd", "metric": "valid/ppl", "run_id": run}
    outcomes = [outcome(**made, lr=rate, at=rate, value=rate) for rate in (0.1, 1.0)]
    outcomes = [replace(one, higher_is_better=False) for one in outcomes]
    outcomes.append(outcome(**made, study="headline", value=30.0))
    one = record("wikitext103/novograd", {"valid/ppl": 30.0, "test/ppl": 31.5}, scale="mini")
    one |= {"run_id": run, "parameters": 1}
    one["plan"] |= {"steps": 9, "steps_per_epoch": 3, "global_batch": 64, "unit": "token"}
    one["config"] |= {"hardware": {"threads": 1}, "task": {"name": "wikitext103"}}
    path = results / "runs" / f"{run}.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(one))
    (results / "studies" / "trials.csv").write_text(to_csv(outcomes))
    row = "| words | NovoGrad | 0.1 (lowest tried) | 0.001 | 2 | valid/ppl | 30.00 | 31.50 |"
    assert row in render(results)


def test_remarks_that_cannot_be_read(tmp_path: Path):
    path = tmp_path / "remarks.yaml"
    path.write_text("abuot: Why.")
    with pytest.raises(ClaimProblem, match=r"remarks.yaml: .*abuot"):
        read_remarks(path)
