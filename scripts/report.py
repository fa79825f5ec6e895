"""Writes the report: the paper's claims and numbers, and our runs.

    python -m scripts.report --check

Writes `results/REPORT.md`, `results/report.html`, `results/STUDY.md`, `results/STUDY-short.md`, the
studies' charts, `docs/performance.md`, `docs/scaling.md` and the tables in README.md from published
records only: the same records give the same bytes. If neither these nor the code have changed since
the last time, nothing is rendered. `--check` writes no page and names what is stale. `--own` writes
`outputs/report.html` instead, which also shows the runs below `outputs/`, marked as not published;
`--from-wandb ENTITY/PROJECT` also adds finished runs from W&B.

Exit status: 0 written, or up to date · 1 stale · 2 a file or W&B project that can't be used.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from analysis.unchanged import remember, remembered
from engine import wandb_runs
from engine.config import ConfigProblem
from launch.command_line import CommandLine, reports
from launch.config_files import ROOT
from tasks.files import write_atomically


@reports(ConfigProblem, wandb_runs.WandbProblem, ValueError, OSError)
def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """From records to pages."""
    parser = CommandLine("report", __doc__)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="write no page; 1 if any is stale")
    mode.add_argument("--own", action="store_true", help="write a page that includes your own runs")
    mode.add_argument("--from-wandb", metavar="ENTITY/PROJECT", help="like --own, plus runs in W&B")
    parser.add_argument("--outputs", type=Path, default=root / "outputs", help="runs for --own")
    options = parser.read(arguments)
    if options.from_wandb and not wandb_runs.is_project(options.from_wandb):
        parser.error(f"--from-wandb {options.from_wandb}: write ENTITY/PROJECT")
    is_own = options.own or options.from_wandb
    known = None if is_own else remembered(root)
    if known is not None and (options.check or not known):
        return _say(known)
    from analysis.pages import tracked_files, write_own_page  # and with them libraries that draw
    from launch.run_spec import recipe_fingerprints

    if is_own:
        others = wandb_runs.read_records(options.from_wandb) if options.from_wandb else []
        page = write_own_page(options.outputs, recipe_fingerprints, root, others)
        print(f"wrote {page}")
        return 0
    files = tracked_files(root, recipe_fingerprints)
    stale = {path: text for path, text in files.items() if _read(path) != text}
    names = [str(path.relative_to(root)) for path in stale]
    if options.check or not stale:
        remember(root, names)
        return _say(names)
    for name, (path, text) in zip(names, stale.items(), strict=True):
        write_atomically(path, text.encode(), durable=False)
        print(f"wrote {name}")
    remember(root)
    return 0


def _say(stale: Sequence[str]) -> int:
    for name in stale:
        print(f"{name} is stale: run make report", file=sys.stderr)
    if not stale:
        print("the report is up to date")
    return 1 if stale else 0


def _read(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


if __name__ == "__main__":
    sys.exit(main())
