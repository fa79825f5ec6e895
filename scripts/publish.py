"""Copies records of finished runs to `results/runs/`.

    python -m scripts.publish --replace

Each record is checked first: it must be of a finished run at scale paper, mini or short, from a
clean commit that this repository has, with the recipe as currently configured, and must not already
be published with different numbers.

Exit status: 0 all published, or there already · 1 some were refused · 2 bad input.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from analysis.publish import (
    REFUSED,
    find_candidates,
    has_commit_in,
    publish,
    publish_trials,
    study_runs,
)
from engine.records import RecordError, read_records
from launch.command_line import CommandLine, reports
from launch.config_files import ROOT
from launch.run_spec import recipe_fingerprints


@reports(RecordError, OSError)
def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """From outputs to results."""
    parser = CommandLine("publish", __doc__)
    parser.add_argument("runs", nargs="*", metavar="RUN", help="run ids; default: all")
    parser.add_argument("--outputs", type=Path, default=root / "outputs")
    parser.add_argument("--replace", action="store_true", help="replace records that differ")
    parser.add_argument("--any-recipe", action="store_true", help="runs with overrides too")
    parser.add_argument(
        "--study", action="store_true", help="only the runs of make study, and its tables"
    )
    options = parser.read(arguments)
    records, refused = find_candidates(options.outputs)
    if not records and not refused:
        print(f"no finished runs at scale paper, mini or short: {options.outputs}", file=sys.stderr)
        return 2
    folder = root / "results" / "runs"
    if options.study:
        options.runs = study_runs(options.outputs, records, read_records(folder))
        options.any_recipe = True
    unknown = sorted(set(options.runs) - {record.run_id for record in records})
    if unknown:
        print(f"{unknown[0]}: no such run in {options.outputs}", file=sys.stderr)
        return 2
    if options.runs or options.study:
        records, refused = [r for r in records if r.run_id in options.runs], []
    current = None
    if not options.any_recipe:
        current = recipe_fingerprints((record.experiment, record.scale) for record in records)
    done = publish(records, folder, current, has_commit_in(root), options.replace)
    for one in [*done, *refused]:
        print(one, file=sys.stderr if one.outcome == REFUSED else sys.stdout)
    if any(one.outcome == REFUSED for one in [*done, *refused]):
        return 1
    if options.study:
        for path in publish_trials(options.outputs, root / "results"):
            print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
