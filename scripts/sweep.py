"""Runs a sweep (experiments × axes), each run in its own slot, and shows the best runs.

    python -m scripts.sweep sweep=imagenet_lr scale=mini seed=0,1,2

Eight GPUs make 8 slots of 1, 4 of 2, 2 of 4 or 1 of 8; a CPU has one slot per core. The global
batch does not change. Results are in outputs/sweeps/<name>/. Rerun the same command to resume.

  sweep=NAME       from configs/sweep (listed below); or give experiment=a,b and axes
  gpus_per_run=2   jobs=3 (slots at most)   plan_only=true   metric=   along=   group_by=a,b
  search=random    or optuna, with trials=20, for axes like multiply.lr=log(0.1,10)

All other arguments are overrides for every run; key=a,b, choice(a,b), range(3), interval(0,1) (for
a search) and, for config groups, glob(a*) are axes, as in Hydra's multirun. With cluster=slurm
missing runs are submitted as jobs.

Exit status: 0 complete · 1 some failed · 2 bad configuration or data · 75 stopped on request.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from analysis.folders import RUNS
from analysis.sweeps import SweepResults, best_table, save_results
from engine.config import ConfigProblem
from engine.records import RecordError, read_own_records, read_records
from launch import sweep_state, wandb_sweep
from launch.command_line import CommandLine, reports
from launch.estimate import RemainingTime
from launch.experiment_jobs import with_scale
from launch.search import open_sweep
from launch.sweep import read_sweep, sweep_files
from tasks.base import DataProblem


@reports(ConfigProblem, DataProblem, RecordError)
def main(arguments: Sequence[str] | None = None) -> int:
    """From a sweep's name to its results."""
    parser = CommandLine("sweep", __doc__)
    parser.epilog = f"sweeps: {', '.join(sweep_files())}"
    parser.add_overrides()
    parser.add_argument(
        "--wandb-config", action="store_true", help="print a file for `wandb sweep`"
    )
    given = parser.read(arguments)
    sweep, options = read_sweep(with_scale(given.overrides)[0])
    if given.wandb_config:
        print(wandb_sweep.sweep_file(sweep, options), end="")
        return 0
    state = open_sweep(sweep, options)
    config, todo, folder = state.expected()[0].config, state.to_do(), state.logs.parent
    if config.cluster.kind == "slurm" and todo and not options.plan_only:
        return sweep_state.submit_trials(todo, config.cluster, sweep.search)
    slots = sweep_state.find_trial_slots(state, options.jobs, must_exist=not options.plan_only)
    records = [*read_records(RUNS), *read_own_records(Path(config.paths.outputs))]
    remaining = RemainingTime(todo, len(slots), records)
    print(f"sweep      {sweep.name} at scale {config.scale}: {sweep.describe()}")
    print(sweep_state.describe(state, slots, remaining))
    print(f"results    {folder / 'results.json'}: {sweep.metric}", flush=True)
    if options.plan_only:
        return 0
    results = SweepResults(sweep.name, config.scale, sweep.metric, sweep.group_by, sweep.along)
    finished = sweep_state.run_trials(
        state, slots, remaining, lambda: save_results(folder, results.of(state.results()))
    )
    save_results(folder, results.of(state.results()))
    print(f"\n{best_table(results.of(state.results()))}\n\nresults: {folder / 'results.json'}")
    print(wandb_sweep.report(sweep, state.expected()) if finished else "", end="")
    return sweep_state.exit_status(state, finished=finished)


if __name__ == "__main__":
    sys.exit(main())
