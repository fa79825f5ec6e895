"""`python -m tests.hollow_cuda.probe_launch_line key=value …`: what a launch prints first."""

from __future__ import annotations

import sys

from launch.run_spec import describe, make_run_spec
from tests.hollow_cuda import hollow

if __name__ == "__main__":
    hollow.answer(describe(make_run_spec(sys.argv[1:], need_data=False)))
