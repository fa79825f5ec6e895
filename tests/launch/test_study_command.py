"""`python -m scripts.study`: tuning first, and what counts as done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from analysis.trials import DECAY, HEADLINE, RATES, TrialResult, read_trials
from engine.records import read_own_records
from launch import study_stages, sweep_state
from launch.scheduler import Job
from launch.study import FILE
from scripts import study
from tests.launch.instant_runs import InstantRuns
from tests.launch.study_plans import PLAN, tried, write_plan


def best_at_a_tenth(job: Job) -> dict[str, float]:
    """Best at 0.1, the last of NovoGrad's rates, and with the tenfold decay."""
    config = job.spec.config
    lr, decay = config.optimizer["lr"], config.optimizer["weight_decay"]
    return {"val/top1": 50.0 - 10 * abs(lr - 0.1) + decay + config.seed}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, InstantRuns]]:
    file = write_plan(tmp_path)
    monkeypatch.setattr(study, "FILE", file)
    monkeypatch.setattr(study, "measure_all", lambda path: None)
    monkeypatch.setattr(study, "BENCH", tmp_path)
    monkeypatch.setattr(study, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(study_stages, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(study_stages, "STUDIES", tmp_path / "studies")
    monkeypatch.setenv("DATA_ROOT", str(tmp_path / "nothing here"))

    def run(*given: str, runs: InstantRuns | None = None) -> tuple[int, InstantRuns]:
        runs = runs or InstantRuns(best_at_a_tenth)
        monkeypatch.setattr(sweep_state, "run_jobs", runs)
        base = ["scale=smoke", "hardware=cpu", "--jobs", "1"]
        return study.main([*base, f"paths.outputs={tmp_path / 'outputs'}", *given]), runs

    return run


def results_of(folder: Path) -> list[TrialResult]:
    records = {one.run_id: one for one in read_own_records(folder / "outputs")}
    return read_trials(folder / "outputs" / "study" / "trials.csv", records)


def test_everything_follows_from_tuning(run, tmp_path: Path, capsys):
    status, runs = run()
    assert status == 0
    output = capsys.readouterr().out
    assert "tiny-imagenet-20 is left out: " in output
    results = results_of(tmp_path)
    assert {one.trial.data for one in results} == {"digits"}
    for optimizer, lr, decay in (("sgd", 0.1, 0.001), ("novograd", 0.1, 0.02)):
        own = [one for one in results if one.trial.optimizer == optimizer]
        studies = [one.trial.study for one in own]
        assert [studies.count(name) for name in (RATES, DECAY)] == [3, 1]
        after = [one for one in own if one.trial.study in (HEADLINE, "initialisation")]
        assert len(after) == 4
        assert {(one.option("lr"), one.option("weight_decay")) for one in after} == {(lr, decay)}
    # 3 rates, a decay, two seeds and a gain each; gain 1 is the first seed of the headline.
    assert len(runs.jobs) == 2 * 7
    assert len(set(runs.run_ids)) == len(runs.jobs)
    assert "13 of 14 runs finished, about" in output
    page = (tmp_path / "outputs" / "study" / "STUDY.md").read_text()
    assert "| digits | NovoGrad | 0.1 (highest tried) | 0.02 (highest tried) | 4 |" in page


def test_a_second_call_resumes_and_published_records_count_only_if_asked(run, tmp_path: Path):
    status, first = run(runs=InstantRuns(best_at_a_tenth, most=5))
    assert (status, len(first.jobs)) == (75, 5)
    status, second = run()
    assert (status, len(second.jobs)) == (0, 9)
    assert run()[1].jobs == []
    (tmp_path / "outputs" / "imagenet").rename(tmp_path / "runs")
    for path in (tmp_path / "runs").rglob("status.json"):
        path.unlink()
    assert run("--keep")[1].jobs == []
    assert len(run()[1].jobs) == 14


def test_trials_that_are_no_longer_asked_for_are_forgotten(run, tmp_path: Path):
    run()
    rows = PLAN["data"]["digits"]["rows"]
    data = PLAN["data"] | {"digits": {"rows": {"novograd": rows["novograd"]}}}
    write_plan(tmp_path, rates=[0.1, 1.0, 3.0], data=data)
    assert run()[0] == 0
    results = results_of(tmp_path)
    assert tried([one.trial for one in results]) == {"novograd": [0.001, 0.01, 0.03]}
    assert {one.option("lr") for one in results if one.trial.study == HEADLINE} == {0.03}


def test_memory_is_measured_once(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    measured: list[Path] = []
    monkeypatch.setattr(study, "measure_all", measured.append)
    assert run("--keep")[0] == 0
    assert measured == [tmp_path / "memory.json"]  # there was none
    assert run()[0] == 0
    own = tmp_path / "outputs" / "study" / "memory.json"
    assert measured[1:] == [own]
    own.write_text('{"A": {"adam": {"state_mb": 2, "peak_mb": 2}, "novograd": '
                   '{"state_mb": 1, "peak_mb": 1}}}')  # fmt: skip
    assert run()[0] == 0
    assert len(measured) == 2


def test_what_diverged_is_a_result_and_what_failed_is_run_again(run, tmp_path: Path, capsys):
    failing = "sgd, optimizer.lr=0.01 optimizer.weight_decay=0.0001 seed=0"

    def outcome(job: Job) -> dict[str, float] | int:
        if failing in job.name:
            return 1
        return 5 if "optimizer.lr=1.0 " in job.name else best_at_a_tenth(job)

    assert run(runs=InstantRuns(outcome))[0] == 1
    assert f"{failing}: failed; see " in capsys.readouterr().err
    (diverged,) = [one for one in results_of(tmp_path) if one.value is None]
    assert (diverged.status, diverged.trial.at) == ("diverged", 1.0)
    status, runs = run()
    assert status == 0
    assert [job.name for job in runs.jobs] == [f"lr_robustness: digits, {failing}"]


def test_plan_and_quick(run, capsys):
    status, runs = run("--plan")
    assert (status, runs.jobs) == (0, [])
    assert "runs       14, 0 done, 14 to do" in capsys.readouterr().out
    status, runs = run("--quick")
    assert (status, len(runs.jobs)) == (0, 2 * 5)  # three rates, a decay and one seed each


def test_wrong_arguments(run, tmp_path: Path, capsys):
    assert run("--data", "mnist")[0] == 2
    assert "--data mnist: the study has digits, tiny-imagenet-20" in capsys.readouterr().err
    for given in (["seed=4"], ["--jobs", "0"], ["seed"]):
        with pytest.raises(SystemExit, match="2"):
            run(*given)
    write_plan(tmp_path, quick=None)
    assert run("--quick")[0] == 2
    assert "has no `quick`" in capsys.readouterr().err
    assert FILE.name == "study.yaml"
