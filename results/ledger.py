"""The records that finished runs leave in `results/runs/`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

RUNS = Path(__file__).parent / "runs"


@dataclass(frozen=True)
class Summary:
    """A metric over the seeds of one experiment."""

    mean: float
    deviation: float | None  # None for a single run
    runs: int

    def __str__(self) -> str:
        spread = "" if self.deviation is None else f" ± {self.deviation:.2f} (n={self.runs})"
        return f"{self.mean:.2f}{spread}"


def read_records(folders: Iterable[Path]) -> list[dict[str, Any]]:
    """Every record below some folders; one that can't be read is named."""
    records = []
    for path in sorted(path for folder in folders for path in folder.rglob("*.json")):
        try:
            records.append(json.loads(path.read_text()))
        except ValueError as problem:
            raise ValueError(f"{path}: not a record: {problem}") from problem
    return records


def summarize(records: Iterable[dict[str, Any]], metric: str) -> Summary | None:
    """Mean and standard deviation of a final metric; None where there are no runs."""
    values = [record["final"][metric] for record in records if metric in record["final"]]
    if not values:
        return None
    return Summary(fmean(values), stdev(values) if len(values) > 1 else None, len(values))
