"""All results of the study, in memory: from trials, records and the measurement of memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from analysis.claims import FAILS, HOLDS, MEMORY, StudyResult
from analysis.endings import ENDINGS
from analysis.paper import OPTIMIZERS
from analysis.questions import OURS
from analysis.robustness import ROBUSTNESS
from analysis.trials import TrialResult
from analysis.verdicts import Rule
from analysis.words import WORDS
from engine.records import RecordError, read_json

QUESTIONS = {question.study: question for question in (*ENDINGS, *ROBUSTNESS, WORDS)}
HALF = 0.51  # of Adam's state: a scalar for each tensor comes on top
MEMORY_RULE = Rule(
    "Memory of the paper's four models with each optimizer, measured over two steps. Holds if "
    "NovoGrad's state is at most {half:g} of Adam's and its peak lower, for all four models.",
    {"half": HALF},
)


def study_results(trials: Sequence[TrialResult], memory: Path) -> dict[str, StudyResult]:
    """By name, of the studies that have results."""
    found = [question.result(trials) for question in QUESTIONS.values()]
    if memory.exists():
        found.append(memory_result(memory))
    return {one.study: one for one in found if one is not None}


def memory_result(path: Path) -> StudyResult:
    """From the megabytes that `benchmarks.memory` measured, by model and optimizer."""
    numbers: dict[str, dict[str, float]] = {}
    good, texts = [], []
    try:
        measured = read_json(path)
        if not measured:
            raise ValueError("no models")
        for model, by in measured.items():
            for key, what in (("state_mb", "state"), ("peak_mb", "peak")):
                values = {OPTIMIZERS[name]: float(found[key]) for name, found in by.items()}
                numbers[f"{model}, {what}, MB"] = values
            ours, adam = by[OURS], by["adam"]
            part = ours["state_mb"] / adam["state_mb"]
            good.append(part <= HALF and ours["peak_mb"] < adam["peak_mb"])
            texts.append(f"{model} {part:.3f}")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(f"{path} is not a measurement of memory: {error!r}") from error
    summary = f"NovoGrad's state as a part of Adam's: {', '.join(texts)}."
    return StudyResult(MEMORY, MEMORY_RULE, HOLDS if all(good) else FAILS, summary, numbers)
