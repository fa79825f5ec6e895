"""`python -m tests.faults [FAULT …] [--quick]`: attacks the suite from outside, and counts.

Every fault is tried through the real commands on a small run; docs/reliability.md says what is
promised. All faults in full take about 20 minutes on two cores, and write their figures to
results/bench/faults.json and docs/reliability.md; so do single ones with --record.

Exit status: 0 all survived · 1 some did not · 2 an unknown fault.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from engine.formats import format_time
from engine.records import read_json, write_json
from tests.faults import (  # noqa: F401  # each enters its faults in the matrix
    commands,
    damage,
    disks,
    inputs,
    kills,
    network,
    outputs,
    stops,
    surroundings,
)
from tests.faults.matrix import FAULTS, SEED, Outcome, record_of, try_fault
from tests.faults.page import RECORD, write_page
from tests.faults.site import Attempt, Workshop


def main(arguments: Sequence[str] | None = None) -> int:
    """Tries the faults that were asked for."""
    given = parse(arguments)
    console = Console(highlight=False, soft_wrap=True)
    if given.list:
        for fault in FAULTS.values():
            console.print(f"{fault.name:24} {fault.what}")
        return 0
    if given.page:
        write_page(read_json(RECORD))
        return 0
    names = given.faults or list(FAULTS)
    keeps = not given.quick and (given.record or not given.faults)
    folder = Path(tempfile.mkdtemp(prefix="faults-", dir=given.folder))
    began, outcomes = time.monotonic(), []
    try:
        for name in names:
            outcome = try_one(name, folder, given, console)
            outcomes.append(outcome)
            if keeps:
                keep([outcome], given.seed)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    console.print(summary(outcomes))
    for outcome in outcomes:
        for problem in outcome.problems:
            console.print(f"[red]{outcome.fault.name}[/]: {escape(problem)}")
    survived, tried = sum(o.survived for o in outcomes), sum(o.tried for o in outcomes)
    took = format_time(time.monotonic() - began)
    console.print(f"{survived} of {tried} attacks survived, in {took}")
    return 0 if survived == tried else 1


def try_one(name: str, folder: Path, given: argparse.Namespace, console: Console) -> Outcome:
    """One fault, with a live line on a terminal."""
    fault = FAULTS[name]
    tries = given.tries or (fault.quick if given.quick else fault.tries)
    done: list[Attempt] = []

    def line() -> str:
        lost = sum(bool(attempt.problem) for attempt in done)
        return f"{name:24} {fault.what}: {len(done)} tried" + (f", {lost} lost" if lost else "")

    with console.status(line()) as status:

        def log(attempt: Attempt) -> None:
            done.append(attempt)
            status.update(line())
            if attempt.problem:
                console.print(f"  [red]{escape(attempt.note)}[/]: {escape(attempt.problem)}")

        shared = WORKSHOPS.setdefault(folder, Workshop(folder))
        outcome = try_fault(fault, shared, tries, given.seed, log)
    colour = "green" if outcome.survived == outcome.tried else "red"
    count = f"{outcome.survived}/{outcome.tried}" if not outcome.skipped else "skipped"
    reason = f" ({escape(outcome.skipped)})" if outcome.skipped else ""
    console.print(
        f"[{colour}]{count:>8}[/]  {name:24} {fault.what}, {outcome.seconds:.0f} s{reason}"
    )
    return outcome


WORKSHOPS: dict[Path, Workshop] = {}


def keep(outcomes: Sequence[Outcome], seed: int) -> None:
    """Enters figures in the record and on the page, fault by fault, in the matrix' order."""
    found = read_json(RECORD) if RECORD.exists() else {}
    found |= record_of(outcomes, seed)
    record = {name: found[name] for name in FAULTS if name in found}
    write_json(RECORD, record)
    write_page(record)


def summary(outcomes: Sequence[Outcome]) -> Table:
    """Tried and survived, fault by fault."""
    table = Table("fault", "what", "tried", "survived", "seconds", title="Faults")
    for one in outcomes:
        colour = "green" if one.survived == one.tried else "red"
        survived = "skipped" if one.skipped else f"[{colour}]{one.survived}[/]"
        seconds = f"{one.seconds:.0f}"
        table.add_row(one.fault.name, one.fault.what, str(one.tried), survived, seconds)
    return table


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("faults", nargs="*", metavar="FAULT", help="default: all; see --list")
    parser.add_argument("--list", action="store_true", help="the names of all faults")
    parser.add_argument("--page", action="store_true", help="write docs/reliability.md only")
    parser.add_argument("--quick", action="store_true", help="few attempts each: some minutes")
    parser.add_argument("--tries", type=int, help="attempts of each fault")
    parser.add_argument("--seed", type=int, default=SEED, help="of the random moments")
    parser.add_argument("--record", action="store_true", help="keep the figures of single faults")
    parser.add_argument("--folder", type=Path, help="where to work (default: /tmp)")
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.faults if name not in FAULTS]:
        parser.error(f"unknown fault {unknown[0]}; there are: {', '.join(FAULTS)}")
    return given


if __name__ == "__main__":
    sys.exit(main())
