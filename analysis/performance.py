"""docs/performance.md and the README's lines on speed, from the records of `make bench`.

`benchmarks/contests.yaml` lists every contest with its target; `results/bench/<machine>/` has what
was measured on a kind of machine. A contest without a measurement is shown as not run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from analysis.folders import ROOT
from analysis.summaries import NOT_RUN
from analysis.templating import markdown_table, render_markdown
from engine.formats import format_number, format_time, slug
from engine.records import read_json

CONTESTS = ROOT / "benchmarks" / "contests.yaml"
HEAD = ("", "against", "times as fast", "noise", "ours", "target", "of the limit")
MISSED = "¹"  # beside a ratio below its target


@dataclass(frozen=True)
class Contest:
    """What is measured against whom; without `against` the speed alone is of interest."""

    bench: str
    name: str
    what: str
    unit: str
    against: str | None = None
    target: float | None = None  # times as fast as the competitor, at least
    readme: bool = False


@dataclass(frozen=True)
class Quartiles:
    """Of a ratio that every round gives anew."""

    low: float
    median: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True)
class Measurement:
    """One contest's outcome: speeds in its unit, ours over the competitor's, and the noise.

    The noise is the competitor's speed over that of its own second turn in the same round.
    """

    contest: str
    ours: float
    rounds: int
    theirs: float | None = None
    ratio: Quartiles | None = None
    noise: Quartiles | None = None
    limit: str | None = None  # what bounds our speed
    of_limit: float | None = None  # our share of it


@dataclass(frozen=True)
class BenchRecord:
    """What a bench leaves in the folder of its machine in `results/bench`."""

    bench: str
    date: str
    seconds: float
    threads: int
    commit: str | None
    dirty: bool | None
    versions: dict[str, str | None]
    machine: str
    measurements: list[Measurement]
    detail: dict[str, Any] = field(default_factory=dict)

    def find(self, contest: str) -> Measurement | None:
        return next((m for m in self.measurements if m.contest == contest), None)

    def path(self, folder: Path) -> Path:
        """In the folder of its machine; counts and growth, which have no contests, in `folder`."""
        competes = bool(read_contests().get(self.bench))
        return (folder / slug(self.machine.lower()) if competes else folder) / f"{self.bench}.json"


def read_contests(path: Path = CONTESTS) -> dict[str, list[Contest]]:
    """By bench, in the file's order."""
    raw = yaml.safe_load(path.read_text())
    return {
        bench: [Contest(bench, name, **values) for name, values in entries.items()]
        for bench, entries in raw.items()
    }


def is_reached(contest: Contest, found: Measurement) -> bool | None:
    """Whether the promise is kept, to the two digits that are shown; None without a promise."""
    if contest.target is None or found.ratio is None:
        return None
    return round(found.ratio.median, 2) >= contest.target


def to_raw(record: BenchRecord, contests: Sequence[Contest]) -> dict[str, Any]:
    """As it is written: every measurement with its contest's text, target and verdict."""
    raw = asdict(record)
    for entry, found in zip(raw["measurements"], record.measurements, strict=True):
        contest = next(c for c in contests if c.name == found.contest)
        entry |= {"what": contest.what, "against": contest.against, "unit": contest.unit}
        entry |= {"target": contest.target, "reached": is_reached(contest, found)}
    return _rounded(raw)  # type: ignore[no-any-return]


def read_bench(path: Path) -> BenchRecord:
    """ValueError, with the file's name, for what `to_raw` did not write."""
    try:
        raw = read_json(path)
        known = {f.name for f in fields(Measurement)}
        measurements = []
        for entry in raw.pop("measurements"):
            kept = {key: value for key, value in entry.items() if key in known}
            for key in ("ratio", "noise"):
                kept[key] = Quartiles(**kept[key]) if kept.get(key) else None
            measurements.append(Measurement(**kept))
        return BenchRecord(measurements=measurements, **raw)
    except (KeyError, TypeError, AttributeError) as problem:
        raise ValueError(f"{path} is not a record of a bench: {problem}") from problem


def read_benches(folder: Path) -> dict[str, list[BenchRecord]]:
    """The records that there are of each bench, by machine."""
    return {
        bench: [read_bench(path) for path in sorted(folder.glob(f"*/{bench}.json"))]
        for bench in read_contests()
    }


def machines_of(records: Mapping[str, Sequence[BenchRecord]]) -> list[str]:
    """The names of all that have a record, sorted."""
    return sorted({record.machine for some in records.values() for record in some})


def overview(
    contests: Iterable[Contest], records: Mapping[str, Sequence[BenchRecord]]
) -> list[list[str]]:
    """A table with its head: how many times as fast we were, by contest and machine."""
    machines = machines_of(records)
    rows = [["", "against", *(machines or ["times as fast"]), "target"]]
    for contest in contests:
        by_machine = {record.machine: record for record in records[contest.bench]}
        found = [_ratio_cell(contest, by_machine.get(machine)) for machine in machines]
        target = "–" if contest.target is None else f"≥ {contest.target:.2f}"
        rows.append([contest.what, contest.against or "–", *(found or [NOT_RUN]), target])
    return rows


def _ratio_cell(contest: Contest, record: BenchRecord | None) -> str:
    found = record.find(contest.name) if record else None
    if found is None or found.ratio is None:
        return NOT_RUN
    return f"{found.ratio.median:.2f}" + (MISSED if is_reached(contest, found) is False else "")


def contest_cells(contest: Contest, record: BenchRecord | None) -> list[str]:
    """A row of the page."""
    target = "–" if contest.target is None else f"≥ {contest.target:.2f}"
    found = record.find(contest.name) if record else None
    if found is None:
        return [contest.what, contest.against or "–", NOT_RUN, "–", "–", target, "–"]
    reached = {True: ": reached", False: ": not reached", None: ""}[is_reached(contest, found)]
    share = "–"
    if found.of_limit is not None:
        share = f"{100 * found.of_limit:.0f} % of {found.limit}"
    return [
        contest.what,
        contest.against or "–",
        str(found.ratio or "–"),
        str(found.noise or "–"),
        f"{format_number(found.ours, 3)} {contest.unit}",
        target + reached,
        share,
    ]


def environment_line(record: BenchRecord) -> str:
    """Machine, versions, commit and length of a bench."""
    commit = (record.commit or "unknown")[:12] + (" with changes" if record.dirty else "")
    threads = "1 thread" if record.threads == 1 else f"{record.threads} threads"
    torch = record.versions.get("torch")
    return (
        f"{record.machine}, {threads}, torch {torch}; {record.date}, commit {commit}; "
        f"took {format_time(record.seconds)}"
    )


def render_performance(folder: Path) -> str:
    """`docs/performance.md`."""
    records, contests = read_benches(folder), read_contests()
    sections = [
        {
            "bench": bench,
            "tables": [
                {
                    "rows": [contest_cells(contest, record) for contest in some],
                    "environment": environment_line(record),
                }
                for record in records[bench]
            ],
        }
        for bench, some in contests.items()
        if some
    ]
    competed = [c for some in contests.values() for c in some if c.against is not None]
    return render_markdown(
        "performance.md.j2",
        overview=overview(competed, records),
        missed=MISSED,
        sections=sections,
        head=list(HEAD),
        pages=[path.relative_to(folder) for path in sorted(folder.glob("*/optim.md"))],
    )


def render_speed_lines(folder: Path) -> str:
    """The block of the README."""
    shown = [contest for some in read_contests().values() for contest in some if contest.readme]
    head, *rows = overview(shown, read_benches(folder))
    table = markdown_table(head, rows)
    missed = any(MISSED in cell for row in rows for cell in row)
    return table + (f"\n\n{MISSED} below the target" if missed else "")


def _rounded(value: Any) -> Any:
    """Floats to six digits."""
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return value
