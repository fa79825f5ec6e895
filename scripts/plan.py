"""Shows the plan of a run without running it.

    python -m scripts.plan experiment=imagenet/adamw_100ep scale=paper hardware=dgx1

Prints steps, batches, memory and hours, and what the scale changes in the paper's recipe. Needs
neither the data nor a GPU.

Exit status: 0 printed · 2 bad configuration.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from engine.config import ConfigProblem
from launch.command_line import CommandLine, reports
from launch.cost import NotCountable, about_reach, count_cost, describe_cost, reach_of
from launch.run_spec import describe, make_run_spec
from launch.show_config import add_config_flags, shown_config
from tasks.base import DataProblem


@reports(ConfigProblem, DataProblem)
def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the plan."""
    parser = CommandLine("plan", __doc__)
    parser.add_overrides()
    add_config_flags(parser)
    options = parser.read(arguments)
    if shown := shown_config(options):
        print(shown)
        return 0
    spec = make_run_spec(options.overrides, need_data=False)
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
