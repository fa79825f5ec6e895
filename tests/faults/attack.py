"""`python -m tests.faults [FAULT[=TRIES] …] [--quick]`: attacks the suite from outside, and counts.

Every fault is tried through the real commands on a small run; docs/reliability.md says what is
promised. All faults in full take about 20 minutes on two cores, and write their figures to
results/bench/faults.json and docs/reliability.md; so do single ones with --record.

Exit status: 0 all survived · 1 some did not · 2 an unknown fault.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from engine.formats import format_time
from engine.records import write_json
from launch.hardware import cores
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
from tests.faults.matrix import FAULTS, SEED, Outcome, record_of, source_of_figures, try_fault
from tests.faults.page import RECORD, read_record, write_page
from tests.faults.site import Workshop


def main(arguments: Sequence[str] | None = None) -> int:
    """Tries the faults that were asked for."""
    given = parse(arguments)
    console = Console(highlight=False, soft_wrap=True)
    if given.list:
        for fault in FAULTS.values():
            console.print(f"{fault.name:24} {fault.what}")
        return 0
    if given.page:
        write_page(read_record())
        return 0
    wanted = given.faults or [name for name in FAULTS if FAULTS[name].quick or not given.quick]
    tries = {name: int(number or 0) for name, _, number in (w.partition("=") for w in wanted)}
    keeps = given.record or not (given.quick or given.faults or given.tries)
    folder = Path(tempfile.mkdtemp(prefix="faults-", dir=given.folder))
    began, outcomes, source = time.monotonic(), [], source_of_figures(given.seed)
    try:
        with Live(console, folder, len(tries)) as live:
            for outcome in try_all(tries, folder, given):
                outcomes.append(outcome)
                live.ended(outcome)
                if keeps:
                    keep([outcome], source)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    console.print(summary(outcomes))
    survived, tried = sum(o.survived for o in outcomes), sum(o.tried for o in outcomes)
    took = format_time(time.monotonic() - began)
    console.print(f"{survived} of {tried} attacks survived, in {took}")
    return 0 if survived == tried else 1


def try_all(tries: Mapping[str, int], folder: Path, given: argparse.Namespace) -> Iterator[Outcome]:
    """Each fault, so often (0: as always), in one of `--jobs` processes; as they end."""
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.jobs, spawned) as pool:
        running = [
            pool.submit(try_one, name, folder, given.quick, number or given.tries, given.seed)
            for name, number in tries.items()
        ]
        for done in as_completed(running):
            yield done.result()


def try_one(name: str, folder: Path, quick: bool, tries: int | None, seed: int) -> Outcome:
    """In a process of its own."""
    fault = FAULTS[name]
    times = tries or (max(1, fault.quick) if quick else fault.tries)
    return try_fault(fault, Workshop(folder), times, seed)


class Live:
    """A live line of what is tried now, and a line for every fault that is through."""

    def __init__(self, console: Console, folder: Path, faults: int) -> None:
        self._console, self._log, self._faults = console, folder / "attempts.jsonl", faults
        self._ended: list[str] = []
        self._over = threading.Event()
        self._status = console.status("starting")

    def __enter__(self) -> Self:
        self._status.start()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watcher.join()
        self._status.stop()

    def _watch(self) -> None:
        while not self._over.wait(0.5):
            with suppress(OSError, ValueError):
                tried = [json.loads(line) for line in self._log.read_text().splitlines()]
                now = Counter(name for name, _, _ in tried if name not in self._ended)
                parts = [f"{name}: {number} tried" for name, number in now.items()]
                done = f"{len(self._ended)} of {self._faults} faults"
                self._status.update(escape(", ".join([done, *parts])))

    def ended(self, outcome: Outcome) -> None:
        fault = outcome.fault
        self._ended.append(fault.name)
        colour = "green" if outcome.survived == outcome.tried else "red"
        count = f"{outcome.survived}/{outcome.tried}" if not outcome.skipped else "skipped"
        reason = f" ({escape(outcome.skipped)})" if outcome.skipped else ""
        what = f"{fault.name:24} {fault.what}, {outcome.seconds:.0f} s{reason}"
        self._console.print(f"[{colour}]{count:>8}[/]  {what}")
        for problem in outcome.problems:
            self._console.print(f"          [red]{escape(problem)}[/]")


def keep(outcomes: Sequence[Outcome], source: Mapping[str, Any]) -> None:
    """Enters figures in the record and on the page, fault by fault, in the matrix' order."""
    found = read_record() | record_of(outcomes, source)
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
    parser.add_argument("faults", nargs="*", metavar="FAULT[=TRIES]", help="default: all")
    parser.add_argument("--list", action="store_true", help="the names of all faults")
    parser.add_argument("--page", action="store_true", help="write docs/reliability.md only")
    parser.add_argument("--quick", action="store_true", help="few attempts each: some minutes")
    parser.add_argument("--tries", type=int, help="attempts of each fault")
    parser.add_argument("--jobs", type=int, default=cores(), help="faults at a time")
    parser.add_argument("--seed", type=int, default=SEED, help="of the random moments")
    parser.add_argument(
        "--record", action="store_true", help="keep the figures of single or quick ones"
    )
    parser.add_argument("--folder", type=Path, help="where to work (default: /tmp)")
    given = parser.parse_args(arguments)
    for name, equals, number in (text.partition("=") for text in given.faults):
        if name not in FAULTS:
            parser.error(f"unknown fault {name}; there are: {', '.join(FAULTS)}")
        if equals and not number.isdecimal():
            parser.error(f"{name}={number}: write how often, {name}=30")
    return given
