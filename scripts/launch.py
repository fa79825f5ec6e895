"""`python -m scripts.launch experiment=imagenet/novograd_100ep [scale=smoke] [key=value …]`.

Composes and validates the configuration, plans, freezes `outputs/<run id>/run.yaml`, starts the
workers with torchrun and waits for them. Rerun the same command to resume. With `cluster=slurm` the
run is submitted instead. With `hardware.nodes=2` run the same command on each node, with NODE_RANK
(from 0), MASTER_ADDR and MASTER_PORT in its environment.

Exit status: 0 finished · 1 failed · 2 bad configuration, data or folder · 3 no usable checkpoint ·
4 another process runs this run · 5 diverged · 75 stopped on request, rerun to resume.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from engine.config import ConfigProblem
from launch.exit_status import BAD_INPUT
from launch.rendezvous import Node
from launch.run_spec import complete_run_spec, describe, read_overrides
from launch.start import launch
from tasks.base import DataProblem


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status; never a traceback for a user's mistake."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.launch",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="see configs/")
    overrides = parser.parse_args(arguments).overrides
    try:
        config, changed_by_scale = read_overrides(overrides)
        if config.cluster.kind == "slurm":
            from launch.slurm import submit

            spec = complete_run_spec(config, changed_by_scale)
            print(describe(spec), flush=True)
            submit([spec], config.cluster)
            return 0
        node = Node.from_environment(config.hardware.nodes)
    except (ConfigProblem, DataProblem) as problem:
        print(problem, file=sys.stderr)
        return BAD_INPUT
    return launch(config, changed_by_scale, node)


if __name__ == "__main__":
    sys.exit(main())
