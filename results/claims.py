"""The paper's claims, what decides them, and the results of studies, read strictly.

A study leaves `results/studies/<name>.json`:

    {"study": name, "verdict": one of STUDY_VERDICTS, "summary": text,
     "numbers": {name: number, or {name: number}},
     "curves": [{"title", "x_label", "y_label", "log_x", ["log_y"],
                 "lines": [{"label", "x": [...], "y": [...], ["sd": [...]]}]}],
     "records": [run ids]}

A null in `y` is a run that did not end with a finite number.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from results.schema import PAPER

STUDIES = Path(__file__).parent / "studies"
STUDY_NAMES = (
    "lr_robustness",
    "initialisation",
    "warmup",
    "large_batch",
    "longer_training",
    "regularisation",
    "headline",
    "beta2",
    "memory",
    "tensor_sizes",
)
# Studies of what the paper does not claim, and how they are headed.
EXPLANATIONS = {"tensor_sizes": "Is NovoGrad behind here because large tensors move slowly?"}
HOLDS, FAILS, UNDECIDED = "holds at this scale", "does not hold", "undecided"
STUDY_VERDICTS = (HOLDS, FAILS, UNDECIDED)
TESTED, NOT_RUN = "kept by tests", "not run"


class ClaimProblem(ValueError):
    """A claim or the result of a study that can't be read."""


@dataclass(frozen=True)
class Line:
    """Values along an axis; None where there is none. Lines of one colour belong together."""

    label: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    sd: tuple[float, ...] | None = None
    colour: int | None = None  # None: by its place in the chart
    dashed: bool = False


@dataclass(frozen=True)
class Chart:
    """Lines with common axes."""

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Study:
    """What a study found."""

    study: str
    verdict: str
    summary: str
    numbers: dict[str, float | dict[str, float]]
    curves: tuple[Chart, ...]
    records: tuple[str, ...]  # ids of the runs behind it


@dataclass(frozen=True)
class Measured:
    """A number of a benchmark: a field of some of its entries, one for each set of parameters."""

    file: str  # below results/
    field: str
    unit: str
    of: tuple[str, ...]


@dataclass(frozen=True)
class Claim:
    """A claim, where it stands, and what decides it."""

    id: str
    claim: str
    where: str
    tests: tuple[str, ...] = ()  # as pytest names them
    study: str | None = None
    measured: Measured | None = None

    def verdict(self, studies: Mapping[str, Study]) -> str:
        """The study's where there is one; tests alone keep a claim that has none."""
        if self.study is None:
            return TESTED
        found = studies.get(self.study)
        return NOT_RUN if found is None else found.verdict


@cache
def read_claims(path: Path = PAPER / "claims.yaml") -> tuple[Claim, ...]:
    """All claims in the file's order."""
    claims = tuple(_read_claim(raw, path) for raw in yaml.safe_load(path.read_text()))
    if len({claim.id for claim in claims}) != len(claims):
        raise ClaimProblem(f"{path}: two claims have the same id")
    return claims


def read_studies(folder: Path = STUDIES) -> dict[str, Study]:
    """The results that are there, by name."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        if path.stem not in STUDY_NAMES:
            raise ClaimProblem(f"{path}: no study has this name; known are {list(STUDY_NAMES)}")
        found[path.stem] = read_study(path)
    return found


def read_study(path: Path) -> Study:
    """One result; ClaimProblem says what is wrong with it."""
    return parse_study(path.read_text(), path)


def parse_study(text: str, path: Path) -> Study:
    """What stands, or is to stand, in a file."""
    try:
        raw = json.loads(text)
    except ValueError as problem:
        raise ClaimProblem(f"{path}: not JSON: {problem}") from problem
    keys = ("study", "verdict", "summary", "numbers", "curves", "records")
    study, verdict, summary, numbers, curves, records = _take(raw, keys, (), str(path))
    if study != path.stem:
        raise ClaimProblem(f"{path}: is called {study!r} inside")
    if verdict not in STUDY_VERDICTS:
        raise ClaimProblem(f"{path}: the verdict is one of {STUDY_VERDICTS}, not {verdict!r}")
    if not isinstance(numbers, dict):
        raise ClaimProblem(f"{path}: numbers: must be a mapping")
    for name, value in numbers.items():
        for number in value.values() if isinstance(value, dict) else [value]:
            _number(number, f"{path}: numbers: {name}")
    return Study(
        study,
        verdict,
        _text(summary, f"{path}: summary"),
        numbers,
        tuple(_read_chart(curve, str(path)) for curve in _list(curves, f"{path}: curves")),
        tuple(_text(run, f"{path}: records") for run in _list(records, f"{path}: records")),
    )


def _read_claim(raw: Any, path: Path) -> Claim:
    where = f"{path}: {raw.get('id', raw) if isinstance(raw, dict) else raw}"
    name, claim, place, checked, measured = _take(
        raw, ("id", "claim", "where", "checked_by"), ("measured",), where
    )
    tests, study = _take(checked, (), ("tests", "study"), f"{where}: checked_by")
    if not tests and study is None:
        raise ClaimProblem(f"{where}: neither tests nor a study check it")
    if study is not None and study not in STUDY_NAMES:
        raise ClaimProblem(f"{where}: study {study!r}; known are {list(STUDY_NAMES)}")
    if measured is not None:
        file, field, unit, of = _take(measured, ("file", "field", "unit", "of"), (), where)
        measured = Measured(file, field, unit, tuple(of))
    return Claim(name, claim, place, tuple(tests or ()), study, measured)


def _read_chart(raw: Any, path: str) -> Chart:
    keys = ("title", "x_label", "y_label", "log_x", "lines")
    title, x_label, y_label, log_x, lines, log_y = _take(raw, keys, ("log_y",), f"{path}: curves")
    where = f"{path}: {title}"
    for given in (log_x, log_y or False):
        if not isinstance(given, bool):
            raise ClaimProblem(f"{where}: log_x and log_y are true or false, not {given!r}")
    read = tuple(_read_line(line, where, log_x) for line in _list(lines, f"{where}: lines"))
    if not read:
        raise ClaimProblem(f"{where}: has no lines")
    texts = [_text(text, where) for text in (title, x_label, y_label)]
    return Chart(texts[0], texts[1], texts[2], read, log_x, bool(log_y))


def _read_line(raw: Any, where: str, log_x: bool) -> Line:
    label, xs, ys, sds = _take(raw, ("label", "x", "y"), ("sd",), f"{where}: lines")
    where = f"{where}: {_text(label, where)}"
    x = tuple(_number(value, where) for value in _list(xs, where))
    y = tuple(None if value is None else _number(value, where) for value in _list(ys, where))
    sd = None if sds is None else tuple(_number(value, where) for value in _list(sds, where))
    if not x or len(y) != len(x) or (sd is not None and len(sd) != len(x)):
        raise ClaimProblem(f"{where}: x, y and sd need as many values, at least one")
    if log_x and min(x) <= 0:
        raise ClaimProblem(f"{where}: a logarithmic axis has no place for {min(x)}")
    if sd is not None and min(sd) < 0:
        raise ClaimProblem(f"{where}: a standard deviation is not negative")
    return Line(label, x, y, sd)


def _take(raw: Any, needed: tuple[str, ...], optional: tuple[str, ...], where: str) -> list[Any]:
    """The values of a mapping in the order of the keys; no other keys may be there."""
    if not isinstance(raw, dict):
        raise ClaimProblem(f"{where}: must be a mapping, not {raw!r}")
    unknown, missing = set(raw) - {*needed, *optional}, set(needed) - set(raw)
    if unknown or missing:
        raise ClaimProblem(f"{where}: unknown keys {sorted(unknown)}, missing {sorted(missing)}")
    return [raw.get(key) for key in (*needed, *optional)]


def _list(raw: Any, where: str) -> list[Any]:
    if not isinstance(raw, list):
        raise ClaimProblem(f"{where}: must be a list, not {raw!r}")
    return raw


def _text(raw: Any, where: str) -> str:
    if not isinstance(raw, str) or not raw.strip():
        raise ClaimProblem(f"{where}: must be a text, not {raw!r}")
    return raw


def _number(raw: Any, where: str) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not math.isfinite(raw):
        raise ClaimProblem(f"{where}: must be a finite number, not {raw!r}")
    return float(raw)
