"""The table of trials, their values from records, and what tuning takes from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from analysis.trials import DECAY, RATES, STUDY_NAMES, Tuned, read_trials, to_csv, tune
from engine.records import RecordError
from tests.analysis.fake_trials import result


def test_a_table_has_identities_and_the_records_have_the_values(tmp_path: Path):
    rows = [
        result(51.25, at=0.1, run_id="a/b-0-s0"),
        result(None, at=10.0, run_id="a/b-1-s0"),
        result(optimizer="adam", series="3 × the rate, with a comma", run_id="a/b-2-s0"),
    ]
    records = {one.run_id: one.record for one in rows if one.record}
    path = tmp_path / "trials.csv"
    path.write_text(to_csv([*rows, result(None, status="missing", at=7.0)]))
    assert set(path.read_text().splitlines()[0].split(",")) & {"value", "lr"} == set()
    found = read_trials(path, records)
    assert {one.trial for one in found} == {one.trial for one in rows}
    assert sorted(one.value or 0.0 for one in found) == [0.0, 50.0, 51.25]
    assert to_csv(rows) == to_csv(rows[::-1])
    assert read_trials(tmp_path / "nothing.csv", {}) == []


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("s0", "s9"), "line 2: there is no record of a/b-0-s9"),
        (("finished", "missing"), "line 2: status 'missing' is none of"),
        ((",0.1,", ",x,"), "line 2 is not a trial"),
        (("run_id", "id"), "line 2 is not a trial: 'run_id'"),
    ],
)
def test_a_table_that_can_not_be_read(change, complaint, tmp_path: Path):
    one = result(at=0.1, run_id="a/b-0-s0")
    assert one.record
    path = tmp_path / "trials.csv"
    path.write_text(to_csv([one]).replace(*change))
    with pytest.raises(RecordError, match=f"trials.csv: {complaint}"):
        read_trials(path, {one.run_id: one.record})


def test_own_trials_whose_runs_were_deleted_are_left_out(tmp_path: Path):
    path = tmp_path / "trials.csv"
    path.write_text(to_csv([result(at=0.1), result(None, at=0.2)]))
    assert [one.status for one in read_trials(path, {}, strict=False)] == ["diverged"]


def test_a_value_is_that_of_a_finished_run_and_finite():
    assert result(20.0, metric="dev-clean/wer").quality == 80.0
    assert result(20.0, metric="dev-clean/wer").score == -20.0
    infinite = result(float("inf"), metric="valid/ppl")
    assert (infinite.value, infinite.quality) == (None, None)
    assert replace(result(), status="diverged").value is None
    assert result(final={"test/top1": 49.0}).final("test/top1") == 49.0


def test_the_best_is_taken_and_never_what_diverged():
    rows = [
        result(50.0, study=RATES, at=0.1),
        result(55.0, study=RATES, at=1.0),
        result(None, study=RATES, at=10.0),
        result(56.0, study=DECAY, at=0.5, options={"lr": 1.0, "weight_decay": 0.5}),
        result(99.0, study="headline", at=7.0),
    ]
    assert tune(rows) == {("one", "novograd"): Tuned(1.0, 0.5)}
    lower = [replace(one, trial=replace(one.trial, metric="valid/ppl")) for one in rows]
    assert tune(lower) == {}  # their records have no perplexity
    worse = [
        result(v, study=RATES, at=x, metric="valid/ppl") for x, v in ((0.1, 50.0), (1.0, 55.0))
    ]
    assert tune(worse) == {("one", "novograd"): Tuned(0.1, 0.001)}
    assert tune([result(None)]) == {}


def test_names_of_studies_are_unique():
    assert len(set(STUDY_NAMES)) == len(STUDY_NAMES)
