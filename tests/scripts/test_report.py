"""`python -m scripts.report`: its files, stale or not, and only runs of current recipes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from results.markdown import BEGIN, END
from results.page import SPACE
from scripts import launch, report
from tests.results.made_up import record, write_study

WRITTEN = ("results/REPORT.md", "results/report.html", "results/STUDY.md", "README.md")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "README.md").write_text(f"# A house\n\n{BEGIN}\n{END}\n\nThe end.\n")
    return tmp_path


def add(root: Path, experiment: str, top1: float, fingerprint: str, **more: object) -> None:
    final = {"val/top1": top1, "val/top5": 95.0}
    one = record(experiment, final, fingerprint=fingerprint, **more)
    path = root / "results" / "runs" / f"{one['run_id']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(one))


def test_written_then_up_to_date_then_stale(root, capsys):
    assert report.main(["--check"], root) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"{name} is stale: run make report" for name in WRITTEN
    ]
    assert not (root / "results").exists()
    assert report.main([], root) == 0
    assert [f"wrote {name}" for name in WRITTEN] == capsys.readouterr().out.splitlines()
    before = {name: (root / name).read_bytes() for name in WRITTEN}
    assert report.main(["--check"], root) == 0
    assert report.main([], root) == 0
    assert {name: (root / name).read_bytes() for name in WRITTEN} == before
    assert "The end." in before["README.md"].decode()
    (root / "results" / "REPORT.md").write_text("by hand")
    capsys.readouterr()
    assert report.main(["--check"], root) == 1
    assert capsys.readouterr().err == "results/REPORT.md is stale: run make report\n"
    write_study(root / "results" / "studies")
    assert report.main(["--check"], root) == 1
    assert "results/report.html is stale" in capsys.readouterr().err


def test_only_runs_of_the_recipe_as_it_is_now(root):
    words = ["experiment=imagenet/sgd_100ep"]
    paper = launch.prepare([*words, "scale=paper"], need_data=False).fingerprint
    mini = launch.prepare([*words, "scale=mini"], need_data=False).fingerprint
    changed = launch.prepare([*words, "scale=paper", "optimizer.lr=9"], need_data=False).fingerprint
    assert len({paper, mini, changed}) == 3
    add(root, "imagenet/sgd_100ep", 76.50, paper)
    add(root, "imagenet/sgd_100ep", 11.11, changed)
    add(root, "imagenet/sgd_100ep", 61.00, mini, scale="mini")
    assert report.main([], root) == 0
    for name in set(WRITTEN) - {"results/STUDY.md"}:
        text = (root / name).read_text().replace(SPACE, " ")
        assert "76.50 / 95.00 (n=1)" in text
        assert "61.00 / 95.00 (n=1)" in text
        assert "11.11" not in text
    assert "1 further record is" in (root / "results" / "REPORT.md").read_text()


@pytest.mark.parametrize(
    ("file", "text", "complaint"),
    [
        ("README.md", "no marks", "README.md: needs <!-- results:begin -->"),
        ("results/runs/x.json", "{}", "x.json: not a record"),
        ("results/studies/warmup.json", "{}", "warmup.json: unknown keys [], missing"),
    ],
)
def test_what_can_not_be_used_is_named(root, capsys, file, text, complaint):
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text(text)
    assert report.main([], root) == 2
    assert complaint in capsys.readouterr().err
    assert not (root / "results" / "REPORT.md").exists()
