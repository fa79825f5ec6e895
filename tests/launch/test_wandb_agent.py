"""The real `wandb sweep` and `wandb agent`, with the file that a sweep prints, and a server."""

from __future__ import annotations

import subprocess
import sys

import pytest
import yaml

from engine.records import read_json, to_json
from engine.rows import read_rows
from launch.config_files import ROOT
from tests.engine.wandb_server import served

SWEEP = [
    "experiment=imagenet/novograd_100ep",
    "optimizer.lr=0.01,0.02",
    "gradient.clip_norm=0.5",
    "scale=smoke",
    "hardware=cpu",
    "budget='6 steps'",
]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_an_agent_runs_a_trial_of_the_sweep_which_is_then_evaluated(tmp_path):
    with served() as server:

        def call(*arguments: object) -> str:
            done = subprocess.run(
                [sys.executable, "-m", *map(str, arguments)],
                cwd=ROOT,
                env=server.environment() | {"WANDB_DIR": str(tmp_path)},
                capture_output=True,
                text=True,
                timeout=1200,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        where = [f"paths.outputs={tmp_path}", f"paths.data={tmp_path / 'data'}"]
        file = tmp_path / "sweep.yaml"
        file.write_text(call("scripts.sweep", "--wandb-config", *SWEEP, *where))
        call("wandb", "sweep", file)
        call("wandb", "agent", "--count", "1", "me/novograd-repro/s1")
        (folder,) = (path.parent for path in tmp_path.rglob("run.yaml"))
        call("scripts.evaluate", folder, "--predictions", "5", "tracking=wandb")

    name = yaml.safe_load(file.read_text())["name"]
    run, evaluation = server.runs.values()
    assert (run.name, run.about["sweep"]) == ("trial1", "s1")
    assert run.about["project"] == "novograd-repro"
    assert (run.about["groupName"], run.about["jobType"]) == (name, "sweep")
    assert {"imagenet", "novograd", "smoke", name} <= set(run.about["tags"])
    assert (run.config["optimizer"]["lr"], run.config["gradient"]["clip_norm"]) == (0.01, 0.5)
    rows = [{k: v for k, v in row.items() if k[0] != "_"} for row in run.rows]
    assert to_json(rows) == to_json(read_rows(folder / "metrics.jsonl"))
    final = read_json(folder / "record.json")["final"]
    assert run.summary["final/val/top1"] == final["val/top1"]
    assert (run.summary["outcome"], run.exit_code) == ("finished", 0)
    assert run.summary["predictions/val"]["nrows"] == 50
    assert (evaluation.about["groupName"], evaluation.about["jobType"]) == (name, "evaluate")
    assert evaluation.config["evaluated"]["run_id"] == run.about["displayName"]
    assert final.items() <= evaluation.summary.items()
    assert evaluation.summary["predictions/val"]["nrows"] == 5
    assert (evaluation.rows, evaluation.exit_code) == ([], 0)
