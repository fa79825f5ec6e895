"""The report shows what was run where it belongs, and is a function of the files alone."""

from __future__ import annotations

import json
import math
import random
import re
from pathlib import Path
from typing import Any

import pytest

from results.claims import Chart, Line
from results.markdown import (
    BEGIN,
    END,
    duration,
    numbers_grid,
    render_readme,
    render_report,
    replace_block,
)
from results.page import SPACE, render_page
from results.records import ReportProblem, read_runs
from results.report import Report, build, heading_of, labels_of
from results.schema import read_paper
from results.svg import COLOURS, draw, linear_ticks, log_ticks, number
from tests.results.made_up import curves, full_report, record


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return full_report(tmp_path_factory.mktemp("full"))


def reported(folder: Path, *records: dict[str, Any], current: set[str] | None = None) -> Report:
    for one in records:
        path = folder / "runs" / f"{one['run_id']}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(one))
    prints = {one["fingerprint"] for one in records} if current is None else current
    return build(read_runs(folder / "runs"), prints, {})


def row_of(report: Report, name: str):
    (found,) = (row for table in report.tables for row in table.rows if row.row.row == name)
    return found


def test_without_records_everything_is_not_run(tmp_path):
    report = reported(tmp_path)
    assert report.row_counts() == {"reproduced": 0, "differs": 0, "not run": len(report.rows)}
    assert report.mini_count() == 0
    assert all(str(row.ours) == "not run" for row in report.rows)
    text = render_report(report)
    assert "No records." in text
    assert "Ours: not run." in text
    assert "<svg" not in render_page(report)


def test_scales_stand_in_columns_of_their_own(tmp_path):
    name, final = "imagenet/sgd_100ep", {"val/top1": 76.2, "val/top5": 93.0}
    small = {"val/top1": 60.0, "val/top5": 95.0}
    other = {"config": {"data": {"name": "another"}}, "run_id": "imagenet/z-s0"}
    report = reported(
        tmp_path,
        record(name, final),
        record(name, final | {"val/top1": 76.4}, seed=1),
        record(name, small, scale="mini"),
        record(name, small, scale="mini", **other),
        record(name, {"val/top1": 12.34, "val/top5": 12.34}, scale="smoke"),
    )
    row = row_of(report, "table1/sgd-100")
    assert str(row.ours) == "76.30 ± 0.14 / 93.00 ± 0.00 (n=2)"
    assert str(row.verdict) == "reproduced"
    assert report.tables[0].small == ("another", "cifar10")
    assert [str(cell) for cell in row.mini] == ["60.00 / 95.00 (n=1)"] * 2
    rest = row_of(report, "table1/sgd-200")
    assert str(rest.ours) == "not run"
    assert [str(cell) for cell in rest.mini] == ["not run"] * 2
    for text in (render_report(report), render_page(report), render_readme(report)):
        assert "12.34" not in text
        assert "smoke" not in text
        assert "60.00 / 95.00 (n=1)" in text.replace(SPACE, " ")


def test_small_data_gets_no_verdict(tmp_path):
    exact = {"val/top1": 76.38, "val/top5": 93.08}
    report = reported(tmp_path, record("imagenet/sgd_100ep", exact, scale="mini"))
    assert str(row_of(report, "table1/sgd-100").verdict) == "not run"
    assert report.mini_count() == 1


def test_other_configurations_are_counted_and_not_shown(tmp_path):
    final = {"val/top1": 76.38, "val/top5": 93.08}
    overridden = record("imagenet/sgd_100ep", final)
    variant = record("imagenet/variant/adamw_100ep_public", final)
    report = reported(tmp_path, overridden, variant, current={variant["fingerprint"]})
    assert str(row_of(report, "table1/sgd-100").ours) == "not run"
    assert report.other_records == 2
    assert "2 further records" in render_page(report)


def test_rows_that_are_shown_again_have_the_same_runs_and_count_once(tmp_path):
    final = {"val/top1": 76.64, "val/top5": 90.0}
    report = reported(tmp_path, record("imagenet/novograd_8k_90ep", final))
    assert str(row_of(report, "table3/novograd-8k").verdict) == "differs: val top-5 −3.14"
    again = row_of(report, "table2/novograd-8k")
    assert str(again.ours) == "76.64 (n=1)"
    assert again.verdict.kind == "reproduced"
    assert report.row_counts() == {"reproduced": 0, "differs": 1, "not run": len(report.rows) - 1}


def test_what_is_cited_is_run_again_without_a_verdict(tmp_path):
    report = reported(tmp_path, record("imagenet/baseline/sgd_8k_90ep_goyal", {"val/top1": 76.0}))
    row = row_of(report, "table2/goyal-8k")
    assert (str(row.ours), str(row.verdict)) == ("76.00 (n=1)", "cited")
    assert row_of(report, "table2/you-8k").ours is None


def test_labels_tell_rows_apart():
    for table in read_paper():
        labels = labels_of(table)
        assert len(set(labels)) == len(labels)
    assert labels_of(read_paper()[0])[:3] == [
        "SGD, 100 epochs",
        "SGD, 200 epochs",
        "AdamW, 100 epochs",
    ]
    assert heading_of(["val/top1", "val/top5"]) == "top-1 / top-5, %"
    assert heading_of(["dev-clean/wer", "test-other/wer"]) == "dev-clean / test-other WER, %"
    assert heading_of(["valid_64/ppl", "test_64/ppl"]) == "valid / test perplexity"


def test_curves_are_means_over_seeds(full):
    charts = {chart.title: chart for chart in full.tables[0].charts}
    chart = charts["cifar10 (mini): val top-1, %"]
    assert [line.label for line in chart.lines] == labels_of(read_paper()[0])
    line = chart.lines[0]
    assert line.x == (0.25, *line.x[1:])
    three = [curves("imagenet", seed, 1.0)["val/top1"]["value"][0] for seed in range(3)]
    assert line.y[0] == pytest.approx(sum(three) / 3)
    assert line.sd is not None
    assert line.sd[0] == pytest.approx(0.75)


def test_figures_are_drawn_once(full):
    assert [chart.title for chart in full.tables[4].charts] == [
        "spoken-commands (synthetic) (mini): training loss"
    ]
    (one, (drawn,)), (two, _) = full.figures
    assert (one.figure, two.figure) == (1, 2)
    assert len(drawn.lines) == 5
    lines = full.figures[1][1][0].lines
    assert [line.dashed for line in lines] == [True, False] * 2
    assert lines[0].y[0] == pytest.approx(
        math.exp(curves("wikitext103", 0, 1.0)["train/loss"]["value"][0])
    )


def test_claims_have_numbers_and_records(full):
    views = {view.claim.id: view for view in full.claims}
    memory = views["memory"].numbers["resnet50v2"]
    assert memory == {"NovoGrad (ours)": 4.0, "torch AdamW fused": 8.0}
    files = dict(views["learning_rate"].records)
    assert files["imagenet/nobody-s0"] is None
    assert files["imagenet/sgd_100ep-mini-s0"] == "runs/imagenet/sgd_100ep-mini-s0.json"
    page = render_page(full)
    assert "imagenet/nobody-s0: no record" in page
    assert full.claim_counts()["not run"] == len(full.claims) - 3


def test_the_same_files_give_the_same_bytes(tmp_path):
    first = full_report(tmp_path / "a")
    texts = [render_report(first), render_page(first), render_readme(first)]
    files = sorted((tmp_path / "a" / "runs").rglob("*.json"))
    random.Random(0).shuffle(files)
    for path in files:  # made in another order
        copy = tmp_path / "b" / path.relative_to(tmp_path / "a")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text())
    current = {f"{r.experiment}-{r.scale}" for r in read_runs(tmp_path / "b" / "runs")}
    studies = {view.study.study: view.study for view in first.claims if view.study}
    again = build(read_runs(tmp_path / "b" / "runs"), current, studies)
    assert [render_report(again), render_page(again), render_readme(again)] == texts


def test_every_number_has_its_record(full):
    text = render_report(full)
    for table in full.tables:
        counted = sum(cell.runs for row in table.rows for cell in (row.ours, *row.mini) if cell)
        assert counted == len(table.runs)
        for run in table.runs:
            assert f"[{run.run_id}]({run.file})" in text
    assert "0123456789" in text  # the commit
    assert "1 h 2 min" not in text
    assert "62 min" in text


def test_paths_and_times_of_this_machine_are_nowhere(full, tmp_path_factory):
    for text in (render_report(full), render_page(full)):
        assert str(tmp_path_factory.getbasetemp()) not in text
        assert not re.search(r"generated (at|on)", text, re.I)


@pytest.mark.parametrize("broken", ["{", "[]", '{"run_id": "a"}'])
def test_what_is_no_record_is_named(tmp_path, broken):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "x.json").write_text(broken)
    with pytest.raises(ReportProblem, match=r"x\.json: not a record"):
        read_runs(tmp_path / "runs")


def test_a_run_with_two_records_is_refused(tmp_path):
    for name in ("a", "b"):
        path = tmp_path / "runs" / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(record("imagenet/sgd_100ep", {})))
    with pytest.raises(ReportProblem, match=r"b\.json: .* is in runs/a\.json as well"):
        read_runs(tmp_path / "runs")


def test_numbers_that_are_not_finite_survive(tmp_path):
    along = curves("wikitext103", 0, 1.0)
    along["valid/ppl"]["value"][3] = "Infinity"
    final = {"valid_64/ppl": "NaN", "test_64/ppl": "Infinity"}
    report = reported(tmp_path, record("wikitext103/adam", final, curves=along))
    row = row_of(report, "table7/adam")
    assert str(row.ours) == "nan / inf (n=1)"
    assert row.verdict.kind == "differs"
    assert "not finite at 1" in render_page(report)


def test_the_block_of_the_readme_is_replaced():
    text = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert replace_block(text, "new") == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    for wrong in ("nothing", f"{END}{BEGIN}", text + BEGIN):
        with pytest.raises(ValueError, match="once each"):
            replace_block(wrong, "new")


def test_a_chart_draws_every_line_and_escapes_its_texts():
    lines = tuple(Line(f"<{i}>", (1.0, 10.0), (float(i), None)) for i in range(COLOURS + 1))
    drawn = draw(Chart("a & b", "x", "y", lines, log_x=True))
    assert drawn.count('class="line') == 2 * len(lines)  # and those of the legend
    assert drawn.count('class="lost"') == len(lines)
    assert "a &amp; b" in drawn
    assert "<0>" not in drawn
    assert drawn.count('class="line dashed"') == 2  # colours begin again


def test_an_optimizer_has_one_colour_and_few_values_a_tick_each():
    lines = tuple(Line(name, (0.25, 1.0, 4.0), (1.0, 2.0, 1.5)) for name in ("AdamW", "NovoGrad"))
    drawn = draw(Chart("t", "x", "y", lines, log_x=True))
    assert "--line-2" in drawn
    assert "--line-3" in drawn
    assert "--line-0" not in drawn
    assert all(f">{value}</text>" in drawn for value in ("0.25", "1", "4"))


def test_optimizers_stand_in_one_order():
    numbers = {"a": {"SGD": 1.0, "AdamW": 2.0, "NovoGrad": 3.0}, "b": {"Adam": 4.0, "AdamW": 5.0}}
    head, lines = numbers_grid(numbers)
    assert head == ["", "SGD", "Adam", "AdamW", "NovoGrad"]
    assert lines == [["a", "1", "", "2", "3"], ["b", "", "4", "5", ""]]


@pytest.mark.parametrize(
    ("chart", "hint"),
    [
        (Chart("t", "x", "y", (Line("a", (1.0,), (2.0,)),)), "a: 2 at 1"),
        (Chart("t", "x", "y", (Line("a", (0.0,), (0.0,)),), log_y=True), "<path"),
        (Chart("t", "x", "y", (Line("a", (1.0, 2.0), (None, None)),)), "not finite"),
        (Chart("t", "x", "y", (Line("a", (1.0, 2.0), (1.0, 2.0), (5.0, 1.0)),), log_y=True), "± 5"),
    ],
)
def test_odd_charts_are_drawn(chart, hint):
    drawn = draw(chart)
    assert hint in drawn
    assert "nan" not in drawn
    assert "inf" not in drawn.replace("infinite", "")


def test_ticks_are_round():
    assert linear_ticks(0.3, 3.1) == (1.0, 2.0, 3.0)
    assert linear_ticks(-1, 1) == (-1, -0.5, 0, 0.5, 1)
    assert log_ticks(1e-4, 1) == (1e-4, 1e-3, 1e-2, 1e-1, 1)
    assert log_ticks(1, 30) == (1, 2, 5, 10, 20)
    assert log_ticks(20, 26) == (20, 22, 24, 26)
    assert len(log_ticks(1e-12, 1e12)) <= 8
    assert [number(x) for x in (0, 0.001, 1e-5, 25000, 2e6, -0.25)] == [
        *("0", "0.001", "1e-5", "25,000", "2e6", "-0.25")
    ]


def test_durations():
    assert [duration(s) for s in (98.6, 3725, 7500, 360_000)] == [
        *("99 s", "62 min", "2 h 5 min", "100 h 0 min")
    ]
