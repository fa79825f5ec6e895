"""A table with one command: runs in parallel, resumable, failures reported."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from analysis.reproduction import chosen_tables, experiments_of
from launch import slurm
from launch.compose import options_of
from launch.experiment_jobs import make_job
from scripts import reproduce
from tests.launch.sweeping import give_orders

ROOT = Path(__file__).parents[2]
ROWS = ("novograd_32k_90ep_warmup", "novograd_8k_90ep", "novograd_32k_90ep")


def command(folder: Path, *arguments: str) -> list[str]:
    """Table 2 with three runs of a few steps each."""
    paths = [f"paths.{name}={folder / name}" for name in ("data", "outputs")]
    few = ["scale=smoke", "hardware=cpu", "budget='6 steps'", "schedule.warmup='2 steps'"]
    base = [sys.executable, "-m", "scripts.reproduce", "imagenet", "--tables", "2"]
    return [*base, *few, *paths, *arguments]


def records(folder: Path) -> dict[str, Path]:
    return {
        path.parent.name.rsplit("-", 2)[0]: path
        for path in folder.glob("outputs/imagenet/*/record.json")
    }


def test_runs_after_a_failed_one_are_made_and_a_rerun_makes_what_is_missing(
    tmp_path, monkeypatch, capsys
):
    arguments = command(tmp_path)[3:]
    jobs = [make_job(f"imagenet/{row}", 0, arguments[3:]) for row in ROWS]
    give_orders(monkeypatch, tmp_path, jobs, {"novograd_8k_90ep": {"do": "fail"}})
    assert reproduce.main(arguments) == 1
    first = capsys.readouterr()
    assert "Table 2 at scale smoke: 3 runs, 0 done, 3 to do" in first.out
    assert "imagenet/novograd_8k_90ep: failed; see" in first.err
    assert set(records(tmp_path)) == set(ROWS) - {"novograd_8k_90ep"}
    before = {path: path.stat().st_mtime_ns for path in records(tmp_path).values()}

    for state in tmp_path.glob("outputs/imagenet/novograd_8k_90ep-*/state"):
        state.unlink()
    give_orders(monkeypatch, tmp_path, jobs)
    assert reproduce.main(arguments) == 0
    second = capsys.readouterr().out
    assert "3 runs, 2 done, 1 to do" in second
    assert set(records(tmp_path)) == set(ROWS)
    assert {path: path.stat().st_mtime_ns for path in before} == before

    (line,) = (x for x in second.splitlines() if "table2/novograd-32k-warmup" in x)
    own = json.loads(records(tmp_path)["novograd_32k_90ep_warmup"].read_text())
    assert line.split()[1:] == ["75.99", "not", "run", f"{own['final']['val/top1']:.2f}", "(n=1)"]
    assert "table2/you-8k (cited)" in second
    assert "baseline, chance on digits: val/top1 10.00" in second


@pytest.mark.slow
def test_ctrl_c_stops_all_runs_after_they_have_saved(tmp_path):
    arguments = ("budget='300 steps'", "--jobs", "2", "tracking.log_every='1 steps'")
    process = subprocess.Popen(
        command(tmp_path, *arguments),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    for _ in range(1200):
        rows = [p for p in tmp_path.glob("outputs/imagenet/*/metrics.jsonl") if p.stat().st_size]
        if len(rows) == 2:
            break
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 75, output
    assert "rerun the same command to resume" in output
    for path in tmp_path.glob("outputs/imagenet/*/status.json"):
        assert json.loads(path.read_text())["status"] == "preempted"
    assert len(list(tmp_path.glob("outputs/imagenet/*/checkpoints/*.pt"))) >= 2


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["imagenets"], "imagenets is not a choice; did you mean 'imagenet'?"),
        (["imagenet", "--tables", "7"], "--tables 7: imagenet has tables 1, 2, 3"),
        (["imagenet", "--tables", "one"], "invalid"),
        (["imagenet", "fast"], "'fast': write key=value"),
        (["imagenet", "seed=3"], "seeds from --seeds"),
        (["imagenet", "--jobs", "0"], "--jobs must be at least 1"),
    ],
)
def test_a_wrong_command_line_is_one_message(arguments, complaint, capsys):
    with pytest.raises(SystemExit) as ended:
        reproduce.main(arguments)
    assert ended.value.code == 2
    assert complaint in capsys.readouterr().err


def test_bad_configurations_end_before_anything_starts(tmp_path, capsys):
    arguments = [f"paths.data={tmp_path}", f"paths.outputs={tmp_path / 'out'}", "hardware=cpu"]
    assert reproduce.main(["imagenet", "scale=smoke", "optimizer.lr=-1", *arguments]) == 2
    assert "optimizer.lr must be finite and not negative" in capsys.readouterr().err
    assert reproduce.main(["imagenet", "scale=paper", *arguments]) == 2
    assert "scripts.prepare imagenet --from" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_which_experiments_belong_to_which_tables():
    table1 = experiments_of("imagenet", {1})
    assert len(table1) == 7
    everything = experiments_of("imagenet", {1, 2, 3}, options_of("experiment"))
    assert len(everything) == len(set(everything)) == 7 + 5 + 2 + 5
    assert chosen_tables("imagenet", None, "paper") == [1, 2, 3]
    assert chosen_tables("imagenet", None, "mini") == [1]


def test_whole_tables_are_submitted(tmp_path, monkeypatch, capsys):
    sent = []

    def submit(runs, _):
        sent.extend(runs)
        return ["1", "2", "3"]

    monkeypatch.setattr(slurm, "submit", submit)
    assert reproduce.main([*command(tmp_path)[3:], "cluster=slurm"]) == 0
    assert {run.config.experiment for run in sent} == {f"imagenet/{row}" for row in ROWS}
    assert "3 runs submitted; rerun the same command" in capsys.readouterr().out
