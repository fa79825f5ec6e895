"""Runs of whole experiments: a job for each, made on this machine or submitted to a cluster."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from engine.config import ConfigProblem, read_config, recipe_fingerprint
from engine.formats import format_number, format_time
from engine.predictions import predictions_file, read_predictions
from engine.records import RUN_FILE, RunRecord, read_own_records, read_run_file
from launch.compose import compose
from launch.estimate import RemainingTime
from launch.exit_status import conclude
from launch.hardware import default_scale
from launch.run_spec import make_run_spec
from launch.scheduler import Job, find_slots, run_jobs
from tasks.catalog import task_class

EXAMPLE_WIDTH = 96  # characters of a line


def with_scale(overrides: Sequence[str], default: str | None = None) -> tuple[list[str], str]:
    """Overrides that name a scale, this machine's default where none does; and that scale."""
    given = [text.removeprefix("scale=") for text in overrides if text.startswith("scale=")]
    scale = given[-1] if given else default or default_scale()
    return [*overrides, *([] if given else [f"scale={scale}"])], scale


def make_job(experiment: str, seed: int, overrides: Sequence[str]) -> Job:
    """A validated run, done if it has finished here; ConfigProblem or DataProblem if it can't."""
    spec = make_run_spec([f"experiment={experiment}", f"seed={seed}", *overrides])
    log = Path(spec.config.paths.outputs, "logs", f"{spec.run_id.replace('/', '-')}.log")
    return Job(spec, log, exit_status=0 if spec.is_done else None)


def submit_jobs(jobs: Sequence[Job]) -> bool:
    """Submits what is not done, if the configuration has a cluster."""
    cluster = jobs[0].spec.config.cluster
    if cluster.kind != "slurm":
        return False
    from launch.slurm import submit

    submitted = submit([job.spec for job in jobs if job.exit_status is None], cluster)
    print(f"{len(submitted)} runs submitted; rerun the same command later to see the results")
    return True


def run_experiments(
    title: str,
    jobs: Sequence[Job],
    overrides: Sequence[str],
    records: Iterable[RunRecord],
    at_most: int | None = None,
    *,
    to_logs: bool | None = None,
) -> bool:
    """Runs what is not done, the longest first, `at_most` at a time; False after a stop signal.

    Times are estimated from `records` of runs like these.
    """
    to_do = [job for job in jobs if job.exit_status is None]
    counts = f"{title}: {len(jobs)} runs, {len(jobs) - len(to_do)} done, {len(to_do)} to do"
    if not to_do:
        print(counts, flush=True)
        return True
    widest = max((job.spec.config.hardware for job in to_do), key=lambda h: int(h.processes))
    slots = find_slots(widest, len(to_do), at_most, overrides=overrides)
    remaining = RemainingTime([job.spec for job in to_do], len(slots), records)
    print(f"{counts}, {len(slots)} at a time, {remaining.beforehand()}", flush=True)
    to_do.sort(key=lambda job: remaining.expected(job.spec), reverse=True)
    began = time.monotonic()
    completed = run_jobs(to_do, slots, ended=remaining.ended, to_logs=to_logs)
    finished = sum(job.exit_status == 0 for job in to_do)
    took = format_time(time.monotonic() - began)
    print(f"{finished} of {len(to_do)} runs finished in {took}", flush=True)
    return completed


def exit_status(jobs: Sequence[Job], *, completed: bool) -> int:
    """The exit status for all runs, after a message for each that failed."""
    messages = []
    for job in (job for job in jobs if job.exit_status != 0):
        log = job.log if job.log.exists() else job.spec.folder / "logs"
        messages.append(f"{job.name}: {job.ending}; see {log}")
    return conclude(messages, completed=completed)


def recipe_records(
    jobs: Sequence[Job], overrides: Sequence[str], published: Iterable[RunRecord]
) -> list[RunRecord]:
    """Records of exactly these recipes and of the same at the paper's scale; own ones first."""
    prints = {job.spec.fingerprint for job in jobs}
    others = [text for text in overrides if not text.startswith("scale=")]
    for experiment in {job.spec.config.experiment for job in jobs}:
        with suppress(ConfigProblem):  # an override that fits the small model only
            at_paper = [f"experiment={experiment}", *others, "scale=paper"]
            prints.add(recipe_fingerprint(read_config(compose(at_paper))))
    own = read_own_records(Path(jobs[0].spec.config.paths.outputs))
    found = {record.run_id: record for record in [*published, *own]}
    return [record for record in found.values() if record.fingerprint in prints]


def describe_metrics(jobs: Sequence[Job], records: Iterable[RunRecord]) -> str:
    """How metrics are calculated, what the runs measured beside them, and a baseline."""
    task, config = jobs[0].spec.task, jobs[0].spec.config
    lines = [f"metrics: {signature}"] if (signature := task.signature()) else []
    meters = {record.run_id: record.meters for record in records}
    for job in jobs:
        if own := meters.get(job.spec.run_id):
            values = ", ".join(f"{name} {format_number(value)}" for name, value in own.items())
            lines.append(f"{job.name}: {values}")
    name, metrics = task.baseline_metrics()
    if metrics and config.scale != "paper":
        values = ", ".join(f"{metric} {value:.2f}" for metric, value in metrics.items())
        lines.append(f"baseline, {name} on {config.data['name']}: {values}")
    return "\n".join(lines)


def show_examples(folders: Sequence[Path]) -> str:
    """The first prediction of each run's headline split; runs without any are left out."""
    blocks = []
    for folder in (folder for folder in folders if (folder / RUN_FILE).exists()):
        run = read_run_file(folder)
        split = task_class(run.config["task"]["name"]).headline.split
        for row in read_predictions(predictions_file(folder, split))[:1]:
            lines = {
                "input": row.get("input", row.get("file", "")),
                "reference": row["reference"],
                "prediction": row["hypothesis"] or "(nothing)",
            }
            shown = [f"  {name:10}  {_cut(str(text))}" for name, text in lines.items()]
            blocks.append("\n".join([f"{run.run_id}, {split}, {row['id']}", *shown]))
    return "\n\n".join(blocks)


def _cut(text: str) -> str:
    return text if len(text) <= EXAMPLE_WIDTH else f"{text[: EXAMPLE_WIDTH - 1]}…"
