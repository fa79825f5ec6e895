"""Calls the launcher with each bad configuration, in one process; prints what came of it as JSON.

python -m tests.faults.bad_configs FOLDER NUMBER
"""

from __future__ import annotations

import io
import json
import shutil
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from scripts import launch

BASE = ["experiment=imagenet/novograd_100ep", "scale=smoke", "hardware=cpu"]
CASES = [
    "model.stages=[]",
    "model.width=0",
    "model.width=-8",
    "model.width=1000000000",
    "model.width=wide",
    "model.stages=[1,x]",
    "model.depth=3",
    "decay.rules={x: 1}",
    "decay.rules={x: {lrr: 1}}",
    "decay.rules={'(': {lr: 1}}",
    "hardware.timeout_s=1e300",
    "hardware.timeout_s=-1",
    "hardware.timeout_s=nan",
    "hardware.data_workers=100000",
    "hardware.processes=0",
    "hardware.processes=7",
    "hardware.precision=fp8",
    "data.max_unreadable=nan",
    "data.max_unreadable=2",
    "data.image_size=0",
    "data.folder=/etc/passwd",
    "optimizer.lr=-1",
    "optimizer.lr=nan",
    "optimizer.lr=fast",
    "optimizer.betas=[0.9]",
    "optimizer.betas=[0.9,1.5]",
    "optimizer.name=novgrad",
    "optimizer.momentum=0.9",
    "batch.micro=0",
    "batch.micro=33",
    "batch.global_size=-64",
    "budget=forever",
    "budget='-3 steps'",
    "budget='1e400 steps'",
    "schedule.warmup='1000 epochs'",
    "checkpoint.keep=0",
    "checkpoint.every='0 steps'",
    "evaluation.every=often",
    "evaluation.batch=0",
    "tracking.wandb=sometimes",
    "gradient.clip=-1",
    "seed=1.5",
    "sead=1",
    "experiment=imagenet/nothing",
    "scale=tiny",
    "init_from=/nowhere",
    "=",
    "budget",
    "model={",
    "paths.outputs=/proc/nothing",
]


def call(folder: Path, case: str) -> tuple[int | str, str]:
    """Exit status (or an exception's traceback), and what was printed."""
    arguments = [
        *BASE,
        f"paths.outputs={folder / 'outputs'}",
        f"paths.data={folder / 'data'}",
        case,
    ]
    printed = io.StringIO()
    try:
        with redirect_stdout(printed), redirect_stderr(printed):
            code: int | str = launch.main(arguments)
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException:
        code = traceback.format_exc(limit=-1)
    return code, printed.getvalue()


if __name__ == "__main__":
    outputs = Path(sys.argv[1], "outputs")
    for one in CASES[: int(sys.argv[2])]:
        found, text = call(Path(sys.argv[1]), one)
        left = outputs.exists()
        shutil.rmtree(outputs, ignore_errors=True)
        print("\n" + json.dumps([one, found, text, left]), flush=True)
