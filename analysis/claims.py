"""The paper's claims, what decides each, and what a study found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from analysis.charts import Chart
from analysis.folders import PAPER
from analysis.trials import STUDY_NAMES
from analysis.verdicts import Rule

MEMORY = "memory"  # decided by a measurement, not by trials
# Studies of what the paper does not claim, and their headings.
EXPLANATIONS = {
    "passes": "After how many passes over the data does NovoGrad pay?",
    "variants": "Do the paper's variants of the algorithm differ from it?",
    "tensor_sizes": "Is NovoGrad behind here because large tensors move slowly?",
    "words": "Which words make the difference on text, and which layers move?",
}
HOLDS, FAILS, UNDECIDED = "holds at this scale", "does not hold", "undecided"
TESTED, NOT_RUN = "kept by tests", "not run"


class ClaimProblem(ValueError):
    """A claim or a remark that can't be read."""


@dataclass(frozen=True)
class StudyResult:
    """What a study found."""

    study: str
    rule: Rule
    verdict: str  # HOLDS, FAILS or UNDECIDED
    summary: str
    numbers: Mapping[str, Mapping[str, float]]
    curves: tuple[Chart, ...] = ()
    records: tuple[str, ...] = ()  # ids of the runs behind it


@dataclass(frozen=True)
class Measured:
    """A number of a benchmark: a field of some of its entries, one for each set of parameters."""

    file: str  # below results/
    field: str
    unit: str
    of: tuple[str, ...]


@dataclass(frozen=True)
class Claim:
    """A claim, where the paper makes it, and what decides it."""

    id: str
    claim: str
    where: str
    tests: tuple[str, ...] = ()  # as pytest names them
    study: str | None = None
    measured: Measured | None = None

    def verdict(self, studies: Mapping[str, StudyResult]) -> str:
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


def _read_claim(raw: Any, path: Path) -> Claim:
    where = f"{path}: {raw.get('id', raw) if isinstance(raw, dict) else raw}"
    name, claim, place, checked, measured = _take(
        raw, ("id", "claim", "where", "checked_by"), ("measured",), where
    )
    tests, study = _take(checked, (), ("tests", "study"), f"{where}: checked_by")
    if not tests and study is None:
        raise ClaimProblem(f"{where}: neither tests nor a study check it")
    known = (*STUDY_NAMES, MEMORY)
    if study is not None and study not in known:
        raise ClaimProblem(f"{where}: study {study!r}; known are {list(known)}")
    if measured is not None:
        file, field, unit, of = _take(measured, ("file", "field", "unit", "of"), (), where)
        measured = Measured(file, field, unit, tuple(of))
    return Claim(name, claim, place, tuple(tests or ()), study, measured)


def _take(raw: Any, needed: tuple[str, ...], optional: tuple[str, ...], where: str) -> list[Any]:
    """The values of a mapping in the order of the keys; other keys are refused."""
    if not isinstance(raw, dict):
        raise ClaimProblem(f"{where}: must be a mapping, not {raw!r}")
    unknown, missing = set(raw) - {*needed, *optional}, set(needed) - set(raw)
    if unknown or missing:
        raise ClaimProblem(f"{where}: unknown keys {sorted(unknown)}, missing {sorted(missing)}")
    return [raw.get(key) for key in (*needed, *optional)]
