"""metrics.jsonl is that of an undisturbed run whatever happened; W&B never stops anything."""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest

from engine import tracking
from engine.tracking import Tracker, WandbSettings, read_rows

ROOT = Path(__file__).parent.parent.parent


def settings(mode):
    return WandbSettings(mode, "novograd", None, "r1", "group", "name", ("tag",), {"lr": 0.01})


OFF = settings("off")


def track(folder, steps, resume_step=0, wandb=OFF, log=print):
    tracker = Tracker(folder, wandb, resume_step, log)
    for step in steps:
        tracker.log({"step": step, "train/loss": 1 / step})
        if step % 5 == 0:
            tracker.log({"step": step, "val/top1": step / 100})
    return tracker


class TestRows:
    def test_are_one_line_each_in_the_given_order_at_once(self, tmp_path):
        tracker = Tracker(tmp_path, OFF, 0, print)
        tracker.log({"step": 1, "z": 2.5, "a": 3})
        assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1, "z": 2.5, "a": 3}\n'
        tracker.finish()
        tracker.finish()

    def test_keep_nan_and_infinities_in_strict_json(self, tmp_path):
        tracker = Tracker(tmp_path, OFF, 0, print)
        tracker.log({"step": 1, "a": math.nan, "b": math.inf, "c": -math.inf, "d": 1e300})
        tracker.finish()
        text = (tmp_path / "metrics.jsonl").read_text()
        assert '"a": "NaN", "b": "Infinity", "c": "-Infinity"' in text
        (row,) = read_rows(tmp_path / "metrics.jsonl")
        assert math.isnan(row.pop("a"))
        assert row == {"step": 1, "b": math.inf, "c": -math.inf, "d": 1e300}

    def test_need_a_step(self, tmp_path):
        tracker = Tracker(tmp_path, OFF, 0, print)
        with pytest.raises(KeyError, match="step"):
            tracker.log({"train/loss": 1.0})
        tracker.finish()
        assert read_rows(tmp_path / "metrics.jsonl") == []

    def test_are_read_without_a_torn_last_line(self, tmp_path):
        path = tmp_path / "metrics.jsonl"
        whole = b'{"step": 1, "x": 0.5}\n{"step": 2, "x": "NaN"}\n'
        for length in range(len(whole) + 1):
            path.write_bytes(whole[:length])
            # A line that lacks only its end is a whole row.
            assert len(read_rows(path)) == (length >= 21) + (length >= len(whole) - 1)

    def test_on_a_full_disk_say_which_file_it_is(self, tmp_path):
        tracker = track(tmp_path, range(1, 5))
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (50, limits[1]))
            for write in (lambda: tracker.log({"step": 5}), tracker.finish):
                with pytest.raises(OSError, match=r"File too large: '.*/metrics\.jsonl'"):
                    write()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        tracker.finish()
        assert read_rows(tmp_path / "metrics.jsonl")[-1] == {"step": 5}

    @pytest.mark.parametrize("bad", [b"{", b"\x00\x00", b"\xff", b"[1]", b'{"x": 1}', b""])
    def test_are_not_read_past_damage(self, tmp_path, bad):
        path = tmp_path / "metrics.jsonl"
        path.write_bytes(b'{"step": 1}\n' + bad + b'\n{"step": 3}\n')
        with pytest.raises(ValueError, match="line 2"):
            read_rows(path)


class TestResume:
    def undisturbed(self, tmp_path):
        track(tmp_path / "whole", range(1, 21)).finish()
        return (tmp_path / "whole" / "metrics.jsonl").read_bytes()

    @pytest.mark.parametrize("torn", [b"", b'{"step": 14, "tra', b"\x00" * 40])
    def test_gives_the_file_of_an_undisturbed_run(self, tmp_path, torn):
        track(tmp_path, range(1, 14)).finish()
        with (tmp_path / "metrics.jsonl").open("ab") as file:
            file.write(torn)
        track(tmp_path, range(11, 21), resume_step=10).finish()
        assert (tmp_path / "metrics.jsonl").read_bytes() == self.undisturbed(tmp_path)
        assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["metrics.jsonl"]

    def test_completes_a_line_that_lacks_only_its_end(self, tmp_path):
        track(tmp_path, range(1, 11)).finish()
        path = tmp_path / "metrics.jsonl"
        path.write_bytes(path.read_bytes()[:-1])
        track(tmp_path, range(11, 21), resume_step=10).finish()
        assert path.read_bytes() == self.undisturbed(tmp_path)

    def test_from_nothing_starts_an_empty_file(self, tmp_path):
        tracker = Tracker(tmp_path, OFF, 0, print)
        tracker.log({"step": 0, "val/top1": 0.1})
        tracker.finish()
        track(tmp_path, range(1, 21), resume_step=0).finish()
        assert (tmp_path / "metrics.jsonl").read_bytes() == self.undisturbed(tmp_path)

    def test_leaves_a_whole_file_alone(self, tmp_path):
        track(tmp_path, range(1, 11)).finish()
        inode = (tmp_path / "metrics.jsonl").stat().st_ino
        track(tmp_path, [], resume_step=10).finish()
        assert (tmp_path / "metrics.jsonl").stat().st_ino == inode

    def test_tells_of_damage_in_the_middle(self, tmp_path):
        (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n\x00\n{"step": 3}\n')
        lines: list[str] = []
        track(tmp_path, [], resume_step=3, log=lines.append).finish()
        assert len(read_rows(tmp_path / "metrics.jsonl")) == 1
        (line,) = lines
        assert "line 2" in line

    def test_after_a_kill(self, tmp_path):
        """Every row that was logged is there, however the process ends."""
        program = (
            "import os, signal, sys\nfrom pathlib import Path\n"
            "from tests.engine.test_tracking import track\n"
            "track(Path(sys.argv[1]), range(1, 14))\nos.kill(os.getpid(), signal.SIGKILL)\n"
        )
        done = subprocess.run([sys.executable, "-c", program, tmp_path], cwd=ROOT, check=False)
        assert done.returncode == -signal.SIGKILL
        assert [row["step"] for row in read_rows(tmp_path / "metrics.jsonl")][-1] == 13


class FakeRun:
    def __init__(self, fake):
        self.fake = fake

    def define_metric(self, name, step_metric):
        self.fake.axes[name] = step_metric

    def log(self, row):
        self.fake.may_fail("log")
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
        self.axes: dict[str, str] = {}
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
    monkeypatch.setattr(tracking, "monotonic", lambda: now[0])
    return now


class TestMirror:
    def test_has_the_rows_and_their_axis(self, tmp_path, fake):
        lines: list[str] = []
        track(tmp_path, range(1, 8), wandb=settings("online"), log=lines.append).finish(3)
        assert fake.rows == read_rows(tmp_path / "metrics.jsonl")
        assert fake.axes == {"*": "step"}
        assert fake.finished == [3]
        assert not lines
        (given,) = fake.inits
        wanted = {"mode": "online", "id": "r1", "resume": "allow", "dir": tmp_path}
        assert given | wanted == given
        wanted = {"silent": True, "console": "off", "init_timeout": 15}
        assert given["settings"] | wanted == given["settings"]

    @pytest.mark.parametrize(("key", "mode"), [(True, "online"), (False, "offline")])
    def test_auto_goes_by_the_key(self, tmp_path, fake, key, mode):
        fake.key = key
        lines: list[str] = []
        track(tmp_path, [1], wandb=settings("auto"), log=lines.append).finish()
        assert fake.modes == [mode]
        assert len(lines) == (mode == "offline")

    def test_goes_offline_where_online_fails(self, tmp_path, fake):
        fake.failing = {"init online", "teardown"}
        lines: list[str] = []
        track(tmp_path, [1, 2], wandb=settings("online"), log=lines.append).finish()
        assert fake.modes == ["online", "offline"]
        assert fake.torn_down == 1
        assert fake.steps == [1, 2]
        (line,) = lines
        assert "wandb sync" in line

    @pytest.mark.parametrize("mode", ["offline", "online", "auto"])
    @pytest.mark.parametrize("failing", ["everything", "settings", "login", "log", "finish"])
    def test_never_stops_anything(self, tmp_path, fake, mode, failing):
        fake.failing = {failing}
        lines: list[str] = []
        tracker = track(tmp_path, range(1, 11), wandb=settings(mode), log=lines.append)
        tracker.sync()
        tracker.finish(1)
        assert len(read_rows(tmp_path / "metrics.jsonl")) == 12
        assert len(lines) == (0 if (mode, failing) == ("offline", "login") else 1)
        assert all("\n" not in line for line in lines)

    def test_is_done_without_where_it_is_not_installed(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "wandb", None)
        lines: list[str] = []
        track(tmp_path, [1, 2], wandb=settings("auto"), log=lines.append).finish()
        (line,) = lines
        assert "without" in line

    def test_comes_back_once_after_a_failure_in_mid_run(self, tmp_path, fake):
        lines: list[str] = []
        tracker = track(tmp_path, [1, 2], wandb=settings("online"), log=lines.append)
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
        tracker.finish()
        assert fake.modes == ["online", "offline"]
        assert len(lines) == 2

    def test_gets_no_row_twice_after_an_orderly_end(self, tmp_path, fake):
        track(tmp_path, range(1, 14), wandb=settings("online")).finish()
        track(tmp_path, range(11, 21), resume_step=10, wandb=settings("online")).finish()
        assert fake.rows == read_rows(tmp_path / "metrics.jsonl")

    def test_gets_what_a_kill_may_have_lost(self, tmp_path, fake, clock):
        """A step takes 10 s: W&B surely has those that are more than 30 s old."""
        tracker = Tracker(tmp_path, settings("online"), 0, print)
        for step in range(1, 14):
            clock[0] += 10
            tracker.log({"step": step, "train/loss": 1 / step})
        del fake.rows[11:]  # the rest died in its buffer
        track(tmp_path, range(11, 21), resume_step=10, wandb=settings("online")).finish()
        trained = [row["step"] for row in fake.rows if "train/loss" in row]
        assert trained == [*range(1, 12), *range(10, 21)]

    def test_gets_the_rows_written_while_it_was_away(self, tmp_path, fake):
        track(tmp_path, range(1, 11)).finish()
        track(tmp_path, range(11, 21), resume_step=10, wandb=settings("online")).finish()
        assert fake.rows == read_rows(tmp_path / "metrics.jsonl")

    def test_gets_an_evaluation_that_a_stop_had_put_off(self, tmp_path, fake):
        tracker = Tracker(tmp_path, settings("online"), 0, print)
        tracker.log({"step": 10, "train/loss": 1.0})
        tracker.finish()
        tracker = Tracker(tmp_path, settings("online"), 10, print)
        tracker.log({"step": 10, "val/top1": 0.5})
        tracker.finish()
        assert fake.rows == read_rows(tmp_path / "metrics.jsonl")

    def test_starts_anew_with_the_run(self, tmp_path, fake):
        track(tmp_path, range(1, 5), wandb=settings("online")).finish()
        fake.rows.clear()
        track(tmp_path, range(1, 3), wandb=settings("online"))  # and is killed
        track(tmp_path, range(2, 5), resume_step=1, wandb=settings("online")).finish()
        assert fake.steps == [1, 2, 1, 2, 3, 4]

    def test_is_not_imported_where_it_is_off(self, tmp_path):
        program = (
            "import sys\nfrom pathlib import Path\nfrom tests.engine.test_tracking import track\n"
            "track(Path(sys.argv[1]), [1, 2]).finish()\nassert 'wandb' not in sys.modules\n"
        )
        subprocess.run([sys.executable, "-c", program, tmp_path], cwd=ROOT, check=True)

    def test_has_four_modes(self):
        with pytest.raises(ValueError, match="'of'"):
            settings("of")


def offline_run(folder, *, fail):
    """Runs a tracker with the real W&B and no key in a process of its own."""
    program = (
        "import os, sys\nfrom pathlib import Path\n"
        "from tests.engine.test_tracking import settings, track\n"
        "tracker = track(Path(sys.argv[1]), range(1, 8), wandb=settings('auto'))\n"
        f"{fail}"
        "tracker.log({'step': 8, 'train/loss': float('nan')})\ntracker.finish()\n"
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
        timeout=60,
    )


def inspect(folder):
    """Records that W&B's own reader finds in an offline run."""
    command = [Path(sys.executable).parent / "wandb", "leet", "inspect", "--json", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if "No such command" in done.stderr:
        pytest.skip("this W&B has no `wandb leet inspect`, which reads offline runs")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_a_real_offline_run_can_be_read_back(tmp_path):
    done = offline_run(tmp_path, fail="")
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1
    assert "no key is configured" in done.stdout
    (folder,) = (tmp_path / "wandb").glob("offline-run-*-r1")
    records = inspect(folder)
    history = [r["history"]["item"] for r in records if r["type"] == "history"]
    rows = read_rows(tmp_path / "metrics.jsonl")
    assert [h["step"] for h in history] == [r["step"] for r in rows] == [1, 2, 3, 4, 5, 5, 6, 7, 8]
    assert [h.get("train/loss") for h in history][:-1] == [r.get("train/loss") for r in rows][:-1]
    assert history[-1]["train/loss"] == "NaN"
    (run,) = (r["run"] for r in records if r["type"] == "run")
    assert run["run_id"] == "r1"
    assert run["run_group"] == "group"
    assert run["tags"] == ["tag"]
    assert run["config"]["update"]["lr"] == 0.01
    metrics = [r["metric"] for r in records if r["type"] == "metric"]
    assert [(m["glob_name"], m["step_metric"]) for m in metrics] == [("*", "step")]


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
    assert done.stdout.count("\n") == 2
    newest = max((tmp_path / "wandb").glob("offline-run-*-r1*"), key=lambda p: p.stat().st_mtime)
    history = [r for r in inspect(newest) if r["type"] == "history"]
    assert len(history) == len(read_rows(tmp_path / "metrics.jsonl")) == 9
