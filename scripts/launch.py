"""Runs an experiment, or with -m every combination of some values.

    python -m scripts.launch experiment=imagenet/novograd_100ep scale=smoke
    python -m scripts.launch experiment=wmt14/novograd optimizer.lr=0.01 --cfg job
    python -m scripts.launch -m experiment=wmt14/adam,wmt14/novograd seed=range(3)

Composes and validates the configuration, plans, freezes `outputs/<run id>/run.yaml`, starts the
workers (several with torchrun) and waits for them. Rerun the same command to resume. With
`cluster=slurm` the run is submitted instead. With `hardware.nodes=2` run the same command on each
node, with NODE_RANK (from 0), MASTER_ADDR and MASTER_PORT in the environment. -m is equivalent to
`python -m scripts.sweep`.

Exit status: 0 finished · 1 failed · 2 bad configuration, data or folder · 3 no usable checkpoint ·
4 another process is executing this run · 5 diverged · 75 stopped on request, rerun to resume.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from engine.config import ConfigProblem
from engine.records import RecordError, parse_run_file
from launch.command_line import CommandLine, reports
from launch.rendezvous import Node
from launch.run_spec import complete_run_spec, describe, read_overrides
from launch.show_config import add_config_flags, shown_config
from launch.standby import discard_standby, start_standby
from launch.supervise import launch, launch_frozen
from tasks.base import DataProblem


@reports(ConfigProblem, DataProblem, RecordError)
def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status; never a traceback for a user's mistake."""
    parser = CommandLine("launch", __doc__)
    parser.add_overrides()
    add_config_flags(parser)
    what = "run every combination: key=a,b key=choice(a,b) key=range(3) group=glob(a*)"
    parser.add_argument("-m", "--multirun", action="store_true", help=what)
    what = "run the run.yaml read from standard input, as a sweep does"
    parser.add_argument("--frozen", action="store_true", help=what)
    options = parser.read(arguments)
    if options.frozen:
        if options.overrides or options.multirun or options.cfg or options.info:
            parser.error("--frozen runs what it reads, as it stands: leave out all else")
        return launch_frozen(parse_run_file(sys.stdin.buffer.read(), "the standard input"))
    if options.multirun:
        if options.cfg or options.info:
            parser.error("--cfg and --info show one run; with -m, plan_only=true shows the plan")
        sweep = [sys.executable, "-m", "scripts.sweep", *options.overrides]
        os.execv(sys.executable, sweep)  # so that signals and the exit status are the sweep's
    try:
        if shown := shown_config(options):
            print(shown)
            return 0
        return run(options.overrides)
    finally:
        discard_standby()


def run(overrides: list[str]) -> int:
    """Runs or submits; ConfigProblem or DataProblem if it can't."""
    config, origin = read_overrides(overrides, meanwhile=start_standby)
    if config.cluster.kind == "slurm":
        from launch.slurm import submit

        spec = complete_run_spec(config, origin)
        print(describe(spec), flush=True)
        submit([spec], config.cluster)
        return 0
    node = Node.from_environment(config.hardware.nodes)
    return launch(config, origin, node)


if __name__ == "__main__":
    sys.exit(main())
