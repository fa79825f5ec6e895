"""`python -m tests.hollow_cuda.probe_gpu_check FOLDER`: the GPU check without meaning."""

from __future__ import annotations

import sys
from pathlib import Path

from launch.gpu_check import check_gpu, write_record
from tasks.wikitext103.softmax import AdaptiveSoftmax
from tests.hollow_cuda import hollow
from tests.hollow_cuda.probe_step import routes_of_real_text

if __name__ == "__main__":  # the processes that measure NCCL import this file, too
    AdaptiveSoftmax.route = routes_of_real_text(AdaptiveSoftmax.route)  # type: ignore[method-assign]
    record = check_gpu(steps=2)
    hollow.answer({"record": record, "path": str(write_record(record, Path(sys.argv[1])))})
