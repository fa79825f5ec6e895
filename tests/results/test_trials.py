"""The table of the study's runs, and what tuning takes from it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from results.trials import DECAY, DIVERGED, RATES, Tuned, read_trials, to_csv, tune
from tests.results.made_up import outcome


def test_a_table_is_read_as_it_was_written(tmp_path: Path):
    rows = [
        outcome(at=0.1, value=51.25),
        outcome(at=10.0, value=None, status=DIVERGED),
        outcome(optimizer="adam", weight_decay=None, series="3 × the rate, with a comma"),
    ]
    (tmp_path / "trials.csv").write_text(to_csv(rows))
    assert set(read_trials(tmp_path / "trials.csv")) == set(rows)
    assert to_csv(rows) == to_csv(rows[::-1])
    assert read_trials(tmp_path / "nothing.csv") == []


def test_the_best_is_taken_and_never_what_diverged():
    rows = [
        outcome(study=RATES, lr=0.1, value=50.0),
        outcome(study=RATES, lr=1.0, value=55.0),
        outcome(study=RATES, lr=10.0, value=None, status=DIVERGED),
        outcome(study=DECAY, lr=1.0, weight_decay=0.5, value=56.0),
        outcome(study="headline", lr=7.0, value=99.0),
    ]
    key = (rows[0].data, rows[0].optimizer)
    assert tune(rows) == {key: Tuned(1.0, 0.5, 4)}
    lower = [replace(row, metric="valid/ppl", higher_is_better=False) for row in rows]
    assert tune(lower) == {key: Tuned(0.1, rows[0].weight_decay, 4)}
