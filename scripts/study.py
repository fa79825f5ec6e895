"""Runs the study of the paper's claims on small data (configs/study.yaml, or study_short.yaml).

    python -m scripts.study --quick --plan

Tunes every optimizer on every data set, runs what the claims require, one run per core, and writes
trials, pages and curves to outputs/study/ or outputs/study_short/. Rerun to resume. More data sets
are used if $DATA_ROOT has them.

Exit status: 0 complete · 1 some failed · 2 bad configuration or data · 75 stopped on request.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence

from analysis.folders import BENCH, RUNS
from analysis.study_page import write_study
from benchmarks.memory import measure_all
from engine.config import ConfigProblem
from engine.records import RecordError, read_records
from launch.command_line import CommandLine, reports
from launch.estimate import RemainingTime
from launch.study import FILE, SHORT, read_study
from launch.study_stages import available, open_study
from launch.sweep_state import describe, exit_status, find_trial_slots, run_trials
from tasks.base import DataProblem


@reports(ConfigProblem, DataProblem, RecordError)
def main(arguments: Sequence[str] | None = None) -> int:
    """From nothing to a verdict on each claim."""
    options = parse(arguments)
    file = SHORT if options.short else FILE
    whole = read_study(options.overrides, file, quick=options.quick)
    plan, missing = available(whole.only(options.data) if options.data else whole)
    state = open_study(plan, keep=options.keep, name=file.stem)
    slots = find_trial_slots(state, options.jobs, must_exist=not options.plan)
    remaining = RemainingTime(state.to_do(), len(slots), read_records(RUNS))
    for name, why in missing.items():
        print(f"{name} is left out: {why}")
    print(f"data       {', '.join(plan.data)}\n{describe(state, slots, remaining)}", flush=True)
    if options.plan:
        return 0
    finished = run_trials(state, slots, remaining, state.save)
    state.save()
    memory = BENCH / "memory.json" if options.keep else state.folder / "memory.json"
    if finished and not state.failed and not memory.exists():
        measure_all(memory)
    print(f"wrote {write_study(state.folder, state.records(), memory)}")
    return exit_status(state, finished=finished)


def parse(arguments: Sequence[str] | None) -> Namespace:
    """The command line; exits with status 2 where it is wrong."""
    parser = CommandLine("study", __doc__)
    add = parser.add_argument
    add("--plan", action="store_true", help="only show what would be run, and for how long")
    add("--quick", action="store_true", help="only the part listed under `quick` in the file")
    add("--short", action="store_true", help="the short regime: few passes over more data")
    add("--keep", action="store_true", help="count published runs as done")
    add("--jobs", type=int, help="runs at a time; default: one for each core")
    add("--data", metavar="A,B", type=lambda text: text.split(","), help="only these data sets")
    parser.add_overrides("for every run")
    options = parser.read(arguments)
    for text in options.overrides:
        if "=" not in text or text.split("=")[0] in ("experiment", "seed", "small_data"):
            parser.error(f"{text!r}: write key=value; configs/study.yaml has experiments and seeds")
    if options.jobs is not None and options.jobs < 1:
        parser.error(f"--jobs must be at least 1, not {options.jobs}")
    return options


if __name__ == "__main__":
    sys.exit(main())
