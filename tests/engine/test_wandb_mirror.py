"""W&B gets every row once and the true outcome, and never stops anything."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest

from engine import wandb_mirror
from engine.records import to_json
from engine.rows import read_rows
from engine.tracking import Artifact, Ending, Table
from engine.wandb_mirror import WandbTarget
from engine.wandb_runs import find_segments, read_offline
from tests.engine.test_tracking import DONE, ROOT, open_tracker, track


class FakeRun:
    def __init__(self, fake):
        self.fake = fake
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


def offline_run(folder, *, fail):
    """Runs a tracker with the real W&B and no key in a process of its own."""
    program = (
        "import os, sys\nfrom pathlib import Path\n"
        "from engine.tracking import Ending, Table\n"
        "from tests.engine.test_tracking import track\n"
        "tracker = track(Path(sys.argv[1]), range(1, 8), wandb='auto')\n"
        f"{fail}"
        "table = Table('predictions/valid', ('id', 'loss'), ((1, 0.5), (2, 'NaN'), (3, None)))\n"
        "tracker.log({'step': 8, 'train/loss': float('nan')})\n"
        "tracker.finish(Ending('finished', tables=(table,)))\n"
    )
    kept = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_")}
    hidden = {"HOME": folder, "NETRC": folder / "no-netrc", "WANDB_CONFIG_DIR": folder}
    return subprocess.run(
        [sys.executable, "-c", program, folder],
        cwd=ROOT,
        env=kept | hidden,
        check=True,
        capture_output=True,
        text=True,
        timeout=600,
    )


def inspect(folder):
    """Records that W&B's own reader finds in an offline run."""
    command = [Path(sys.executable).parent / "wandb", "leet", "inspect", "--json", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if "No such command" in done.stderr:
        pytest.skip("this W&B has no `wandb leet inspect`, which reads offline runs")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_a_real_offline_run_can_be_read_back(tmp_path):
    done = offline_run(tmp_path, fail="")
    assert done.stderr == ""
    assert done.stdout.count("\n") == 2
    assert "no key is configured" in done.stdout
    (folder,) = (tmp_path / "wandb").glob("offline-run-*-r1")
    records = inspect(folder)
    history = [r["history"]["item"] for r in records if r["type"] == "history"]
    rows = read_rows(tmp_path / "metrics.jsonl")
    (shown,) = (folder / "files" / "media" / "table").rglob("*.table.json")
    table = json.loads(shown.read_text())
    assert table == {"columns": ["id", "loss"], "data": [[1, 0.5], [2, "NaN"], [3, None]]}
    assert [h["step"] for h in history] == [r["step"] for r in rows] == [1, 2, 3, 4, 5, 5, 6, 7, 8]
    assert [h.get("train/loss") for h in history][:-1] == [r.get("train/loss") for r in rows][:-1]
    assert history[-1]["train/loss"] == "NaN"
    assert to_json(read_offline(tmp_path).read()) == to_json(rows)  # a table is no row
    (run,) = (r["run"] for r in records if r["type"] == "run")
    assert run["run_id"] == "r1"
    assert run["run_group"] == "group"
    assert run["tags"] == ["tag"]
    assert run["config"]["update"]["lr"] == 0.01
    metrics = [r["metric"] for r in records if r["type"] == "metric"]
    assert [(m.get("glob_name"), m["step_metric"]) for m in metrics] == [
        ("*", "step"),
        (None, "step"),
    ]
    (exit_,) = (r["exit"] for r in records if r["type"] == "exit")
    assert not exit_.get("exit_code")


@pytest.mark.skipif(not Path("/proc").exists(), reason="finds W&B's service in /proc")
def test_the_death_of_the_real_service_is_survived(tmp_path):
    fail = (
        "import signal\n"
        "children = Path(f'/proc/self/task/{os.getpid()}/children').read_text().split()\n"
        "(service,) = [int(c) for c in children\n"
        "    if 'wandb-core' in Path(f'/proc/{c}/cmdline').read_text()]\n"
        "os.kill(service, signal.SIGKILL)\nos.waitpid(service, 0)\n"
    )
    done = offline_run(tmp_path, fail=fail)
    assert done.stdout.count("\n") == 3
    assert len(find_segments(tmp_path)) == 2
    assert_each_row_once(tmp_path, 9)


def assert_each_row_once(folder, rows):
    """What W&B's own reader finds in all offline files of a run, in the order of the places."""
    records = [record for segment in find_segments(folder) for record in inspect(segment)]
    items = [record["history"]["item"] for record in records if record["type"] == "history"]
    found = sorted(items, key=lambda item: item["_step"])
    assert [item["_step"] for item in found] == list(range(rows))
    written = read_rows(folder / "metrics.jsonl")
    kept = [{k: v for k, v in item.items() if not k.startswith("_")} for item in found]
    assert to_json(kept) == to_json(written)


@pytest.mark.slow
def test_after_kills_and_resumes_the_real_files_have_each_row_once(tmp_path):
    """Stopped at step 7, killed at 12 after resuming at 4, finished after resuming at 10."""
    program = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom engine.tracking import Ending\n"
        "from tests.engine.test_tracking import track\n"
        "resume, last, end = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]\n"
        "tracker = track(Path(sys.argv[1]), range(resume + 1, last + 1), resume, 'offline')\n"
        "if end == 'killed':\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "tracker.finish(Ending(end))\n"
    )
    for resume, last, end in ((0, 7, "preempted"), (4, 12, "killed"), (10, 15, "finished")):
        words = [sys.executable, "-c", program, tmp_path, str(resume), str(last), end]
        done = subprocess.run(words, cwd=ROOT, timeout=600, check=False)
        assert done.returncode == (-signal.SIGKILL if end == "killed" else 0)
    assert len(find_segments(tmp_path)) == 3
    assert_each_row_once(tmp_path, 18)


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
        ending = Ending("finished", artifacts=(Artifact("r1-model", "model", paths),))
        track(tmp_path, [1], wandb="online").finish(ending)
        assert fake.calls == ["artifact r1-model: ['best.pt']"]

    def test_is_told_also_where_an_artifact_is_refused(self, tmp_path, fake):
        fake.failing = {"artifact"}
        lines: list[str] = []
        tracker = track(tmp_path, [1], wandb="online", log=lines.append)
        tracker.finish(Ending("diverged", artifacts=(Artifact("r1-model", "model", ()),)))
        assert fake.finished == [5]
        assert lines[1] == "W&B: did not take r1-model (ConnectionResetError: artifact: lost)"

    def test_shows_tables(self, tmp_path, fake):
        table = Table("predictions/valid", ("id", "top5"), ((1, "cat"), (2, "dog")))
        track(tmp_path, [1], wandb="online").finish(Ending("finished", tables=(table,)))
        assert fake.summary["predictions/valid"] == [["id", "top5"], [1, "cat"], [2, "dog"]]
        assert fake.steps == [1]
