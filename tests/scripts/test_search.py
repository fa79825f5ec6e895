"""Searches: points from ranges, on the same slots, with the same records."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.config import ConfigProblem
from engine.record import write_record
from results.sweeps import read_results
from scripts import search, sweep
from scripts.fleet import Job, Slot
from scripts.grid import Range, Sweep, read_sweep
from scripts.search import OptunaSearch, random_points
from scripts.train import record_path, write_status
from tests.scripts.sweeping import record_of

EXPERIMENTS = ["imagenet/sgd_100ep", "imagenet/novograd_100ep"]
RANGES = {"multiply.lr": Range(0.1, 10.0, True), "init_gain": Range(0.5, 2.0, False)}


def make_sweep(kind: str, trials: int, **changes: Any) -> Sweep:
    given = {"experiments": EXPERIMENTS, "axes": RANGES, "words": ["scale=smoke"]} | changes
    own = {"group_by": ["experiment"], "along": None, "metric": None}
    return Sweep(name="made_up", search=kind, trials=trials, **given | own)


def test_random_points_are_the_same_for_all_and_stay_when_more_are_wanted():
    few, many = (random_points(make_sweep("random", trials)) for trials in (10, 100))
    assert (len(few), len(many)) == (20, 200)
    sgd, novograd = few[:10], few[10:]
    assert [p.values["multiply.lr"] for p in sgd] == [p.values["multiply.lr"] for p in novograd]
    assert sgd == many[:10]
    rates = [math.log10(p.values["multiply.lr"]) for p in many]
    assert -1 <= min(rates) < -0.8
    assert 0.8 < max(rates) <= 1
    assert abs(sum(rates) / len(rates)) < 0.15
    assert all(0.5 <= p.values["init_gain"] <= 2.0 for p in many)
    assert sgd[0].words[0] == "experiment=imagenet/sgd_100ep"


def test_a_space_with_few_points_is_no_endless_search():
    axes = {"multiply.lr": [1.0, 2.0]}
    points = random_points(make_sweep("random", 10, axes=axes, experiments=EXPERIMENTS[:1]))
    assert sorted(p.values["multiply.lr"] for p in points) == [1.0, 2.0]


def test_ranges_are_read():
    words = ["experiment=imagenet/novograd_100ep", "scale=smoke", "search=random", "trials=3"]
    found, _ = read_sweep([*words, "multiply.lr=log(0.1,10)", "init_gain=uniform(0.5, 2)"])
    assert found.axes == RANGES
    assert (found.search, found.trials, found.along) == ("random", 3, "multiply.lr")


def test_without_optuna_there_is_a_message(monkeypatch):
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(search.importlib, "import_module", missing)
    with pytest.raises(ConfigProblem, match="pip install optuna, or say search=random"):
        search.load_optuna()


def test_a_study_goes_on_after_a_kill(tmp_path):
    pytest.importorskip("optuna")
    made_up = make_sweep("optuna", 6, experiments=EXPERIMENTS[:1])
    file = tmp_path / "optuna.db"
    first = OptunaSearch(made_up, file, "mark", True)
    asked = first.ask()
    told = [next(asked) for _ in range(3)]
    first.tell(told[0][0], 70.0)
    first.tell(told[1][0], None)  # diverged; the third runs when the search is killed

    second = OptunaSearch(made_up, file, "mark", True)
    assert [point.values for point in second.told()] == [point.values for _, point in told[:2]]
    asked_again = []
    for ticket, point in second.ask():
        asked_again.append(point)
        second.tell(ticket, 60.0)
    assert asked_again[0] == told[2][1]
    assert len(asked_again) == 4
    assert len({point.words for point in [*asked_again, *(point for _, point in told)]}) == 6
    assert not list(OptunaSearch(made_up, file, "mark", True).ask())
    assert OptunaSearch(made_up, file, "other", True).told() == []


class Runs:
    """Stands for run_jobs: makes records at once, up to a number of runs."""

    def __init__(self, most: int = 1000) -> None:
        self.most, self.names = most, []  # type: tuple[int, list[str]]

    def __call__(
        self,
        jobs: Iterable[Job],
        slots: Sequence[Slot],
        *,
        ended: Callable[[Job], None],
        to_logs: bool,
    ) -> bool:
        for job in jobs:
            if len(self.names) == self.most:
                job.told = 1
                return False
            self.names.append(job.prepared.run_id)
            job.exit_status = self.run(job)
            ended(job)
        return True

    def run(self, job: Job) -> int:
        """Best at a rate of 0.007; diverges above 0.03."""
        config = job.prepared.config
        away = math.log10(config.optimizer["lr"] / 0.007)
        job.prepared.folder.mkdir(parents=True)
        write_status(job.prepared.folder, "diverged" if away > 0.6 else "finished", "")
        if away > 0.6:
            return 5
        metrics = {"val/top1": 80 - 10 * away**2}
        record = record_of(job) | {"final": metrics, "best": metrics}
        write_record(record_path(config, job.prepared.run_id), record)
        return 0


def arguments(folder: Path, data: Path, kind: str) -> list[str]:
    paths = [f"paths.{name}={folder / name}" for name in ("outputs", "records")]
    words = ["experiment=imagenet/novograd_100ep", "multiply.lr=log(0.1,10)", f"search={kind}"]
    return [*words, "trials=4", "scale=smoke", "hardware=cpu", f"paths.data={data}", *paths]


@pytest.mark.parametrize("kind", ["random", "optuna"])
def test_a_search_that_is_stopped_goes_on(kind, tmp_path, monkeypatch, capsys):
    if kind == "optuna":
        pytest.importorskip("optuna")
    words = arguments(tmp_path, tmp_path / "data", kind)
    first = Runs(most=2)
    monkeypatch.setattr(sweep, "run_jobs", first)
    assert sweep.main(words) == 75
    assert "4 trials, " + kind in capsys.readouterr().out
    second = Runs()
    monkeypatch.setattr(sweep, "run_jobs", second)
    assert sweep.main(words) == 0
    output = capsys.readouterr().out
    assert "runs       4, 2 done, 2 to do" in output
    assert len(set(first.names + second.names)) == 4
    (path,) = tmp_path.glob("outputs/sweeps/by_hand/*/results.json")
    results = read_results(path)
    assert {run.run_id for run in results.runs} == {*first.names, *second.names}
    assert all(run.status in ("finished", "diverged") for run in results.runs)
    assert (path.parents[1] / "optuna.db").exists() == (kind == "optuna")
    third = Runs()
    monkeypatch.setattr(sweep, "run_jobs", third)
    assert sweep.main(words) == 0
    assert not third.names
