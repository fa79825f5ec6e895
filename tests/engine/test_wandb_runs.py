"""What W&B has of a run equals what the run wrote; reports are built without a network."""

from __future__ import annotations

import math
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest

from engine import wandb_runs
from engine.records import RunRecord, read_record
from engine.rows import read_rows
from engine.wandb_runs import (
    WandbProblem,
    WandbRun,
    build_report,
    find_segments,
    read_offline,
    read_project,
    read_records,
    require_login,
    save_report,
)
from scripts import report

ROOT = Path(__file__).parents[2]
ONE_START = """
import sys
from pathlib import Path
from engine.config import TrackingConfig
from engine.tracking import Ending, RunInfo, Tracker, make_mirrors
folder, first, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
config = {"optimizer": {"name": "sgd", "lr": 0.1}, "seed": 3}
info = RunInfo("a/b-s3", "a/b", "train", ("sgd",), "", config)
tracking = TrackingConfig(wandb="offline")
mirrors = lambda: make_mirrors(folder, tracking, info, print)
tracker = Tracker(folder, first, print, mirrors)
for step in range(first + 1, last + 1):
    place = {"step": step, "epoch": step / 10, "units": step * 10**6, "wall_s": step / 3}
    tracker.log(place | {"train/loss": 1 / step, "train/lr": 1e-9 * step})
    if step % 5 == 0:
        tracker.log(place | {"val/top1": step / 7, "val/ppl": float("inf")})
tracker.finish(Ending("finished"))
"""


@pytest.fixture(scope="module")
def offline(tmp_path_factory):
    """The folder of a run of two starts, as our tracker mirrors it to W&B, and it read back."""
    folder = tmp_path_factory.mktemp("offline")
    for first, last in ((0, 10), (10, 15)):
        command = [sys.executable, "-c", ONE_START, str(folder), str(first), str(last)]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    try:
        return folder, read_offline(folder)
    except WandbProblem as problem:
        pytest.skip(f"`wandb leet inspect` does not run here: {problem}")


class TestOffline:
    def test_run_equals_what_it_wrote(self, offline):
        folder, run = offline
        assert len(find_segments(folder)) == 2
        assert run.read() == read_rows(folder / "metrics.jsonl")
        assert len(run.read()) == 18
        assert math.isinf(run.read()[5]["val/ppl"])
        assert (run.wandb_id, run.run_id, run.status) == ("a-b-s3", "a/b-s3", "finished")
        assert run.config == {"optimizer": {"name": "sgd", "lr": 0.1}, "seed": 3}

    def test_segment_with_a_torn_end_is_unfinished(self, offline, tmp_path):
        folder, whole = offline
        (path,) = find_segments(folder)[0].glob("*.wandb")
        (tmp_path / path.name).write_bytes(path.read_bytes()[:-60])
        run = read_offline(tmp_path)
        assert run.status == "unfinished"
        assert 0 < len(run.read()) <= 12  # the first start's rows, perhaps without the last
        assert run.read() == whole.read()[: len(run.read())]

    def test_folder_without_a_run_is_named(self, tmp_path):
        with pytest.raises(WandbProblem, match=f"{tmp_path}: there is no offline-run"):
            read_offline(tmp_path)

    def test_failure_of_the_reader_is_told(self, tmp_path, monkeypatch):
        (tmp_path / "run-x.wandb").write_bytes(b"")
        program = "import sys; sys.exit('no such command')"
        monkeypatch.setattr(wandb_runs, "INSPECT", (sys.executable, "-c", program))
        with pytest.raises(WandbProblem, match="no such command"):
            read_offline(tmp_path)


class FakeWandb(types.ModuleType):
    """Stands for the module: a project with one run."""

    def __init__(self):
        super().__init__("wandb")
        self.key: object = True
        self.rows: object = [
            {"_step": 0, "_runtime": 1.5, "step": 1, "train/loss": 2.0, "val/top1": None},
            {"_step": 1, "step": 1, "val/top1": "NaN"},
            {"_step": 2, "note": "not ours"},
        ]

    def Settings(self, **given):
        return given

    def setup(self, given):
        assert given["silent"]

    def login(self, prompt, verify):
        assert not prompt
        if isinstance(self.key, Exception):
            raise self.key
        return self.key

    def Api(self, timeout):
        assert timeout < 60
        return self

    def runs(self, project):
        if project != "me/novograd":
            raise ValueError(f"Could not find project {project}\nand more")
        config = {"seed": 1, "_wandb": {}}
        run = types.SimpleNamespace(id="i", name="a/b-s1", config=config, state="running")
        run.scan_history = self.scan_history
        run.summary_metrics, run.url = {"outcome": "finished"}, "https://wandb.example/i"
        evaluation = types.SimpleNamespace(**vars(run) | {"config": config | {"evaluated": {}}})
        return [run, evaluation]

    def scan_history(self):
        if isinstance(self.rows, Exception):
            raise self.rows
        return self.rows


@pytest.fixture
def fake(monkeypatch):
    module = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


class TestProject:
    def test_has_runs_with_what_we_logged(self, fake):
        (run,) = read_project("me/novograd")
        assert (run.wandb_id, run.run_id, run.status) == ("i", "a/b-s1", "running")
        assert run.config == {"seed": 1}
        first, second = run.read()
        assert first == {"step": 1, "train/loss": 2.0}
        assert math.isnan(second["val/top1"])

    def test_needs_a_login(self, fake):
        fake.key = False
        with pytest.raises(WandbProblem, match="wandb login"):
            read_project("me/novograd")
        fake.key = ConnectionError("no route\nand more")
        with pytest.raises(WandbProblem, match=r"know the key: no route$"):
            require_login(verify=True)

    def test_that_is_missing_or_breaks_off_is_told_in_one_line(self, fake):
        with pytest.raises(WandbProblem, match=r"me/other can't be read: Could not .* me/other$"):
            read_project("me/other")
        (run,) = read_project("me/novograd")
        with pytest.raises(WandbProblem, match="me/novograd has no finished run of this suite"):
            read_records("me/novograd")
        fake.rows = TimeoutError()
        with pytest.raises(WandbProblem, match="a/b-s1 can't be read: TimeoutError"):
            run.read()


PUBLISHED = ROOT / "results" / "runs" / "imagenet"


def as_wandb_has_it(record):
    """A run as our mirror tells W&B about it."""
    derived = {"plan": record.plan, "parameters": record.parameters, "paper_row": {}}
    derived |= {"signature": record.signature, "fingerprint": record.fingerprint}
    derived["provenance"] = record.environment
    summary = {"outcome": "finished", "wall_s": record.wall_s, "best/step": 3, "best/epoch": 1.0}
    summary |= {f"final/{name}": value for name, value in record.final.items()}
    summary |= {f"best/{name}": value for name, value in record.best.items()}
    rows: dict[float, dict[str, float]] = {}
    for metric, curve in record.curves.items():
        for step, epoch, value in zip(*(curve[k] for k in ("step", "epoch", "value")), strict=True):
            kind = -step if metric.startswith("train/") else step
            rows.setdefault(kind, {"step": step, "epoch": epoch})[metric] = value
    config = record.config | derived
    read = lambda: list(rows.values())  # noqa: E731
    url = "https://wandb.example/x"
    return WandbRun("x", record.run_id, config, "finished", read, summary, url)


class TestRecords:
    def test_of_wandb_are_those_that_the_runs_left(self, monkeypatch, capsys):
        own = read_record(sorted(PUBLISHED.glob("novograd_100ep/*-s0.json"))[0])
        unfinished = as_wandb_has_it(own)
        unfinished.summary["outcome"] = "diverged"
        foreign = WandbRun("y", "y", {"lr": 1}, "finished", list)
        project = [as_wandb_has_it(own), unfinished, foreign]
        monkeypatch.setattr(wandb_runs, "read_project", lambda name: project)
        given: list[RunRecord] = []

        def write(outputs, fingerprints, root, others):
            given.extend(others)
            return "report.html"

        monkeypatch.setattr("analysis.pages.write_own_page", write)
        assert report.main(["--from-wandb", "me/novograd"]) == 0
        (found,) = given
        assert found.url == "https://wandb.example/x"
        # W&B is not told of these.
        assert found == replace(own, date="", meters={}, data_manifest={}, last={})

    def test_of_no_project_are_refused(self, monkeypatch, capsys):
        def refuse(name):
            raise WandbProblem("W&B: no key is configured")

        monkeypatch.setattr(wandb_runs, "read_project", refuse)
        assert report.main(["--from-wandb", "me/novograd"]) == 2
        assert capsys.readouterr().err == "W&B: no key is configured\n"
        with pytest.raises(SystemExit):
            report.main(["--from-wandb", "novograd"])
        assert "write ENTITY/PROJECT" in capsys.readouterr().err


class TestReport:
    def build(self):
        metrics = ["val/top1", "train/loss", "train/lr"]
        return build_report("/novograd", "t" * 200, ["a", "b"], metrics, "epoch", "optimizer.name")

    def test_groups_the_runs_as_asked(self):
        report = self.build()
        assert (report.entity, report.project, len(report.title)) == ("", "novograd", 128)
        (grid,) = report.blocks
        (runs,) = grid.runsets
        assert runs.groupby == ["config.optimizer.name"]
        assert runs.filters == "Metric(\"ID\") in ['a', 'b']"
        assert [panel.y for panel in grid.panels] == [["val/top1"], ["train/loss"], ["train/lr"]]
        spec = report._to_model().spec.model_dump_json(by_alias=True, exclude_none=True)
        for part in ('"optimizer.value.name"', '"xAxis":"epoch"', '"groupArea":"stddev"'):
            assert part in spec, spec

    def test_is_saved_only_with_a_login(self, fake):
        fake.default_entity = "me"
        runs = types.SimpleNamespace(entity="")
        block = types.SimpleNamespace(runsets=[runs])
        report = types.SimpleNamespace(url="https://wandb.example/r", entity="", blocks=[block])
        report.save = lambda: report
        assert save_report(report) == report.url  # type: ignore[arg-type]
        assert report.entity == runs.entity == "me"
        fake.key = False
        with pytest.raises(WandbProblem, match="no key is configured"):
            save_report(report)  # type: ignore[arg-type]
