"""What the study's runs say of the paper's claims: numbers, curves and verdicts, by stated rules.

Nothing is decided by hand: the rules are in the docstrings of the functions, which STUDY.md shows.
One data set alone decides nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from results.claims import STUDIES
from results.endings import headline, longer_training, regularisation, tensor_sizes
from results.outcomes import Reader
from results.robustness import beta2, initialisation, large_batch, rates, warmup
from results.study_json import Study
from results.trials import HEADLINE, RATES, Outcome, read_trials

TRIALS = STUDIES / "trials.csv"
FINDINGS: dict[str, Callable[[Sequence[Outcome], Reader], Study | None]] = {
    HEADLINE: headline,
    RATES: rates,
    "initialisation": initialisation,
    "warmup": warmup,
    "large_batch": large_batch,
    "longer_training": longer_training,
    "regularisation": regularisation,
    "beta2": beta2,
    "tensor_sizes": tensor_sizes,
}


def all_findings(folder: Path) -> dict[str, str]:
    """The texts of `studies/*.json` by name, from the table of trials and the records."""
    outcomes = read_trials(folder / "studies" / TRIALS.name)
    files = {path.stem: path for path in (folder / "runs").rglob("*.json")} if outcomes else {}

    def read(run_id: str) -> Mapping[str, Any]:
        path = files.get(run_id.rpartition("/")[2])
        found: Mapping[str, Any] = json.loads(path.read_text()) if path else {}
        return found

    studies = {name: find(outcomes, read) for name, find in FINDINGS.items()}
    return {
        name: json.dumps(study, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        for name, study in studies.items()
        if study is not None
    }
