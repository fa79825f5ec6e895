"""Predictions that runs kept: published in small, shown side by side, escaped."""

from __future__ import annotations

import json
from pathlib import Path

from analysis.examples import NOTHING, SHOWN, WIDTH
from analysis.pages import render_page, render_report
from analysis.report import build
from engine.records import read_own_records, read_records
from scripts.publish import main
from tests.analysis.fakes import raw_record, write_raw
from tests.analysis.test_publish import add, root  # noqa: F401

HEADLINE = ("sgd_100ep", "adamw_100ep", "novograd_100ep")
FINAL = {"val/top1": 60.0, "val/top5": 95.0}
LABELS = ("SGD, 100 epochs", "NovoGrad, 100 epochs")


def predictions(hypothesis: str, count: int = 50) -> str:
    rows = [
        {
            "index": i,
            "id": f"{i}",
            "file": f"val/<b>{i}",
            "reference": "x" * 999,
            "top5": [["a", 1]],
        }
        | {"hypothesis": hypothesis}
        for i in range(count)
    ]
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_a_few_are_published_with_the_record_of_a_row(root, capsys):  # noqa: F811
    run_id = add(root)["run_id"]
    folder = root / "outputs" / run_id
    assert main([], root) == 0
    assert not list((root / "results").rglob("*.jsonl"))
    for split in ("train", "val"):
        (folder / f"predictions-{split}.jsonl").write_text(predictions(split))
    assert main([], root) == 0
    assert capsys.readouterr().out.endswith("already published, now with predictions\n")
    (path,) = (root / "results").rglob("*.predictions.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["index"] for row in rows] == list(range(SHOWN))
    assert {row["split"] for row in rows} == {row["hypothesis"] for row in rows} == {"val"}
    assert {len(row["reference"]) for row in rows} == {WIDTH}
    assert len(read_records(root / "results" / "runs")) == 1  # they are no records
    add(root, final=FINAL | {"val/top1": 61.0})
    for file in folder.glob("predictions-*"):
        file.unlink()
    assert main(["--replace"], root) == 0
    assert not path.exists()  # of other numbers


def fake_runs(folder: Path, name: str) -> None:
    for experiment in HEADLINE:
        raw = raw_record(f"imagenet/{experiment}", FINAL, scale="mini")
        run = raw["run_id"]
        write_raw(folder, raw, f"{run}/record.json" if name == "own" else f"{run}.json")
        if experiment == "adamw_100ep":
            continue  # it kept none
        kept = "/predictions-val.jsonl" if name == "own" else ".predictions.jsonl"
        path = folder / f"{run}{kept}"
        text = predictions("<script>alert(1)</script>" if experiment == "sgd_100ep" else "")
        path.write_text(text.replace('{"index"', '{"split": "val", "index"'))


def test_the_report_shows_the_same_examples_of_every_run(tmp_path):
    current = {f"imagenet_{name}mini" for name in HEADLINE}
    fake_runs(tmp_path / "own", "own")
    own = read_own_records(tmp_path / "own")
    (view,) = build([], current, {}, tmp_path, own).examples
    assert (view.is_own, view.split, view.labels) == (True, "val", LABELS)
    fake_runs(tmp_path / "runs", "published")
    report = build(read_records(tmp_path / "runs"), current, {}, tmp_path, own)
    (view,) = report.examples
    assert not view.is_own
    assert len(view.examples) == SHOWN
    assert view.examples[0][2:] == ("<script>alert(1)</script>", NOTHING)
    page = render_page(report, tmp_path, tmp_path)
    assert "What the models say" in page
    assert "&lt;script&gt;alert(1)" in page
    assert "<script>" not in page
    assert "val/<b>0" not in page
    text = render_report(report, tmp_path)
    assert "What the models say" in text
    assert "<script>" not in text
