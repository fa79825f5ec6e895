"""The real W&B client offline: its own reader finds each row once, whatever happened."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engine.records import to_json
from engine.rows import read_rows
from engine.wandb_runs import find_segments, read_offline
from tests.engine.test_tracking import ROOT


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
        arguments = [sys.executable, "-c", program, tmp_path, str(resume), str(last), end]
        done = subprocess.run(arguments, cwd=ROOT, timeout=600, check=False)
        assert done.returncode == (-signal.SIGKILL if end == "killed" else 0)
    assert len(find_segments(tmp_path)) == 3
    assert_each_row_once(tmp_path, 18)
