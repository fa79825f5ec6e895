"""Publishing: records of finished runs copied from `outputs/` to `results/runs/`, each checked."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

from analysis.examples import publish_predictions, published_file
from analysis.reproduction import differences
from analysis.study_page import PAGES
from analysis.trials import STUDY, TRIALS_FILE, read_trials, to_csv
from engine.records import (
    FINISHED,
    RECORD_FILE,
    RecordError,
    RunRecord,
    read_record,
    read_records,
    write_record,
)
from tasks.files import write_atomically

SCALES = ("paper", "mini", "short")  # a smoke run only shows that something runs
WITH_PREDICTIONS = "already published, now with predictions"
PUBLISHED, REPLACED, UNCHANGED, REFUSED = "published", "replaced", "already published", "refused"


@dataclass(frozen=True)
class Publication:
    """What became of one record."""

    name: str  # the run's id, or a file that is not a record
    outcome: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.outcome}" + (f": {self.reason}" if self.reason else "")


def find_candidates(outputs: Path) -> tuple[list[RunRecord], list[Publication]]:
    """Records of runs at the scales that are published, and files that can't be read."""
    records, refused = [], []
    for path in sorted(outputs.rglob(RECORD_FILE)):
        try:
            record = read_record(path)
        except RecordError as problem:
            refused.append(Publication(str(path), REFUSED, str(problem)))
            continue
        if record.scale in SCALES:
            records.append(record)
    return records, refused


def publish(
    records: Sequence[RunRecord],
    runs: Path,
    current: AbstractSet[str] | None,
    has_commit: Callable[[str], bool],
    replace: bool = False,
) -> list[Publication]:
    """Copies the records that pass all checks below `runs`; the others stay where they are.

    A few predictions go with the records of recipes as they are configured now.

    `current` are the fingerprints of recipes as they are configured now; None allows any recipe.
    """
    return [_publish(record, runs, current, has_commit, replace) for record in records]


def _publish(
    record: RunRecord,
    runs: Path,
    current: AbstractSet[str] | None,
    has_commit: Callable[[str], bool],
    replace: bool,
) -> Publication:
    reason = _objection(record, current, has_commit)
    if reason:
        return Publication(record.run_id, REFUSED, reason)
    path = runs / record.experiment / f"{record.run_id.rpartition('/')[2]}.json"
    is_there = path.exists()
    found = differences(record, read_record(path)) if is_there else []
    if is_there and not found:
        missing = current is not None and not published_file(path).exists()
        new = missing and publish_predictions(record, path)
        return Publication(record.run_id, WITH_PREDICTIONS if new else UNCHANGED)
    if found and not replace:
        reason = f"{path.name} has other numbers ({'; '.join(found)}); --replace replaces it"
        return Publication(record.run_id, REFUSED, reason)
    write_record(path, record)
    published_file(path).unlink(missing_ok=True)  # of other numbers
    if current is not None:  # a row of the paper; variants and studies are many
        publish_predictions(record, path)
    return Publication(record.run_id, REPLACED if found else PUBLISHED)


def study_runs(
    outputs: Path, records: Sequence[RunRecord], published: Sequence[RunRecord]
) -> list[str]:
    """The ids of the finished runs of the studies that were run in `outputs`.

    `published` runs count as done with `make study ARGS=--keep`, and may not be in `outputs`.
    """
    own = {record.run_id for record in records}
    by_id = {record.run_id: record for record in (*published, *records)}
    trials = [one for name in PAGES for one in read_trials(outputs / name / TRIALS_FILE, by_id)]
    if not trials:
        file = outputs / STUDY / TRIALS_FILE
        raise RecordError(f"there is no study in {file}: run make study")
    return sorted(own & {one.run_id for one in trials if one.status == FINISHED})


def publish_trials(outputs: Path, results: Path) -> list[Path]:
    """Copies the studies' tables once the records of all their finished runs are published.

    Published trials of data sets that were not run in `outputs` stay.
    """
    published = {record.run_id: record for record in read_records(results / "runs")}
    written = []
    for name in PAGES:
        if trials := read_trials(outputs / name / TRIALS_FILE, published):
            path = results / "studies" / name / TRIALS_FILE
            own = {one.trial.data for one in trials}
            others = [one for one in read_trials(path, published) if one.trial.data not in own]
            write_atomically(path, to_csv([*trials, *others]).encode())
            written.append(path)
    return written


def _objection(
    record: RunRecord, current: AbstractSet[str] | None, has_commit: Callable[[str], bool]
) -> str:
    """Why a record can't be published; empty if it can."""
    if record.run_id != f"{record.experiment}-{record.fingerprint}-s{record.seed}":
        return f"its id is not that of {record.experiment} with seed {record.seed}"
    if ".." in Path(record.run_id).parts or Path(record.run_id).is_absolute():
        return "its id is not a path below results/runs"
    if record.status != FINISHED:
        return f"the run {record.status}"
    if record.commit is None:
        return "its commit is not known"
    if not record.is_clean:
        return f"the code had changes that commit {record.commit[:10]} does not have"
    if not has_commit(record.commit):
        return f"commit {record.commit[:10]} is not in this repository"
    if current is not None and record.fingerprint not in current:
        return (
            f"its recipe is not that of {record.experiment} at scale {record.scale}: it was run "
            "with overrides, or the recipe has changed; --any-recipe publishes it nevertheless"
        )
    return ""


def has_commit_in(root: Path) -> Callable[[str], bool]:
    """Whether a commit is in the repository of a folder."""

    def has_commit(commit: str) -> bool:
        # Without git's variables, which name another repository inside its hooks.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
        command = ["git", "cat-file", "-e", f"{commit}^{{commit}}"]
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, check=False)
        return done.returncode == 0

    return has_commit
