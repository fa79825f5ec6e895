"""W&B gets every row once and the true outcome, and never stops anything."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

import pytest

from engine import wandb_mirror
from engine.rows import read_rows
from engine.tracking import Artifact, Ending, Table
from engine.wandb_mirror import WandbTarget
from tests.engine.test_tracking import DONE, ROOT, open_tracker, track


class FakeRun:
    def __init__(self, fake):
        self.fake = fake
        self.id = fake.inits[-1]["id"]
        self.starting_step = len(fake.rows)  # what a server has of it
        self.summary: dict[str, object] = fake.summary
        self.url = "https://wandb.example/r1" if fake.modes[-1] == "online" else None

    def define_metric(self, name, step_metric, summary=None):
        self.fake.axes[name] = step_metric, summary

    def mark_preempting(self):
        self.fake.calls.append("preempting")

    def alert(self, title, text, level):
        self.fake.calls.append(f"alert {level}: {title}: {text}")

    def log_artifact(self, artifact):
        self.fake.may_fail("artifact")
        self.fake.calls.append(f"artifact {artifact.name}: {artifact.files}")

    def log(self, row, step, commit):
        self.fake.may_fail("log")
        assert commit
        self.fake.rows.append(row)

    def finish(self, exit_code):
        self.fake.may_fail("finish")
        self.fake.finished.append(exit_code)


class FakeWandb(types.ModuleType):
    """Stands for the module; `failing` names what raises."""

    def __init__(self):
        super().__init__("wandb")
        self.failing: set[str] = set()
        self.key = True
        self.rows: list[dict[str, float]] = []
        self.axes: dict[str, tuple[str, str | None]] = {}
        self.summary: dict[str, object] = {}
        self.calls: list[str] = []
        self.inits: list[dict[str, object]] = []
        self.finished: list[int] = []
        self.torn_down = 0

    def may_fail(self, what):
        if what in self.failing or "everything" in self.failing:
            raise ConnectionResetError(f"{what}: lost\nand more")

    def Settings(self, **given):
        self.may_fail("settings")
        return given

    def setup(self, given):
        self.may_fail("setup")

    def login(self, prompt, verify):
        assert not prompt
        assert not verify
        self.may_fail("login")
        return self.key

    def init(self, **given):
        self.inits.append(given)
        self.may_fail(f"init {given['mode']}")
        return FakeRun(self)

    def Artifact(self, name, type):
        files: list[str] = []

        def add_file(path):
            files.append(Path(path).name)

        return types.SimpleNamespace(name=name, type=type, files=files, add_file=add_file)

    def Table(self, columns, data, allow_mixed_types):
        assert allow_mixed_types
        return [columns, *data]

    def teardown(self):
        self.torn_down += 1
        self.may_fail("teardown")

    @property
    def modes(self):
        return [given["mode"] for given in self.inits]

    @property
    def steps(self):
        return [row["step"] for row in self.rows]


@pytest.fixture
def fake(monkeypatch):
    module = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(wandb_mirror, "monotonic", lambda: now[0])
    return now


class TestMirror:
    def test_has_the_rows_and_their_axis(self, tmp_path, fake):
        lines: list[str] = []
        track(tmp_path, range(1, 8), wandb="online", log=lines.append).finish(Ending("failed"))
        assert fake.rows == read_rows(tmp_path / "metrics.jsonl")
        assert fake.axes == {"*": ("step", None), "val/top1": ("step", "max,last")}
        assert fake.finished == [1]
        assert lines == 2 * ["W&B: https://wandb.example/r1"]
        (given,) = fake.inits
        wanted = {"mode": "online", "id": "r1", "resume": "allow", "dir": tmp_path}
        wanted |= {"group": "group", "job_type": "train", "tags": ("tag",), "notes": "notes"}
        assert given | wanted == given
        wanted = {"silent": True, "console": "off", "save_code": True, "init_timeout": 15}
        assert given["settings"] | wanted == given["settings"]

    @pytest.mark.parametrize(("key", "mode"), [(True, "online"), (False, "offline")])
    def test_auto_goes_by_the_key(self, tmp_path, fake, key, mode):
        fake.key = key
        lines: list[str] = []
        track(tmp_path, [1], wandb="auto", log=lines.append).finish(DONE)
        assert fake.modes == [mode]
        assert ("wandb sync" in lines[0]) == (mode == "offline")

    def test_goes_offline_where_online_fails(self, tmp_path, fake):
        fake.failing = {"init online", "teardown"}
        lines: list[str] = []
        track(tmp_path, [1, 2], wandb="online", log=lines.append).finish(DONE)
        assert fake.modes == ["online", "offline"]
        assert fake.torn_down == 1
        assert fake.steps == [1, 2]
        assert "wandb sync" in lines[0]
        assert "init online: lost" in lines[0]

    @pytest.mark.parametrize("mode", ["offline", "online", "auto"])
    @pytest.mark.parametrize("failing", ["everything", "settings", "login", "log", "finish"])
    def test_never_stops_anything(self, tmp_path, fake, mode, failing):
        fake.failing = {failing}
        lines: list[str] = []
        tracker = track(tmp_path, range(1, 11), wandb=mode, log=lines.append)
        tracker.sync()
        tracker.finish(Ending("failed"))
        assert len(read_rows(tmp_path / "metrics.jsonl")) == 12
        assert 1 <= len(lines) <= 2
        assert all("\n" not in line for line in lines)

    def test_is_done_without_where_it_is_not_installed(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "wandb", None)
        lines: list[str] = []
        track(tmp_path, [1, 2], wandb="auto", log=lines.append).finish(DONE)
        (line,) = lines
        assert "without" in line

    def test_comes_back_once_after_a_failure_in_mid_run(self, tmp_path, fake):
        lines: list[str] = []
        tracker = track(tmp_path, [1, 2], wandb="online", log=lines.append)
        fake.rows.clear()  # lost with the service
        fake.failing = {"log"}
        original = fake.init

        def recover(**given):
            fake.failing = set()
            return original(**given)

        fake.init = recover
        tracker.log({"step": 3})
        tracker.log({"step": 4})
        assert fake.steps == [1, 2, 3, 4]
        fake.failing = {"log"}
        tracker.log({"step": 5})
        tracker.log({"step": 6})
        tracker.finish(DONE)
        assert fake.modes == ["online", "offline"]
        assert len(lines) == 3

    def test_gets_no_row_twice_after_an_orderly_end(self, tmp_path, fake):
        track(tmp_path, range(1, 14), wandb="online").finish(DONE)
        track(tmp_path, range(11, 21), resume_step=10, wandb="online").finish(DONE)
        assert fake.rows == read_rows(tmp_path / "metrics.jsonl")

    @pytest.mark.parametrize("kept", [0, 3, 11, 12, 15])
    def test_gets_what_a_kill_has_lost_and_no_more(self, tmp_path, fake, kept):
        track(tmp_path, range(1, 14), wandb="online")
        del fake.rows[kept:]  # the rest died in its buffer
        track(tmp_path, range(11, 21), resume_step=10, wandb="online").finish(DONE)
        assert fake.rows == read_rows(tmp_path / "metrics.jsonl")

    def test_knows_offline_what_an_online_start_has_sent(self, tmp_path, fake, clock):
        """A step takes 10 s: W&B surely has rows that are more than 30 s old."""
        tracker = open_tracker(tmp_path, wandb="online")
        for step in range(1, 11):
            clock[0] += 10
            tracker.log({"step": step, "train/loss": 1 / step})
        fake.rows.clear()
        track(tmp_path, range(11, 14), resume_step=10, wandb="offline").finish(DONE)
        assert [row["step"] for row in fake.rows if "train/loss" in row] == [*range(7, 14)]

    def test_gets_the_rows_written_while_it_was_away(self, tmp_path, fake):
        track(tmp_path, range(1, 11)).finish(DONE)
        track(tmp_path, range(11, 21), resume_step=10, wandb="online").finish(DONE)
        assert fake.rows == read_rows(tmp_path / "metrics.jsonl")

    def test_gets_an_evaluation_that_a_stop_had_put_off(self, tmp_path, fake):
        tracker = open_tracker(tmp_path, wandb="online")
        tracker.log({"step": 10, "train/loss": 1.0})
        tracker.finish(DONE)
        tracker = open_tracker(tmp_path, 10, wandb="online")
        tracker.log({"step": 10, "val/top1": 0.5})
        tracker.finish(DONE)
        assert fake.rows == read_rows(tmp_path / "metrics.jsonl")

    def test_looks_at_offline_files_of_its_own_id_only(self, tmp_path, fake, monkeypatch):
        """An agent's trial has another one."""
        names = ("offline-run-1-r1", "offline-run-2-trial1")  # each with the row of this place
        monkeypatch.setattr(wandb_mirror, "find_segments", lambda folder: [*map(Path, names)])
        places = "offline_places"
        monkeypatch.setattr(wandb_mirror, places, lambda found: {int(p.name[12]) for p in found})
        track(tmp_path, range(1, 5), wandb="online").finish(DONE)
        assert fake.steps == [1, 3, 4]

    def test_starts_anew_with_the_run(self, tmp_path, fake):
        track(tmp_path, range(1, 5), wandb="online").finish(DONE)
        fake.rows.clear()  # somebody deleted the W&B run
        track(tmp_path, range(1, 3), wandb="online")  # and is killed
        track(tmp_path, range(2, 5), resume_step=1, wandb="online").finish(DONE)
        assert fake.steps == [1, 2, 3, 4]

    def test_is_not_imported_where_it_is_off(self, tmp_path):
        program = (
            "import sys\nfrom pathlib import Path\n"
            "from tests.engine.test_tracking import DONE, track\n"
            "track(Path(sys.argv[1]), [1, 2]).finish(DONE)\nassert 'wandb' not in sys.modules\n"
        )
        subprocess.run([sys.executable, "-c", program, tmp_path], cwd=ROOT, check=True)

    def test_has_four_modes(self):
        with pytest.raises(ValueError, match="'of'"):
            WandbTarget("of", "project", None)


class TestEnding:
    @pytest.mark.parametrize(
        ("kind", "code", "calls"),
        [
            ("finished", 0, []),
            ("failed", 1, []),
            ("preempted", 75, ["preempting"]),
            ("diverged", 5, ["alert ERROR: r1 diverged: the loss is nan"]),
        ],
    )
    def test_is_the_true_one(self, tmp_path, fake, kind, code, calls):
        summary = {"best/val/top1": 0.5, "best/step": 5}
        ending = Ending(kind, "the loss is nan", summary)
        track(tmp_path, range(1, 8), wandb="online").finish(ending)
        assert fake.finished == [code]
        assert fake.calls == calls
        assert fake.summary == {"outcome": kind} | summary

    def test_takes_the_artifacts_that_exist(self, tmp_path, fake):
        (tmp_path / "best.pt").touch()
        paths = (tmp_path / "best.pt", tmp_path / "missing.pt")
        kept = (Artifact("r1-model", "model", paths), Artifact("r1-none", "model", paths[1:]))
        ending = Ending("finished", artifacts=kept)
        track(tmp_path, [1], wandb="online").finish(ending)
        assert fake.calls == ["artifact r1-model: ['best.pt']"]

    def test_is_told_also_where_an_artifact_is_refused(self, tmp_path, fake):
        fake.failing = {"artifact"}
        lines: list[str] = []
        tracker = track(tmp_path, [1], wandb="online", log=lines.append)
        kept = (Artifact("r1-model", "model", (tmp_path / "metrics.jsonl",)),)
        tracker.finish(Ending("diverged", artifacts=kept))
        assert fake.finished == [5]
        assert lines[1] == "W&B: did not take r1-model (ConnectionResetError: artifact: lost)"

    def test_shows_tables(self, tmp_path, fake):
        table = Table("predictions/valid", ("id", "top5"), ((1, "cat"), (2, "dog")))
        track(tmp_path, [1], wandb="online").finish(Ending("finished", tables=(table,)))
        assert fake.summary["predictions/valid"] == [["id", "top5"], [1, "cat"], [2, "dog"]]
        assert fake.steps == [1]
