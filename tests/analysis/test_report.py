"""The report shows what was run where it belongs, and depends on the files alone."""

from __future__ import annotations

import html
import json
import math
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.claims import read_claims
from analysis.pages import markers, render_page, render_readme, render_report, replace_block
from analysis.paper import read_paper
from analysis.report import build, labels_of
from analysis.report_views import Report
from analysis.tables import heading_of
from engine.records import RecordError, read_own_records, read_record, read_records
from tests.analysis.fakes import STUDIES, curves, full_report, raw_record, write_raw


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("full")


@pytest.fixture(scope="module")
def full(folder: Path) -> Report:
    return full_report(folder)


def reported(folder: Path, *raw: dict[str, Any], current: set[str] | None = None) -> Report:
    for one in raw:
        write_raw(folder / "runs", one)
    prints = {one["fingerprint"] for one in raw} if current is None else current
    return build(read_records(folder / "runs"), prints, {})


def row_of(report: Report, name: str):
    (found,) = (row for table in report.tables for row in table.rows if row.row.row == name)
    return found


def visible(text: str) -> str:
    """The text of a page without its tags."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", text)).split())


def pages(report: Report, folder: Path) -> list[str]:
    return [
        render_report(report, folder),
        render_page(report, folder, folder),
        render_readme(report),
    ]


def test_without_records_nothing_was_run(tmp_path):
    report = reported(tmp_path)
    assert report.row_counts() == {"reproduced": 0, "differs": 0, "not run": len(report.rows)}
    assert report.mini_count() == 0
    assert all(str(row.ours) == "not run" for row in report.rows)
    text, page, _ = pages(report, tmp_path)
    assert "No records." in text
    assert "Ours: not run." in text
    assert "<svg" not in page


def test_every_scale_has_columns_of_its_own(tmp_path):
    name, final = "imagenet/sgd_100ep", {"val/top1": 76.2, "val/top5": 93.0}
    small = {"val/top1": 60.0, "val/top5": 95.0}
    report = reported(
        tmp_path,
        raw_record(name, final),
        raw_record(name, final | {"val/top1": 76.4}, seed=1),
        raw_record(name, small, scale="mini"),
        raw_record(name, small, scale="mini", data="another", fingerprint="z"),
        raw_record(name, {"val/top1": 12.34, "val/top5": 12.34}, scale="smoke"),
    )
    row = row_of(report, "table1/sgd-100")
    assert str(row.ours) == "76.30 ± 0.14 / 93.00 ± 0.00 (n=2)"
    assert str(row.verdict) == "reproduced"
    columns = [str(column) for column in report.tables[0].columns]
    assert columns == ["ours, mini: another", "ours, mini: cifar10"]
    assert [str(cell) for cell in row.cells] == ["60.00 / 95.00 (n=1)"] * 2
    rest = row_of(report, "table1/sgd-200")
    assert str(rest.ours) == "not run"
    assert [str(cell) for cell in rest.cells] == ["not run"] * 2
    for text in pages(report, tmp_path):
        assert "12.34" not in text
        assert "smoke" not in text
        assert "60.00 / 95.00 (n=1)" in visible(text)


def test_runs_on_small_data_get_no_verdict(tmp_path):
    exact = {"val/top1": 76.38, "val/top5": 93.08}
    report = reported(tmp_path, raw_record("imagenet/sgd_100ep", exact, scale="mini"))
    assert str(row_of(report, "table1/sgd-100").verdict) == "not run"
    assert report.mini_count() == 1


def test_other_configurations_are_counted_but_not_shown(tmp_path):
    final = {"val/top1": 76.38, "val/top5": 93.08}
    overridden = raw_record("imagenet/sgd_100ep", final)
    variant = raw_record("imagenet/variant/adamw_100ep_public", final)
    report = reported(tmp_path, overridden, variant, current={variant["fingerprint"]})
    assert str(row_of(report, "table1/sgd-100").ours) == "not run"
    assert report.other_records == 2
    assert "2 further records" in render_page(report, tmp_path, tmp_path)


def test_a_repeated_row_has_the_same_runs_and_counts_once(tmp_path):
    final = {"val/top1": 76.64, "val/top5": 90.0}
    report = reported(tmp_path, raw_record("imagenet/novograd_8k_90ep", final))
    assert str(row_of(report, "table3/novograd-8k").verdict) == "differs: val top-5 −3.14"
    again = row_of(report, "table2/novograd-8k")
    assert str(again.ours) == "76.64 (n=1)"
    assert again.verdict.kind == "reproduced"
    assert report.row_counts() == {"reproduced": 0, "differs": 1, "not run": len(report.rows) - 1}


def test_cited_rows_can_be_run_but_get_no_verdict(tmp_path):
    raw = raw_record("imagenet/baseline/sgd_8k_90ep_goyal", {"val/top1": 76.0})
    report = reported(tmp_path, raw)
    row = row_of(report, "table2/goyal-8k")
    assert (str(row.ours), str(row.verdict)) == ("76.00 (n=1)", "cited")
    assert row_of(report, "table2/you-8k").ours is None


def test_labels_tell_rows_apart():
    for table in read_paper():
        labels = labels_of(table)
        assert len(set(labels)) == len(labels)
    assert labels_of(read_paper()[0])[:2] == ["SGD, 100 epochs", "SGD, 200 epochs"]
    assert heading_of(["val/top1", "val/top5"]) == "top-1 / top-5, %"
    assert heading_of(["dev-clean/wer", "test-other/wer"]) == "dev-clean / test-other WER, %"
    assert heading_of(["valid_64/ppl", "test_64/ppl"]) == "valid / test perplexity"


def test_curves_are_means_over_seeds(full):
    charts = {chart.title: chart for chart in full.tables[0].charts}
    chart = charts["cifar10 (mini): val top-1, %"]
    assert [line.label for line in chart.lines] == labels_of(read_paper()[0])
    line = chart.lines[0]
    three = [curves("imagenet", seed, 1.0)["val/top1"]["value"][0] for seed in range(3)]
    assert (line.x[0], line.y[0]) == (0.25, pytest.approx(sum(three) / 3))
    assert line.sd is not None
    assert line.sd[0] == pytest.approx(0.75)


def test_a_figure_is_drawn_once(full):
    assert [chart.title for chart in full.tables[4].charts] == [
        "spoken-commands (synthetic) (mini): training loss"
    ]
    (one, (drawn,)), (two, _) = full.figures
    assert (one.figure, two.figure) == (1, 2)
    assert len(drawn.lines) == 5
    lines = full.figures[1][1][0].lines
    assert [line.dash for line in lines] == ["dashed", "solid"] * 2
    first = curves("wikitext103", 0, 1.0)["train/loss"]["value"][0]
    assert lines[0].y[0] == pytest.approx(math.exp(first))


def test_claims_have_the_numbers_of_benchmarks(tmp_path):
    found = {"NovoGrad (ours)": 4.0, "torch AdamW fused": 8.0}
    step = [{"name": name, "state_bytes_per_parameter": value} for name, value in found.items()]
    sets = {"resnet50v2": {"step": [*step, {"name": "torch SGD"}]}}
    (tmp_path / "bench" / "a-cpu").mkdir(parents=True)
    record = json.dumps({"detail": {"sets": sets}})
    (tmp_path / "bench" / "a-cpu" / "optim.json").write_text(record)
    report = build([], set(), STUDIES, folder=tmp_path)
    views = {view.claim.id: view for view in report.claims}
    assert views["memory"].numbers["resnet50v2"] == found
    assert 'href="bench/a-cpu/optim.json"' in render_page(report, tmp_path, tmp_path)
    assert "](bench/a-cpu/optim.json)" in render_report(report, tmp_path)


def test_claims_have_records(full, folder):
    views = {view.claim.id: view for view in full.claims}
    records = dict(views["learning_rate"].records)
    assert records["imagenet/nobody-s0"] is None
    assert records["imagenet/sgd_100ep-imagenet_sgd_100epmini-s0"] is not None
    page = render_page(full, folder, folder)
    assert "imagenet/nobody-s0: no record" in page
    assert full.claim_counts()["not run"] == len(read_claims()) - len(STUDIES)


def test_the_same_files_give_the_same_bytes(tmp_path):
    first = pages(full_report(tmp_path / "a"), tmp_path / "a")
    files = sorted((tmp_path / "a" / "runs").rglob("*.json"))
    random.Random(0).shuffle(files)
    for path in files:  # written in another order
        copy = tmp_path / "b" / path.relative_to(tmp_path / "a")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text())
    records = read_records(tmp_path / "b" / "runs")
    current = {r.fingerprint for r in records} - {"other"}
    assert pages(build(records, current, STUDIES), tmp_path / "b") == first


def test_every_number_has_its_record(full, folder):
    text = render_report(full, folder)
    for table in full.tables:
        cells = [cell for row in table.rows for cell in (row.ours, *row.cells) if cell]
        counted = sum(cell.runs + cell.diverged for cell in cells)
        assert counted == len(table.records)
        for record in table.records:
            assert record.path is not None
            assert f"[{record.run_id}]({record.path.relative_to(folder)})" in text
    assert "0123456789" in text  # the commit
    assert "62 min" in text


def test_rules_are_shown_with_their_thresholds(full, folder):
    text, page, _ = pages(full, folder)
    for shown in (text, visible(page)):
        assert "worse than the paper's number by no more than the table's tolerance" in shown
        assert "tolerance 0.3 (dev-clean WER, test-clean WER), 0.6 (dev-other WER" in shown


def test_pages_do_not_depend_on_time_and_place(full, folder, tmp_path_factory):
    for text in pages(full, folder):
        assert str(tmp_path_factory.getbasetemp()) not in text
        assert not re.search(r"generated (at|on)", text, re.I)


def test_a_damaged_record_is_named(tmp_path):
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(RecordError, match=r"x\.json is not a run record"):
        read_records(tmp_path)


def test_values_that_are_not_finite_are_shown(tmp_path):
    along = curves("wikitext103", 0, 1.0)
    along["valid/ppl"]["value"][3] = "Infinity"
    final = {"valid_64/ppl": "NaN", "test_64/ppl": "Infinity"}
    raw = [raw_record("wikitext103/adam", final, seed=seed, curves=along) for seed in (0, 1)]
    report = reported(tmp_path, *raw)
    row = row_of(report, "table7/adam")
    assert str(row.ours) == "nan ± nan / inf ± nan (n=2)"
    assert row.verdict.kind == "differs"
    assert "not finite at 1" in render_page(report, tmp_path, tmp_path)


def test_diverged_runs_are_counted_apart(tmp_path):
    name, final = "imagenet/sgd_100ep", {"val/top1": 76.2, "val/top5": 93.0}
    lost = raw_record(name, {}, seed=1, status="diverged")
    alone = raw_record("imagenet/sgd_200ep", {}, status="diverged")
    report = reported(tmp_path, raw_record(name, final), lost, alone)
    assert str(row_of(report, "table1/sgd-100").ours) == "76.20 / 93.00 (n=1, 1 diverged)"
    assert str(row_of(report, "table1/sgd-200").ours) == "diverged (n=1)"
    assert "diverged (n=1)" in visible(render_page(report, tmp_path, tmp_path))


class TestOwnRuns:
    NAME = "imagenet/sgd_100ep"

    def report(self, tmp_path: Path, *own: dict[str, Any]) -> Report:
        published = raw_record(self.NAME, {"val/top1": 60.0, "val/top5": 95.0}, scale="mini")
        write_raw(tmp_path / "results" / "runs", published)
        for one in own:
            write_raw(tmp_path / "outputs", one, f"{one['run_id']}/record.json")
        records = read_records(tmp_path / "results" / "runs")
        mine = read_own_records(tmp_path / "outputs")
        current = {r.fingerprint for r in [*records, *mine]}
        return build(records, current, {}, own=mine)

    def test_are_shown_beside_the_published_ones_and_marked(self, tmp_path):
        small = raw_record(self.NAME, {"val/top1": 11.11, "val/top5": 22.22}, scale="mini")
        large = raw_record(self.NAME, {"val/top1": 76.38, "val/top5": 93.08})
        report = self.report(tmp_path, small, large)
        row = row_of(report, "table1/sgd-100")
        assert [str(column) for column in report.tables[0].columns] == [
            "ours, mini: cifar10",
            "not published, paper: imagenet",
            "not published, mini: cifar10",
        ]
        assert [str(cell) for cell in row.cells] == [
            "60.00 / 95.00 (n=1)",
            "76.38 / 93.08 (n=1)",
            "11.11 / 22.22 (n=1)",
        ]
        assert str(row.own_verdict) == "reproduced"
        page = render_page(report, tmp_path / "outputs", tmp_path / "results")
        assert "Columns marked “not published”" in page
        assert 'href="../results/runs/imagenet/sgd_100ep-' in page
        assert f'href="{small["run_id"]}/record.json"' in page

    def test_count_in_no_published_number(self, tmp_path):
        large = raw_record(self.NAME, {"val/top1": 76.38, "val/top5": 93.08})
        report = self.report(tmp_path, large)
        assert str(row_of(report, "table1/sgd-100").ours) == "not run"
        assert report.row_counts()["reproduced"] == 0
        assert report.mini_count() == 1

    def test_without_any_nothing_is_marked(self, tmp_path):
        page = render_page(self.report(tmp_path), tmp_path, tmp_path)
        assert "not published" not in page


HOSTILE = "<script>alert('x')</script> a|b $\\frac{$ *c* `d` [e](f) __g__ &amp; \x01\n# h"


def test_texts_of_records_are_escaped_everywhere(tmp_path):
    final, along = {"val/top1": 60.0, "val/top5": 95.0}, curves("imagenet", 0, 1.0)
    raw = raw_record("imagenet/sgd_100ep", final, scale="mini", data=HOSTILE, curves=along)
    raw["environment"]["hardware"]["name"] = HOSTILE
    raw["environment"]["versions"]["torch"] = HOSTILE
    raw["environment"]["commit"] = "<i>|`"
    raw["date"] = HOSTILE
    path = write_raw(tmp_path / "runs", raw)
    record = replace(read_record(path), run_id="imagenet/<b>|[x](y)")
    report = build([record], {record.fingerprint}, {})
    text, page, readme = pages(report, tmp_path)
    for shown in (text, readme):
        assert "<script" not in shown
        assert "a\\|b \\$\\\\frac{\\$ \\*c\\* \\`d\\` \\[e\\](f)" in shown
        assert not re.search(r"(?m)^# h", shown)
        for table in re.findall(r"(?m)(?:^\|.*\n)+", shown + "\n"):
            bars = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
            assert len(bars) == 1  # no cell is split
    assert "<b>" not in text
    assert "<script" not in page
    assert "<b>|" not in page
    assert "&lt;script&gt;" in page
    assert "\x01" not in re.findall(r"(?s)<svg.*?</svg>", page)[0]


def test_the_block_of_the_readme_is_replaced():
    begin, end = markers("results")
    text = f"before\n{begin}\nold\n{end}\nafter\n"
    assert replace_block(text, "results", "new") == f"before\n{begin}\nnew\n{end}\nafter\n"
    for wrong in ("nothing", f"{end}{begin}", text + begin):
        with pytest.raises(ValueError, match="once each"):
            replace_block(wrong, "results", "new")


def test_data_that_differs_from_the_papers_is_a_deviation(tmp_path):
    fewer = "train: 12 images fewer (1,281,155 instead of 1,281,167)"
    final = {"val/top1": 75.0, "val/top5": 92.0}
    raw = raw_record("imagenet/sgd_100ep", final, scale="paper")
    report = reported(tmp_path / "a", raw | {"data_manifest": {"differences": [fewer]}})
    own = [one for one in report.deviations if one.id.startswith("data-")]
    assert [fewer in one.used for one in own] == [True]
    assert fewer in render_report(report)
    same = reported(tmp_path / "b", raw)
    assert not [one for one in same.deviations if one.id.startswith("data-")]


def test_the_last_weights_are_shown_beside_the_best(tmp_path):
    final = {"valid_64/ppl": 20.5, "test_64/ppl": 21.3}
    raw = raw_record("wikitext103/novograd", final, scale="paper")
    report = reported(tmp_path, raw | {"last": {"test_64/ppl": 22.4}})
    assert "test perplexity 22.40 with its last weights instead of its best" in render_report(
        report
    )
