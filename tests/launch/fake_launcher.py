"""`python fake_launcher.py ORDERS <run.yaml`: behaves like a launcher, in milliseconds.

ORDERS is a JSON file that says for the id of a run where its files go and what is to happen:
"finish", "fail" or "diverge". A run counts its steps, saves when it is asked to stop and goes on
from there, so that its result is wrong if a step is lost or made twice. When it began and ended,
and what it saw of the machine, goes to the folder "events" beside ORDERS.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

stopped = False


def main() -> int:
    orders = Path(sys.argv[1])
    run_id = sys.stdin.readline().removeprefix("run_id: ").strip()
    order: dict[str, Any] = json.loads(orders.read_text())[run_id]
    signal.signal(signal.SIGTERM, stop)
    folder, state = Path(order["folder"]), Path(order["folder"], "state")
    folder.mkdir(parents=True, exist_ok=True)
    note(orders, order, "began")
    step = int(state.read_text()) if state.exists() else 0
    while step < order["steps"] and not stopped:
        time.sleep(order["seconds"] / order["steps"])
        step += 1
    state.write_text(str(step))
    code = end(order, step) if step >= order["steps"] else 75
    names = {0: "finished", 1: "failed", 5: "diverged", 75: "preempted"}
    (folder / "status.json").write_text(json.dumps({"status": names[code]}))
    note(orders, order, "ended")
    return code


def end(order: dict[str, Any], steps: int) -> int:
    if order["do"] == "fail":
        print("a failure that was ordered")
        return 1
    if order["do"] == "diverge":
        return 5
    metrics = {"val/top1": order["value"] + steps}
    path = Path(order["record"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(order["more"] | {"final": metrics, "best": metrics}))
    return 0


def note(orders: Path, order: dict[str, Any], what: str) -> None:
    found = {
        "run": order["run"],
        "what": what,
        "time": time.monotonic(),
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }
    folder = orders.parent / "events"
    folder.mkdir(exist_ok=True)
    path = folder / f"{time.monotonic_ns()}-{os.getpid()}"
    path.with_suffix(".new").write_text(json.dumps(found))
    path.with_suffix(".new").rename(path.with_suffix(".json"))


def stop(number: int, _: FrameType | None) -> None:
    global stopped
    stopped = True


if __name__ == "__main__":
    sys.exit(main())
