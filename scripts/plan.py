"""`python -m scripts.plan experiment=… [key=value …]`: what a run would be, without running it.

Prints steps, batches, memory and hours, and what the scale changes of the paper's recipe. Needs
neither the data nor a GPU.

Exit status: 0 · 2 bad configuration.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from engine.config import ConfigProblem
from launch.cost import NotCountable, about_reach, count_cost, describe_cost, reach_of
from launch.exit_status import BAD_INPUT
from launch.run_spec import describe, make_run_spec
from tasks.base import DataProblem


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the plan."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.plan",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="see configs/")
    try:
        spec = make_run_spec(parser.parse_args(arguments).overrides, need_data=False)
    except (ConfigProblem, DataProblem) as problem:
        print(problem, file=sys.stderr)
        return BAD_INPUT
    print(describe(spec))
    try:
        print(describe_cost(spec, count_cost(spec)))
    except NotCountable as problem:
        print(f"work       {problem}")
    if spec.config.optimizer["name"] == "novograd":
        print(about_reach(reach_of(spec)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
