"""Claims, figures and deviations name their sources, and no number is typed twice."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import yaml

from analysis.claims import EXPLANATIONS, FAILS, MEMORY, ClaimProblem, StudyResult, read_claims
from analysis.paper import (
    PAPER,
    PaperProblem,
    insert_values,
    read_deviations,
    read_figures,
    read_paper,
    value_text,
)
from analysis.trials import STUDY_NAMES
from analysis.verdicts import Rule
from launch import compose
from tasks.catalog import TASKS, task_class

ROOT = Path(__file__).parents[2]
ROWS = {row.row: row for table in read_paper() for row in table.rows}
EXPERIMENTS = set(compose.options_of("experiment"))


@pytest.mark.parametrize("claim", read_claims(), ids=lambda claim: claim.id)
def test_tests_that_keep_a_claim_exist(claim):
    for test in claim.tests:
        file, name = test.split("::")
        tree = ast.parse((ROOT / file).read_text())
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_study_decides_a_claim_or_explains():
    decide = {claim.study for claim in read_claims()} - {None}
    assert decide | set(EXPLANATIONS) == {*STUDY_NAMES, MEMORY}
    assert not decide & set(EXPLANATIONS)


def test_verdicts_come_from_studies_or_tests():
    studies = {"warmup": StudyResult("warmup", Rule("Holds if …"), FAILS, "Needed.", {})}
    verdicts = {claim.id: claim.verdict(studies) for claim in read_claims()}
    assert verdicts["memory"] == "not run"
    assert verdicts["warmup"] == "does not hold"
    assert verdicts["beta2"] == "not run"  # a test of a part of it decides nothing


def test_figures_show_runs_of_rows():
    assert [figure.figure for figure in read_figures()] == [1, 2]
    for figure in read_figures():
        rows = [row.experiment for t in read_paper() if t.task == figure.task for row in t.rows]
        assert set(figure.experiments) <= set(rows)
        logged = {f"{split}/" for split in (*task_class(figure.task).splits, "train")}
        assert all(series.metric.startswith(tuple(logged)) for series in figure.series)


def test_numbers_of_the_text_are_rows():
    assert ROWS["table2/novograd-32k-warmup"].metrics == {"val/top1": 75.99}
    linear = ROWS["text/novograd-32k-linear"]
    assert linear.in_text
    assert linear.metrics == {"val/top1": 75.09, "val/top5": 92.27}


def test_every_row_that_differs_from_print_is_a_deviation():
    named = {row for deviation in read_deviations() for row in deviation.rows}
    assert {name for name, row in ROWS.items() if row.used or row.why} == named


def test_every_variant_is_an_other_reading_of_a_deviation():
    named = [variant for deviation in read_deviations() for variant in deviation.variants]
    assert len(named) == len(set(named))
    assert set(named) == {name for name in EXPERIMENTS if "/variant/" in name}


def test_deviations_name_experiments_that_exist():
    for deviation in read_deviations():
        for word in re.findall(rf"\b(?:{'|'.join(TASKS)})/\w+", deviation.about):
            assert word in EXPERIMENTS, deviation.id


def test_numbers_of_rows_and_configs_are_not_typed_again():
    """Results of rows, and values of recipes with a decimal point, come from where they stand."""
    results = {f"{value:.2f}" for row in ROWS.values() for value in row.metrics.values()}
    recipes = {
        value_text(value)
        for row in ROWS.values()
        for value in {**row.printed, **row.used}.values()
        if isinstance(value, float)
    }
    for name in ("claims.yaml", "figures.yaml", "deviations.yaml"):
        numbers = set(re.findall(r"(?<![\w.])\d+\.\d+(?!\w)", (PAPER / name).read_text()))
        sections = {"4.1", "4.2", "4.4", "4.6"}
        assert not (numbers - sections) & (results | recipes), name


def test_values_of_configs_are_inserted():
    here = Path("here")
    assert insert_values("a {model/resnet50v2:bn_momentum} b", here) == "a 0.003 b"
    assert insert_values("{optimizer/novograd:betas}", here) == "(0.95, 0.25)"
    for wrong in ("{model/nothing:x}", "{model/resnet50v2:nothing}"):
        with pytest.raises(PaperProblem, match="is not in configs/"):
            insert_values(wrong, here)
    assert [value_text(v) for v in (1e-8, 32768, 12e9, 0.07, "5 %")] == [
        *("1e-8", "32,768", "12B", "0.07", "5 %")
    ]


@pytest.mark.parametrize(
    ("read", "change", "complaint"),
    [
        (read_claims, {"checked_by": {}}, "neither tests nor a study"),
        (read_claims, {"checked_by": {"study": "unheard of"}}, "known are"),
        (read_claims, {"checked_by": {"stud": "warmup"}}, "unknown keys"),
        (read_claims, {"verdict": "holds"}, "unknown keys"),
        (read_deviations, {"rows": ["table9/x"]}, "unknown rows"),
        (read_deviations, {"why": ""}, "has no why"),
        (read_deviations, {"reason": "x"}, "unknown keys"),
        (read_deviations, {"id": "typesetting"}, "twice"),
    ],
)
def test_a_wrong_claim_or_deviation_is_refused(tmp_path, read, change, complaint):
    path = tmp_path / f"{read.__name__.removeprefix('read_')}.yaml"
    raw = yaml.safe_load((PAPER / path.name).read_text())
    raw[0] |= change
    path.write_text(yaml.safe_dump(raw))
    with pytest.raises(ClaimProblem if read is read_claims else PaperProblem, match=complaint):
        read(path)
