"""The study: tuning first, everything from what it found, and what counts as done."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from results.trials import DECAY, HEADLINE, RATES, read_trials
from scripts import study
from scripts.fleet import Job
from scripts.study_plan import read_plan
from scripts.supervise import record_of
from scripts.train import write_status

PLAN = {
    "seeds": [0, 1],
    "rates": [0.1, 1.0, 10.0],
    "decays": [10.0],
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
            "points": [{"at": 1.0}, {"at": 4.0, "words": ["init_gain=4.0"]}],
        }
    },
}


class Fleet:
    """Takes the place of `run_jobs`: makes runs at once, as they are ordered."""

    def __init__(self, most: int = 1000) -> None:
        self.most = most
        self.made: list[dict[str, Any]] = []
        self.endings: dict[str, int] = {}  # by part of a job's name

    def __call__(
        self,
        jobs: Iterable[Job | None],
        slots: int,
        *,
        ended: Callable[[Job], None],
        to_logs: bool,
    ) -> bool:
        for job in jobs:
            assert job is not None  # the one before has ended
            if len(self.made) >= self.most:
                return False
            self.made.append({"name": job.name, "run": job.prepared.run_id})
            job.started = time.monotonic()
            job.exit_status = next((s for part, s in self.endings.items() if part in job.name), 0)
            self.end(job)
            ended(job)
        return True

    def end(self, job: Job) -> None:
        config = job.prepared.config
        job.prepared.folder.mkdir(parents=True, exist_ok=True)
        names = {0: "finished", 5: "diverged"}
        write_status(job.prepared.folder, names.get(job.exit_status or 0, "failed"), "")
        if job.exit_status == 0:
            # Both are best at 0.1, the last of NovoGrad's rates, and with the tenfold decay.
            lr, decay = config.optimizer["lr"], config.optimizer["weight_decay"]
            value = 50.0 - 10 * abs(lr - 0.1) + decay + config.seed
            path = record_of(job.prepared)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"final": {"val/top1": value}}))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, Fleet]]:
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump(PLAN))
    monkeypatch.setattr(study, "read_plan", lambda words: read_plan(words, file))
    monkeypatch.setattr(study, "TRIALS", tmp_path / "trials.csv")
    monkeypatch.setattr(study, "measure_all", lambda path: None)
    monkeypatch.setattr(study, "report", lambda words: 0)
    monkeypatch.setattr(study, "read_records", lambda folders: [])
    monkeypatch.setenv("DATA_ROOT", str(tmp_path / "nothing here"))
    paths = [f"paths.{name}={tmp_path / name}" for name in ("outputs", "records")]

    def run(*words: str, fleet: Fleet | None = None) -> tuple[int, Fleet]:
        fleet = fleet or Fleet()
        monkeypatch.setattr(study, "run_jobs", fleet)
        status = study.main(["scale=smoke", "hardware=cpu", "--jobs", "1", *paths, *words])
        return status, fleet

    return run


def test_everything_follows_from_tuning(world, tmp_path: Path, capsys):
    status, fleet = world()
    assert status == 0
    outcomes = read_trials(tmp_path / "trials.csv")
    output = capsys.readouterr().out
    assert "tiny-imagenet-20 is left out: " in output
    assert {one.data for one in outcomes} == {"digits"}
    for optimizer, lr, decay in (("sgd", 0.1, 0.001), ("novograd", 0.1, 0.02)):
        own = [one for one in outcomes if one.optimizer == optimizer]
        studies = [one.study for one in own]
        assert [studies.count(name) for name in (RATES, DECAY)] == [3, 1]
        after = [one for one in own if one.study in (HEADLINE, "initialisation")]
        assert len(after) == 4
        assert {(one.lr, one.weight_decay) for one in after} == {(lr, decay)}
    # 3 rates, a decay, two seeds and a gain each; gain 1 is the first seed of the headline.
    assert len(fleet.made) == 2 * 7
    assert len({made["run"] for made in fleet.made}) == len(fleet.made)
    assert "13 of 14 runs, about a minute left" in output


def test_a_second_call_goes_on_and_records_alone_do_not_count(world, tmp_path: Path):
    status, first = world(fleet=Fleet(most=5))
    assert (status, len(first.made)) == (75, 5)
    status, second = world()
    assert (status, len(second.made)) == (0, 9)
    assert world()[1].made == []
    for path in (tmp_path / "outputs").rglob("status.json"):
        path.unlink()
    assert world("--keep")[1].made == []
    assert len(world()[1].made) == 14


def test_trials_that_are_no_longer_asked_for_are_forgotten(
    world, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    world()
    file = tmp_path / "study.yaml"
    changed = yaml.safe_load(file.read_text())
    changed["rates"] = [0.1, 1.0, 3.0]
    del changed["data"]["digits"]["rows"]["sgd"]
    file.write_text(yaml.safe_dump(changed))
    assert world()[0] == 0
    outcomes = read_trials(tmp_path / "trials.csv")
    rates = {
        name: sorted(one.at for one in outcomes if (one.optimizer, one.study) == (name, RATES))
        for name in ("sgd", "novograd")
    }
    assert rates == {"sgd": [0.01, 0.1, 1.0], "novograd": [0.001, 0.01, 0.03]}  # sgd was not asked
    tuned = {one.lr for one in outcomes if (one.optimizer, one.study) == ("novograd", HEADLINE)}
    assert tuned == {0.03}


def test_memory_is_measured_again_where_everything_is_repeated(
    world, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    measured: list[Path] = []
    monkeypatch.setattr(study, "measure_all", measured.append)
    monkeypatch.setattr(study, "STUDIES", tmp_path)
    assert world("--keep")[0] == 0
    assert measured == [tmp_path / "memory.json"]  # there was none
    measured[0].write_text("{}")
    assert world("--keep")[0] == 0
    assert len(measured) == 1
    assert world()[0] == 0
    assert len(measured) == 2


def test_what_diverged_is_a_result_and_what_failed_is_tried_again(world, tmp_path: Path, capsys):
    fleet = Fleet()
    failing = "sgd, optimizer.lr=0.01 optimizer.weight_decay=0.0001 seed=0"
    fleet.endings = {"optimizer.lr=1.0 ": 5, failing: 1}
    status, fleet = world(fleet=fleet)
    assert status == 1
    assert f"{failing}: failed; see " in capsys.readouterr().err
    (diverged,) = [one for one in read_trials(tmp_path / "trials.csv") if one.value is None]
    assert (diverged.status, diverged.lr) == ("diverged", 1.0)
    status, fleet = world()
    assert status == 0
    assert [made["name"] for made in fleet.made] == [f"lr_robustness: digits, {failing}"]


def test_a_plan_alone(world, capsys):
    status, fleet = world("--plan")
    assert (status, fleet.made) == (0, [])
    assert "14 to do, 1 at a time" in capsys.readouterr().out


def test_wrong_words(world, capsys):
    assert world("--data", "mnist")[0] == 2
    assert "--data mnist: the study has digits, tiny-imagenet-20" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        world("seed=4")
