"""`python -m scripts.report`: files that are stale or not, and only runs of current recipes."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.pages import markers
from analysis.unchanged import STAMP
from launch.run_spec import make_run_spec, recipe_fingerprints
from scripts.report import main
from tests.analysis.fakes import raw_record, write_raw
from tests.analysis.test_report import visible

WRITTEN = (
    "results/STUDY.md",
    "results/STUDY-short.md",
    "results/REPORT.md",
    "results/report.html",
    "docs/performance.md",
    "docs/scaling.md",
    "README.md",
)
EXPERIMENT = "imagenet/sgd_100ep"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    blocks = "\n".join(mark for name in ("results", "performance") for mark in markers(name))
    (tmp_path / "README.md").write_text(f"# A suite\n\n{blocks}\n\nThe end.\n")
    return tmp_path


def add(root: Path, top1: float, fingerprint: str, **changes: object) -> None:
    final = {"val/top1": top1, "val/top5": 95.0}
    raw = raw_record(EXPERIMENT, final, fingerprint=fingerprint, **changes)
    write_raw(root / "results" / "runs", raw)


def test_written_then_up_to_date_then_stale(root, capsys):
    assert main(["--check"], root) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"{name} is stale: run make report" for name in WRITTEN
    ]
    assert not (root / "results").exists()
    assert main([], root) == 0
    assert [f"wrote {name}" for name in WRITTEN] == capsys.readouterr().out.splitlines()
    before = {name: (root / name).read_bytes() for name in WRITTEN}
    assert main(["--check"], root) == 0
    assert main([], root) == 0
    assert {name: (root / name).read_bytes() for name in WRITTEN} == before
    assert "The end." in before["README.md"].decode()
    assert list((root / "outputs").iterdir()) == [root / STAMP]
    (root / "results" / "REPORT.md").write_text("by hand")
    capsys.readouterr()
    assert main(["--check"], root) == 1
    assert capsys.readouterr().err == "results/REPORT.md is stale: run make report\n"


def test_only_runs_of_current_recipes_are_shown(root):
    paper, mini = (recipe_fingerprints([(EXPERIMENT, scale)]).pop() for scale in ("paper", "mini"))
    words = [f"experiment={EXPERIMENT}", "scale=paper"]
    assert make_run_spec(words, need_data=False).fingerprint == paper
    changed = make_run_spec([*words, "optimizer.lr=9"], need_data=False).fingerprint
    assert len({paper, mini, changed}) == 3
    add(root, 76.50, paper)
    add(root, 11.11, changed)
    add(root, 61.00, mini, scale="mini")
    assert main([], root) == 0
    for name in ("results/REPORT.md", "results/report.html", "README.md"):
        text = visible((root / name).read_text())
        assert "76.50 / 95.00 (n=1)" in text
        assert "61.00 / 95.00 (n=1)" in text
        assert "11.11" not in text
    assert "1 further record is" in (root / "results" / "REPORT.md").read_text()


def test_own_runs_are_in_a_page_of_their_own(root, capsys):
    (mini,) = recipe_fingerprints([(EXPERIMENT, "mini")])
    raw = raw_record(EXPERIMENT, {"val/top1": 77.77, "val/top5": 1.0}, fingerprint=mini)
    raw |= {"scale": "mini"}
    write_raw(root / "outputs", raw, f"{raw['run_id']}/record.json")
    assert main([], root) == 0
    assert main(["--check"], root) == 0  # an own run makes nothing stale
    assert all("77.77" not in (root / name).read_text() for name in WRITTEN)
    assert main(["--own"], root) == 0
    assert f"wrote {root / 'outputs' / 'report.html'}" in capsys.readouterr().out
    page = visible((root / "outputs" / "report.html").read_text())
    assert "not published, mini: imagenet" in page
    assert "77.77 / 1.00 (n=1)" in page
    assert main(["--own", "--outputs", str(root / "results")], root) == 2
    assert "results/ has published runs only" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "text", "complaint"),
    [
        ("README.md", "no markers", "README.md: needs <!-- results:begin -->"),
        ("results/runs/x.json", "{}", "x.json is not a run record"),
        ("results/studies/study/remarks.yaml", "abuot: x", "remarks.yaml"),
    ],
)
def test_an_unusable_file_is_named(root, capsys, file, text, complaint):
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text(text)
    assert main([], root) == 2
    assert complaint in capsys.readouterr().err
    assert not (root / "results" / "REPORT.md").exists()
