"""`python -m tests.hollow_cuda.probe_gpu_check FOLDER ROW… key=value …`: numbers mean nothing."""

from __future__ import annotations

import sys
from pathlib import Path

from torch import nn

from engine.step import Stepper, Tally
from launch import gpu_check
from launch.run_spec import make_run_spec
from tasks.wikitext103.softmax import AdaptiveSoftmax
from tests.hollow_cuda import hollow
from tests.hollow_cuda.probe_step import routes_of_real_text


def any_loss(self: Stepper, tally: Tally) -> list[float]:
    """In the place of the check that a loss is finite: hollow GPUs compute nothing."""
    return tally.values.tolist()


def main(folder: Path, rows: list[str], overrides: list[str]) -> None:
    # torch compiles the kernel of erfinv with NVRTC, which is not there.
    nn.init.trunc_normal_ = lambda weight, **_: nn.init.normal_(weight)
    Stepper._check = any_loss  # type: ignore[method-assign]
    AdaptiveSoftmax.route = routes_of_real_text(AdaptiveSoftmax.route)  # type: ignore[method-assign]
    if "scale=smoke" in overrides:  # whose data is made up
        for row in rows:
            make_run_spec([f"experiment={row}", "hardware=cpu", *overrides])
    gpu_check.ROWS = {task: row for task, row in gpu_check.ROWS.items() if row in rows}
    record = gpu_check.check_gpu(steps=2, overrides=overrides, rows=rows)
    hollow.answer({"record": record, "path": str(gpu_check.write_record(record, folder))})


if __name__ == "__main__":  # the processes that measure NCCL import this file, too
    given = [one for one in sys.argv[2:] if "=" in one]
    main(Path(sys.argv[1]), [one for one in sys.argv[2:] if one not in given], given)
