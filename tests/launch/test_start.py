"""The launcher as a user meets it: real torchrun, real signals."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from engine.records import parse_run_file, read_record, read_run_file, run_file_text
from engine.rows import read_rows
from launch.run_spec import make_run_spec
from scripts import launch as launcher
from scripts import plan
from tests.launch.launching import (
    ENDLESS,
    ROOT,
    command,
    is_alive,
    launch,
    result,
    run_folder,
    start,
    wait_for_end,
    wait_for_rows,
    worker_pids,
)


def test_from_command_to_record(undisturbed):
    folder, done = undisturbed
    assert "64 images = 1 × 2 accumulated × 32" in done.stdout
    assert "finished: all 46 steps done" in done.stdout
    record = run_folder(folder) / "record.json"
    content = json.loads(record.read_text())
    assert set(content["final"]) == {"val/top1", "val/top5", "val/loss"}
    assert content["plan"]["steps"] == 46
    assert str(folder) not in record.read_text()  # no machine's paths
    assert content["data_manifest"]["name"] == "digits"
    assert content["data_manifest"]["counts"] == {"train": {"images": 1498}, "val": {"images": 299}}
    assert len(content["data_manifest"]["sha256"]["train"]) == 64
    rows = read_rows(run_folder(folder) / "metrics.jsonl")
    assert {"step", "epoch", "units", "wall_s", "train/loss", "train/lr", "train/grad_norm"} <= set(
        rows[0]
    )
    assert (run_folder(folder) / "logs" / "rank-0.log").exists()


def test_a_finished_run_is_skipped(undisturbed):
    folder, _ = undisturbed
    again = launch(folder)
    assert again.returncode == 0
    assert "is finished already" in again.stdout


def test_a_scheduler_s_launcher_composes_nothing_and_makes_the_same_run(undisturbed, tmp_path):
    """It is given the frozen run, and needs neither torch nor Hydra."""
    spec = make_run_spec(command(tmp_path)[3:])
    probe = "import sys; from scripts.launch import main; status = main(['--frozen']); " + (
        "print({'torch', 'hydra'} & set(sys.modules)); sys.exit(status)"
    )
    text = run_file_text(spec.freeze())
    given = [sys.executable, "-c", probe]
    done = subprocess.run(given, input=text, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "set()"
    assert result(tmp_path) == result(undisturbed[0])
    assert read_run_file(run_folder(tmp_path)) == parse_run_file(text.encode(), "")


def test_a_frozen_run_that_can_t_be_read_is_refused(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(b"run_id: [")))
    assert launcher.main(["--frozen"]) == 2
    assert capsys.readouterr().err.startswith("the standard input is not a run file: ")
    for more in ("seed=1", "-m"):
        with pytest.raises(SystemExit, match="2"):
            launcher.main(["--frozen", more])
        assert "--frozen runs what it reads" in capsys.readouterr().err


def test_nobody_outlives_a_killed_launcher_and_its_folder_is_its_own(tmp_path):
    process = start(tmp_path, "hardware.processes=2", ENDLESS)
    wait_for_rows(tmp_path, 1, process)
    second = launch(tmp_path, "hardware.processes=2", ENDLESS)
    assert second.returncode == 4
    assert "Traceback" not in second.stderr
    pids = worker_pids(tmp_path)
    assert len(pids) == 2
    assert all(map(is_alive, pids))
    process.kill()
    wait_for_end(pids)


def test_divergence_has_its_own_status(tmp_path):
    done = launch(
        tmp_path, "experiment=imagenet/sgd_100ep", "optimizer.lr=1e30", "decay.apply_to=all"
    )
    assert done.returncode == 5, done.stdout + done.stderr
    assert "diverged: " in done.stdout
    record = read_record(run_folder(tmp_path) / "record.json")
    assert (record.status, record.final) == ("diverged", {})
    assert record.optimizer == "sgd"


def test_a_run_writes_to_outputs_and_data_only(tmp_path):
    """In a copy of the checkout as it is, with the default paths."""
    copy = tmp_path / "checkout"
    subprocess.run(["git", "clone", "--quiet", "--local", ROOT, copy], check=True)
    for name in git(ROOT, "ls-files", "-mo", "--exclude-standard").splitlines():
        if (ROOT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    before, files = git(copy, "status", "--porcelain"), {path.name for path in copy.iterdir()}
    overrides = ["experiment=imagenet/novograd_100ep", "scale=smoke", "hardware=cpu"]
    overrides += ["budget='2 steps'", "schedule.warmup='0 steps'"]
    done = subprocess.run(
        [sys.executable, "-m", "scripts.launch", *overrides],
        cwd=copy,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert list(copy.glob("outputs/imagenet/*/record.json"))
    assert git(copy, "status", "--porcelain") == before
    assert {path.name for path in copy.iterdir()} - files == {"outputs", "data"}


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True
    ).stdout


def test_workers_never_import_hydra():
    program = (
        "import sys; import scripts.train, engine.trainer, tasks.imagenet.task; "
        "assert not {'hydra', 'omegaconf', 'wandb', 'fairseq'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_a_plan_at_the_papers_scale_without_running_and_without_the_data(tmp_path, capsys):
    overrides = ["experiment=imagenet/novograd_100ep", "scale=paper", "hardware=dgx1"]
    assert plan.main([*overrides, f"paths.data={tmp_path}"]) == 0
    printed = capsys.readouterr().out
    for text in (
        "1,024 images = 8 × 1 accumulated × 128",
        "125,100 steps = 100 epochs of 1,251, of which 0 warm-up",
        "25,549,352 parameters in 153 tensors",
        "optimizer 102.2 MB",  # fp32 moments and 153 scalars
        "TFLOP per step",
        "sustained",
    ):
        assert text in printed
    assert not list(tmp_path.iterdir())
