"""`python -m scripts.reproduce imagenet [--tables 1,3] [--seeds 0,1,2] [key=value …]`.

Runs the experiments behind a task's tables and prints the tables. Finished runs are skipped, so a
second call goes on where the first one ended. `key=value` words go to every launch (`scale=mini`,
`hardware=dgx1`). With GPUs each run has all of them; on a CPU there is a run for each core.

Exit status: 0 all there · 1 some failed · 2 bad configuration or data · 75 stopped on request.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.config import ConfigProblem
from results.ledger import read_records
from results.render import text_table
from results.schema import Row, read_paper, rows_of
from scripts.fleet import PREEMPTED, Job, run_jobs
from scripts.launch import default_scale, options_of, prepare
from scripts.supervise import Prepared, is_done
from tasks.base import DataProblem
from tasks.catalog import TASKS

GIGABYTES_PER_RUN = 1.5  # on a CPU, at a small scale


def main(arguments: Sequence[str] | None = None) -> int:
    """From a task's name to its tables."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    words = list(options.overrides)
    scale = next((w.split("=", 1)[1] for w in words if w.startswith("scale=")), None)
    if scale is None:
        scale = default_scale()
        words.append(f"scale={scale}")
    tables = chosen_tables(options.task, options.tables, scale)
    experiments = experiments_of(options.task, tables, options.variants)
    try:
        jobs = [make_job(e, seed, words) for e in experiments for seed in options.seeds]
    except (ConfigProblem, DataProblem) as problem:
        print(problem, file=sys.stderr)
        return 2
    for job in jobs:
        if is_done(job.prepared):
            job.exit_status = 0
    to_do = sorted(
        (job for job in jobs if job.exit_status is None),
        key=lambda job: -job.prepared.plan.units,  # the longest first: they end together
    )
    at_once = options.jobs or side_by_side(jobs[0].prepared, len(to_do), words)
    cluster = jobs[0].prepared.config.cluster
    if cluster.kind == "slurm" and to_do:
        from scripts.cluster import submit

        made = submit([job.prepared for job in to_do], cluster)
        print(f"{len(made)} runs submitted; the same command, when they are done, shows the tables")
        return 0
    names = ", ".join(f"Table {number}" for number in sorted(tables))
    print(
        f"{names} at scale {scale}: {len(jobs)} runs, {len(jobs) - len(to_do)} done, "
        f"{len(to_do)} to do{f', {at_once} at a time' if to_do else ''}",
        flush=True,
    )
    if at_once > 1 and not any(w.startswith("hardware.threads=") for w in words):
        for job in to_do:
            job.arguments.append("hardware.threads=1")
    began = time.monotonic()
    finished = run_jobs(to_do, at_once)
    if to_do:
        done = sum(job.exit_status == 0 for job in to_do)
        minutes = (time.monotonic() - began) / 60
        print(f"{done} of {len(to_do)} runs finished in {minutes:.1f} minutes")
    print_tables(options.task, tables, jobs, words)
    if not finished:
        print("stopped on request: the same command goes on", flush=True)
        return PREEMPTED
    failed = [job for job in jobs if job.exit_status != 0]
    for job in failed:
        where = job.log if job.log.exists() else job.prepared.folder / "logs"
        print(f"{job.name}: exit status {job.exit_status}; see {where}", file=sys.stderr)
    return 1 if failed else 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line; argparse ends with status 2 and one message where it is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.reproduce", description="Runs the experiments of a task's tables."
    )
    parser.add_argument("task", choices=sorted(TASKS))
    parser.add_argument("--tables", type=_numbers, help="e.g. 1,3; default: all at the paper's")
    parser.add_argument("--seeds", type=_numbers, default=[0], help="e.g. 0,1,2; default: 0")
    parser.add_argument("--variants", action="store_true", help="other readings and baselines too")
    parser.add_argument("--jobs", type=int, help="runs at a time")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    options = parser.parse_intermixed_args(arguments)
    known = {table.table for table in read_paper() if table.task == options.task}
    for number in options.tables or ():
        if number not in known:
            parser.error(f"--tables {number}: {options.task} has {sorted(known)}")
    for word in options.overrides:
        if "=" not in word:
            parser.error(f"{word!r}: write key=value")
        if word.split("=")[0] in ("experiment", "seed"):
            parser.error(f"{word!r}: experiments follow from the task, seeds from --seeds")
    if options.jobs is not None and options.jobs < 1:
        parser.error(f"--jobs must be at least 1, not {options.jobs}")
    return options


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def chosen_tables(task: str, asked: Sequence[int] | None, scale: str) -> set[int]:
    """All of a task's tables at the paper's scale; its first one at the others."""
    if asked:
        return set(asked)
    own = sorted(table.table for table in read_paper() if table.task == task)
    if scale == "paper" or len(own) == 1:
        return set(own)
    others = ",".join(map(str, own))
    print(f"scale {scale}: Table {own[0]} only (--tables {others} or TABLES={others} for all)")
    return {own[0]}


def experiments_of(task: str, tables: set[int], variants: bool) -> list[str]:
    """Names in the order of the rows; each once, also where two tables show it."""
    rows: list[Row] = rows_of(task, tables)
    shown = {row.same_as for row in rows if row.same_as}
    rows += [row for row in rows_of(task) if row.row in shown]
    names = [row.experiment for row in rows if row.experiment]
    if variants:
        names += [row.rerun for row in rows if row.rerun]
        names += [name for name in options_of("experiment") if name.startswith(f"{task}/variant/")]
    return list(dict.fromkeys(names))


def make_job(experiment: str, seed: int, words: list[str]) -> Job:
    """A validated run; ConfigProblem or DataProblem if it can't be."""
    arguments = [f"experiment={experiment}", f"seed={seed}", *words]
    prepared = prepare(arguments)
    outputs = Path(prepared.config.paths.outputs)
    log = outputs / "reproduce" / f"{prepared.run_id.replace('/', '-')}.log"
    return Job(prepared, arguments, log)


def side_by_side(prepared: Prepared, runs: int, words: list[str]) -> int:
    """One run at a time on GPUs; on a CPU one for each core, as far as memory allows.

    Small models use one core well and two cores badly.
    """
    hardware = prepared.config.hardware
    if hardware.device != "cpu" or hardware.processes != 1:
        return 1
    if any(w.startswith("hardware.threads=") for w in words):
        return 1
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cores = cores or 1
    # Somewhat more runs than cores share them evenly; one left for the end would use one core.
    at_once = runs if cores < runs < 2 * cores else cores
    return max(1, min(at_once, int(free / GIGABYTES_PER_RUN), runs))


def print_tables(task: str, tables: set[int], jobs: list[Job], words: list[str]) -> None:
    """The paper's rows beside the records of exactly these configurations, at both scales."""
    prints = {job.prepared.fingerprint for job in jobs}
    plain = [w for w in words if not w.startswith("scale=")]
    for job in jobs:
        at_paper = [f"experiment={job.prepared.config.experiment}", *plain, "scale=paper"]
        try:
            prints.add(prepare(at_paper, need_data=False).fingerprint)
        except (ConfigProblem, DataProblem):
            continue
    folder = Path(jobs[0].prepared.config.paths.records)
    records: list[dict[str, Any]] = [
        record for record in read_records([folder]) if record["fingerprint"] in prints
    ]
    for table in read_paper():
        if table.task == task and table.table in tables:
            print(f"\n{text_table(table, records)}")
    signature = jobs[0].prepared.task.signature()
    if signature:
        print(f"\nmetrics: {signature}")
    for job in jobs:
        measured = [r["meters"] for r in records if r["run_id"] == job.prepared.run_id]
        if measured and measured[0]:
            values = ", ".join(f"{name} {value:,.4g}" for name, value in measured[0].items())
            print(f"{job.name}: {values}")
    name, metrics = jobs[0].prepared.task.trivial()
    if metrics and jobs[0].prepared.config.scale != "paper":
        values = ", ".join(f"{metric} {value:.2f}" for metric, value in metrics.items())
        data = jobs[0].prepared.config.data["name"]
        print(f"\nfor comparison, {name} on {data}: {values}")
    print()


if __name__ == "__main__":
    sys.exit(main())
