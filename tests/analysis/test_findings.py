"""All studies have a question, and memory is judged by what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analysis.claims import FAILS, HOLDS, MEMORY
from analysis.findings import QUESTIONS, memory_result, study_results
from analysis.trials import STUDY_NAMES
from engine.records import RecordError


def test_all_studies_are_known_and_need_results():
    assert set(QUESTIONS) == set(STUDY_NAMES)
    for question in QUESTIONS.values():
        assert question.result([]) is None
        assert "Holds if" in str(question.rule)
        assert "{" not in str(question.rule)  # thresholds are filled in


def measured(folder: Path, state: float, peak: float) -> Path:
    path = folder / "memory.json"
    adam = {"state_mb": 200.0, "peak_mb": 700.0}
    model = {"adam": adam, "novograd": {"state_mb": state, "peak_mb": peak}}
    path.write_text(json.dumps({"A": model, "B": model}))
    return path


@pytest.mark.parametrize(
    ("state", "peak", "verdict"), [(100, 600, HOLDS), (104, 600, FAILS), (100, 700, FAILS)]
)
def test_memory(state: float, peak: float, verdict: str, tmp_path: Path):
    path = measured(tmp_path, state, peak)
    found = study_results([], path)
    assert set(found) == {MEMORY}
    assert found[MEMORY].verdict == verdict
    assert found[MEMORY].numbers["A, state, MB"] == {"Adam": 200.0, "NovoGrad": state}
    assert study_results([], tmp_path / "nothing.json") == {}


@pytest.mark.parametrize("text", ["{}", '{"A": {"adam": {}}}', '{"A": 3}', "3"])
def test_a_measurement_that_can_not_be_read(text: str, tmp_path: Path):
    path = tmp_path / "memory.json"
    path.write_text(text)
    with pytest.raises(RecordError, match="is not a measurement of memory"):
        memory_result(path)
