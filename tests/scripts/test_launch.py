"""The launcher as a user meets it: real torchrun, real signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from engine.tracking import read_rows

ROOT = Path(__file__).parents[2]


def command(folder: Path, *words: str) -> list[str]:
    paths = [f"paths.{name}={folder / name}" for name in ("data", "outputs", "records")]
    quick = ["scale=smoke", "hardware=cpu", "checkpoint.every='7 steps'", "hardware.threads=1"]
    base = [sys.executable, "-m", "scripts.launch", "experiment=imagenet/novograd_100ep"]
    return [*base, *quick, *paths, *words]


def launch(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(folder, *words), cwd=ROOT, capture_output=True, text=True, check=False
    )


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(folder, *words),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run_folder(folder: Path) -> Path:
    (found,) = (folder / "outputs" / "imagenet").iterdir()
    return found


def wait_for_rows(folder: Path, rows: int, process: subprocess.Popen[str]) -> None:
    for _ in range(1200):
        files = list(folder.glob("outputs/imagenet/*/metrics.jsonl"))
        if files and len(read_rows(files[0])) >= rows:
            return
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    raise AssertionError("no progress")


def worker_pids(folder: Path) -> list[int]:
    return [int(p.read_text()) for p in folder.glob("outputs/imagenet/*/logs/rank-*.pid")]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def result(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Final metrics of the record, and all rows without what a clock says."""
    (record,) = folder.glob("records/imagenet/*/*.json")
    timed = ("wall_s", "speed/units_per_s")
    rows = read_rows(run_folder(folder) / "metrics.jsonl")
    clean = [{k: v for k, v in row.items() if k not in timed} for row in rows]
    return json.loads(record.read_text())["final"], clean


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    done = launch(folder)
    assert done.returncode == 0, done.stderr
    return folder, done


def test_from_command_to_record(undisturbed):
    folder, done = undisturbed
    assert "64 images = 1 × 2 accumulated × 32" in done.stdout
    assert "finished: all 46 steps done" in done.stdout
    (record,) = folder.glob("records/imagenet/*/*.json")
    content = json.loads(record.read_text())
    assert set(content["final"]) == {"val/top1", "val/top5", "val/loss"}
    assert content["plan"]["steps"] == 46
    assert str(folder) not in record.read_text()  # no machine's paths
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


def test_stop_on_request_then_go_on(undisturbed, tmp_path):
    process = start(tmp_path)
    wait_for_rows(tmp_path, 2, process)
    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 75, output
    status = json.loads((run_folder(tmp_path) / "status.json").read_text())
    assert status["status"] == "preempted"
    assert not any(map(is_alive, worker_pids(tmp_path)))
    again = launch(tmp_path)
    assert again.returncode == 0, again.stderr
    assert "resuming" in again.stdout
    assert result(tmp_path) == result(undisturbed[0])


def test_a_killed_worker_is_replaced(undisturbed, tmp_path):
    process = start(tmp_path)
    wait_for_rows(tmp_path, 3, process)
    (pid,) = worker_pids(tmp_path)
    os.kill(pid, signal.SIGKILL)
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 0, output
    assert "a worker was lost; restart 1 of 3" in output
    assert result(tmp_path) == result(undisturbed[0])


def test_nobody_outlives_a_killed_launcher_and_its_folder_is_its_own(tmp_path):
    process = start(tmp_path, "hardware.processes=2")
    wait_for_rows(tmp_path, 1, process)
    second = launch(tmp_path, "hardware.processes=2")
    assert second.returncode == 4
    assert "Traceback" not in second.stderr
    pids = worker_pids(tmp_path)
    assert len(pids) == 2
    process.kill()
    for _ in range(40):
        if not any(map(is_alive, pids)):
            break
        time.sleep(0.05)
    assert not any(map(is_alive, pids))


def test_damaged_checkpoints_are_never_a_silent_restart(tmp_path):
    process = start(tmp_path)
    wait_for_rows(tmp_path, 3, process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    for file in (run_folder(tmp_path) / "checkpoints").glob("*.pt"):
        file.write_bytes(b"damaged")
    done = launch(tmp_path)
    assert done.returncode == 3, done.stderr
    assert "damaged" in done.stdout + done.stderr


def test_divergence_has_its_own_status(tmp_path):
    done = launch(
        tmp_path, "experiment=imagenet/sgd_100ep", "optimizer.lr=1e30", "decay.apply_to=all"
    )
    assert done.returncode == 5, done.stdout + done.stderr
    assert "diverged: the loss is" in done.stdout


def test_workers_never_import_hydra():
    program = (
        "import sys; import scripts.train, engine.trainer, tasks.imagenet.task; "
        "assert not {'hydra', 'omegaconf', 'wandb', 'fairseq'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_a_plan_at_the_papers_scale_without_running_and_without_the_data(tmp_path):
    words = ["experiment=imagenet/novograd_100ep", "scale=paper", "hardware=dgx1"]
    words.append(f"paths.data={tmp_path}")
    done = subprocess.run(
        [sys.executable, "-m", "scripts.plan", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for text in (
        "1,024 images = 8 × 1 accumulated × 128",
        "125,100 steps = 100 epochs of 1,251, of which 0 warm-up",
        "25,549,352 parameters in 153 tensors",
        "optimizer 102.2 MB",  # fp32 moments and 153 scalars
        "TFLOP per step",
        "sustained",
    ):
        assert text in done.stdout, done.stdout
    assert not list(tmp_path.iterdir())
