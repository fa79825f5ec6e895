"""`python -m tests.hollow_cuda.probe_gpu_check FOLDER [key=value …]`: its numbers mean nothing."""

from __future__ import annotations

import sys
from pathlib import Path

from torch import nn

from launch.gpu_check import ROWS, check_gpu, write_record
from launch.run_spec import make_run_spec
from tasks.wikitext103.softmax import AdaptiveSoftmax
from tests.hollow_cuda import hollow
from tests.hollow_cuda.probe_step import routes_of_real_text

if __name__ == "__main__":  # the processes that measure NCCL import this file, too
    # torch compiles the kernel of erfinv with NVRTC, which is not there.
    nn.init.trunc_normal_ = lambda weight, **_: nn.init.normal_(weight)
    AdaptiveSoftmax.route = routes_of_real_text(AdaptiveSoftmax.route)  # type: ignore[method-assign]
    if "scale=smoke" in sys.argv:  # whose data is made up
        for row in ROWS.values():
            make_run_spec([f"experiment={row}", "hardware=cpu", *sys.argv[2:]])
    record = check_gpu(steps=2, overrides=sys.argv[2:])
    hollow.answer({"record": record, "path": str(write_record(record, Path(sys.argv[1])))})
