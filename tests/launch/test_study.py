"""The study: its file, tuning first, grids that are extended, and what counts as done."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from analysis.trials import DECAY, HEADLINE, RATES, Trial, TrialResult, Tuned, read_trials, tune
from engine.config import ConfigProblem
from engine.records import read_own_records, read_records
from launch import study_stages, sweep_state
from launch.compose import compose
from launch.config_files import ROOT
from launch.scheduler import Job
from launch.study import FILE, SHORT, StudyPlan, read_study
from launch.study_stages import StudyStages, beyond
from scripts import study
from tests.analysis.fake_trials import record, result
from tests.launch.instant_runs import InstantRuns

TUNED = Tuned(0.123, 0.0456)
PLAN: dict[str, Any] = {
    "scale": "mini",
    "seeds": [0, 1],
    "rates": [0.1, 1.0, 10.0],
    "decays": [10.0],
    "quick": {"data": ["digits"], "seeds": [0]},
    "data": {
        "digits": {
            "rows": {
                "sgd": {"experiment": "imagenet/sgd_100ep", "lr": 0.1, "weight_decay": 0.0001},
                "novograd": {
                    "experiment": "imagenet/novograd_100ep",
                    "lr": 0.01,
                    "weight_decay": 0.002,
                },
            },
        },
        "tiny-imagenet-20": {
            "small_data": "tiny_imagenet_20",
            "rows": {"novograd": {"experiment": "imagenet/novograd_100ep", "lr": 0.01}},
        },
    },
    "studies": {
        "initialisation": {
            "data": {"digits": []},
            "points": [{"at": 1.0}, {"at": 4.0, "overrides": ["init_gain=4.0"]}],
        }
    },
}


def write_plan(folder: Path, **changes: Any) -> Path:
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(PLAN | changes))
    return path


# --- configs/study.yaml ---


@pytest.fixture(scope="module")
def plan() -> StudyPlan:
    return read_study()


def missing(trial: Trial) -> TrialResult:
    return TrialResult(trial, "", "missing")


def test_all_four_tasks_on_two_data_sets_each(plan: StudyPlan):
    tasks = [row.task for row in plan.rows.values()]
    rows = {"imagenet": 6, "librispeech": 6, "wmt14": 6, "wikitext103": 6}
    assert {task: tasks.count(task) for task in tasks} == rows


def test_every_optimizer_has_as_many_tuning_trials_over_a_decade_or_two(plan: StudyPlan):
    expected = [*StudyStages(plan).expected(missing)]
    for data, options in plan.data.items():
        assert "novograd" in options.rows
        tuning = [t for t in expected if t.data == data and t.study in (RATES, DECAY)]
        assert len({sum(t.optimizer == name for t in tuning) for name in options.rows}) == 1
        assert options.rates == sorted(set(options.rates))
        span = 100.0 if options.small_data == "own" else 10.0
        assert options.rates[-1] / options.rates[0] >= 0.99 * span


def test_all_runs_compose(plan: StudyPlan):
    for trial in StudyStages(plan).expected(missing):
        assert f"seed={trial.seed}" in trial.overrides
        if trial.seed:
            continue  # the same but for the seed
        raw = compose(list(trial.overrides))
        assert raw["scale"] == "mini"
        tunes = trial.study in (RATES, DECAY) or trial.study.endswith(", tuning")
        assert raw["evaluation"]["final"] != tunes  # tuning does not see test data
        split = trial.metric.partition("/")[0]
        assert tunes == (split in ("val", "valid", "dev-clean"))
        if trial.study == RATES:
            assert raw["optimizer"]["lr"] == trial.at


def points(plan: StudyPlan, study: str) -> dict[float, dict[str, Any]]:
    """The points of NovoGrad on CIFAR-10 by position, the first series."""
    found: dict[float, dict[str, Any]] = {}
    for point in plan.studies[study].points:
        values = point.scaled("novograd", TUNED)
        for trial in plan.point_trials(study, point, "cifar10", "novograd", values):
            found.setdefault(trial.at, compose(list(trial.overrides)))
    return found


def test_points_are_relative_to_what_tuning_found(plan: StudyPlan):
    batches = points(plan, "large_batch")
    assert [one["batch"]["global_size"] for one in batches.values()] == [16, 128, 512]
    # Table 3: 0.007, 0.016 and 0.026; 0.002, 0.006 and 0.01.
    rates = [one["optimizer"]["lr"] / 0.123 for one in batches.values()]
    assert rates == pytest.approx([1, 16 / 7, 26 / 7], rel=0.01)
    decays = [one["optimizer"]["weight_decay"] / 0.0456 for one in batches.values()]
    assert decays == pytest.approx([1, 3, 5], rel=0.01)
    budgets = [float(one["budget"].split()[0]) for one in points(plan, "longer_training").values()]
    assert budgets == pytest.approx([budgets[0], 2 * budgets[0], 3 * budgets[0]])
    assert {one["lr_per_tensor"] for one in points(plan, "tensor_sizes").values()} == {"sqrt_size"}


def test_overrides_of_every_run():
    trial = read_study(["scale=smoke", "tracking=off"]).rate_trial("cifar10", "sgd", 0.1)
    assert trial.overrides[-2:] == ("scale=smoke", "tracking=off")
    assert "scale=mini" not in trial.overrides


def test_the_scales_own_rates_are_where_the_studys_grids_begin(plan: StudyPlan):
    """Its rows are then tuned rows as soon as the study's results are written there."""
    for (data, _), row in plan.rows.items():
        if plan.data[data].small_data == "own":
            raw = compose([f"experiment={row.experiment}", f"scale={plan.scale}"])["optimizer"]
            assert raw["lr"] == row.lr
            assert row.weight_decay in (None, raw.get("weight_decay"))


def test_points_of_some_data_sets_only(plan: StudyPlan):
    """Few passes at as many steps need more data than there are spoken commands."""
    trials = [t for t in StudyStages(plan).expected(missing) if t.study == "passes"]
    asked = {data: sorted({t.at for t in trials if t.data == data}) for data in plan.data}
    asked = {data: points for data, points in asked.items() if points}
    assert asked == {
        "cifar10": [1.5, 3, 10, 30, 100],
        "small-wiki": [1.5, 3, 10, 30, 100],
        "spoken-commands": [20, 60],
        "program-messages": [30, 60],
        "multi30k": [3, 10, 30, 60],
    }


@pytest.mark.parametrize("file", [FILE, SHORT], ids=lambda file: file.stem)
def test_published_trials_are_those_of_the_file(file: Path):
    """And where all of a data set's are published, the rows of the scale have what tuning found."""
    plan = read_study(path=file)
    records = {one.run_id: one for one in read_records(ROOT / "results" / "runs")}
    published = read_trials(ROOT / "results" / "studies" / file.stem / "trials.csv", records)
    by_trial = {one.trial: one for one in published}
    known = {*StudyStages(plan).known(lambda trial: by_trial.get(trial, missing(trial)))}
    assert set(by_trial) <= known
    whole = set(plan.data) - {trial.data for trial in known - set(by_trial)}
    tuned = tune(published)
    for (data, optimizer), row in plan.rows.items():
        if data in whole and plan.data[data].small_data == "own":
            raw = compose([f"experiment={row.experiment}", f"scale={plan.scale}"])["optimizer"]
            assert Tuned(raw["lr"], raw.get("weight_decay")) == tuned[data, optimizer]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seeds": "all"}, r"study.yaml: seeds must be a list"),
        ({"sets": []}, "sets is not a known key"),
        ({"studies": {"sleep": {"data": {}, "points": []}}}, "no study has this name"),
        ({"studies": {"beta2": {"data": {"mnist": []}, "points": []}}}, "mnist is not a data set"),
        ({"studies": {"beta2": {"data": {}, "points": [{"on": 1}]}}}, "on is not a known key"),
        ({"data": {"x": {"rows": {"sgd": {"experiment": "a"}}}}}, "x.rows.sgd.lr is missing"),
        ({"data": {"x": {"rows": {}, "small_data": "mnist"}}}, "small_data=mnist does not exist"),
        (
            {"data": {"x": {"rows": {n: {"experiment": "a", "lr": 1} | d for n, d in
             (("sgd", {}), ("adam", {"weight_decay": 0.1}))}}}},
            "x.rows: tune weight_decay of all optimizers or of none",
        ),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused(change: dict[str, Any], message: str, tmp_path: Path):
    with pytest.raises(ConfigProblem, match=message):
        read_study(path=write_plan(tmp_path, **{"studies": {}} | change))


# --- Stages ---


def follow(plan: StudyPlan, value: Callable[[Trial, float], float | None]) -> list[Trial]:
    """All trials, where every run ends at once with the value of its trial and learning rate."""

    def ended(trial: Trial) -> TrialResult:
        options = dict(word.split("=") for word in trial.overrides if word.startswith("optimizer."))
        lr, decay = (float(options.get(f"optimizer.{k}", 0)) for k in ("lr", "weight_decay"))
        found = value(trial, lr)
        if found is None:
            return TrialResult(trial, "a/b-0-s0", "diverged")
        metrics = {trial.metric: found}
        given = record("a/b-0-s0", metrics, lr=lr, weight_decay=decay)
        return TrialResult(trial, "a/b-0-s0", "finished", given)

    return [*StudyStages(plan).known(ended)]


def peaks(**at: float) -> Callable[[Trial, float], float]:
    """Best at a learning rate by optimizer."""
    return lambda trial, lr: 50.0 - abs(math.log10(lr / at[trial.optimizer]))


def tried(trials: list[Trial], study: str = RATES) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for trial in trials:
        if trial.study == study and trial.data == "digits":
            found.setdefault(trial.optimizer, []).append(trial.at)
    return {name: sorted(values) for name, values in found.items()}


def test_a_grid_is_extended_until_no_best_value_lies_at_an_edge(tmp_path: Path):
    """SGD's best is 10 times beyond its grid, NovoGrad's in the middle, nearer to the lower end."""
    plan = read_study(path=write_plan(tmp_path, extend=5)).only(["digits"])
    found = tried(follow(plan, peaks(sgd=10.0, novograd=0.009)))
    assert found["sgd"] == [0.01, 0.1, 1.0, 10.0, 100.0]
    assert len(found["novograd"]) == len(found["sgd"])  # as many trials for everyone
    assert found["novograd"] == [0.0001, 0.001, 0.01, 0.1, 1.0] or found["novograd"] == [
        1e-05, 0.0001, 0.001, 0.01, 0.1,
    ]  # fmt: skip
    headline = [t for t in follow(plan, peaks(sgd=10.0, novograd=0.009)) if t.study == HEADLINE]
    assert {t.overrides[3] for t in headline} == {"optimizer.lr=10.0", "optimizer.lr=0.01"}


def test_a_grid_is_extended_by_a_number_of_values_at_most(tmp_path: Path):
    for extend in (0, 2):
        plan = read_study(path=write_plan(tmp_path, extend=extend)).only(["digits"])
        found = tried(follow(plan, peaks(sgd=1e6, novograd=0.01)))
        assert [len(values) for values in found.values()] == [3 + extend] * 2
        assert found["sgd"][-1] == 1.0 * 10**extend


def test_where_everything_diverges_smaller_values_are_tried(tmp_path: Path):
    plan = read_study(path=write_plan(tmp_path, extend=3)).only(["digits"])

    def value(trial: Trial, lr: float) -> float | None:
        return (
            None if trial.optimizer == "sgd" and lr > 0.002 else 50.0 - abs(math.log10(lr / 0.01))
        )

    found = tried(follow(plan, value))
    assert found["sgd"] == [0.0001, 0.001, 0.01, 0.1, 1.0]
    assert len(found["novograd"]) == 5


def test_the_decay_of_the_rates_counts_as_a_value_of_the_decays(tmp_path: Path):
    plan = read_study(path=write_plan(tmp_path, extend=2, decays=[0.1, 10.0])).only(["digits"])
    flat = tried(follow(plan, peaks(sgd=0.1, novograd=0.01)), DECAY)
    assert flat["sgd"][0] < 0.0001 < flat["sgd"][-1]  # equal everywhere: the first is taken
    better = follow(plan, lambda t, lr: peaks(sgd=0.1, novograd=0.01)(t, lr) - (t.study == DECAY))
    assert tried(better, DECAY) == {"sgd": [1e-05, 0.001], "novograd": [0.0002, 0.02]}


def test_next_value_beyond_the_nearer_edge():
    def grid(best: float) -> dict[float, TrialResult]:
        return {x: result(60.0 if x == best else 50.0, at=x) for x in (0.1, 1.0, 10.0, 30.0)}

    assert [beyond(grid(best)) for best in (0.1, 1.0, 10.0, 30.0)] == [0.01, 0.01, 90.0, 90.0]
    assert beyond({x: result(None, at=x) for x in (1.0, 2.0)}) == 0.5


def test_points_are_tuned_again_where_a_study_asks(tmp_path: Path):
    """Three rates around the tuned one, on validation data; all seeds at the best, on test data."""
    passes = {
        "data": {"digits": ["budget='40 steps'"]},
        "points": [
            {"at": at, "overrides": {"digits": [f"init_gain={at}"], "other": ["seed=9"]}}
            for at in (1.0, 10.0)
        ],
        "seeds": [0, 1, 2],
        "rates": [0.1, 1.0, 10.0],
    }
    data = {"digits": PLAN["data"]["digits"] | {"report_split": "test"}}
    plan = read_study(path=write_plan(tmp_path, studies={"passes": passes}, data=data, decays=[]))

    def value(trial: Trial, lr: float) -> float:
        best = 1.0 if "init_gain=10.0" in trial.overrides else 0.1
        return 50.0 - abs(math.log10(lr / best))

    found = follow(plan, value)
    again = [t for t in found if t.study == "passes, tuning"]
    assert len(again) == 2 * 2 * 3
    assert {t.metric for t in again} == {"val/top1"}
    assert {t.series for t in again} == {"at 1", "at 10"}
    assert all("evaluation.final=false" in t.overrides for t in again)
    final = [t for t in found if t.study == "passes"]
    assert len(final) == 2 * 2 * 3
    assert {t.metric for t in final} == {"test/top1"}
    assert {t.metric for t in found if t.study == HEADLINE} == {"test/top1"}
    chosen = {(t.at, next(w for w in t.overrides if "optimizer.lr" in w)) for t in final}
    assert chosen == {(1.0, "optimizer.lr=0.1"), (10.0, "optimizer.lr=1.0")}
    assert all("budget='40 steps'" in t.overrides and "seed=9" not in t.overrides for t in final)


# --- The command ---


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
