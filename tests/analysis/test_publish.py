"""Publishing copies only records that a reader can trust, and never changes others by itself."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from analysis.publish import publish, publish_trials
from analysis.reproduction import differences
from analysis.trials import STUDY, TRIALS_FILE, to_csv
from engine.records import read_record, write_record
from launch.run_spec import recipe_fingerprints
from scripts.publish import main
from tests.analysis.fake_trials import result
from tests.analysis.fakes import raw_record, write_raw

EXPERIMENT = "imagenet/sgd_100ep"
FINAL = {"val/top1": 60.0, "val/top5": 95.0, "val/loss": "NaN"}


def git(root: Path, *words: str) -> str:
    who = ["-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *who, *words], cwd=root, check=True, capture_output=True)
    return done.stdout.decode().strip()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "first")
    return tmp_path


def add(root: Path, **changes):
    """A record of a run in outputs/, with the recipe's current fingerprint and a known commit."""
    scale = changes.get("scale", "mini")
    (mark,) = recipe_fingerprints([(EXPERIMENT, scale)])
    final = changes.pop("final", FINAL)
    raw = raw_record(EXPERIMENT, final, **({"scale": scale, "fingerprint": mark} | changes))
    raw["environment"]["commit"] = changes.get("commit", git(root, "rev-parse", "HEAD"))
    raw["environment"]["dirty"] = changes.get("dirty", False)
    write_raw(root / "outputs", raw, f"{raw['run_id']}/record.json")
    return raw


def published(root: Path) -> list[Path]:
    return sorted((root / "results").rglob("*.json"))


def test_finished_runs_are_copied_once(root, capsys):
    raw = add(root)
    assert main([], root) == 0
    assert capsys.readouterr().out == f"{raw['run_id']}: published\n"
    (path,) = published(root)
    name = raw["run_id"].rpartition("/")[2]
    assert path.relative_to(root) == Path("results/runs", EXPERIMENT, f"{name}.json")
    assert read_record(path).final["val/top1"] == 60.0
    before = path.read_bytes()
    add(root, wall_s=1.0, date="2030-01-01")  # the same numbers, at another time
    assert main([], root) == 0
    assert capsys.readouterr().out == f"{raw['run_id']}: already published\n"
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dirty": True}, "the code had changes that commit"),
        ({"dirty": None}, "the code had changes that commit"),
        ({"commit": None}, "its commit is not known"),
        ({"commit": "0123456789" * 4}, "commit 0123456789 is not in this repository"),
        ({"commit": "--help"}, "is not in this repository"),
        ({"fingerprint": "0123456789ab"}, "its recipe is not that of imagenet/sgd_100ep"),
        ({"status": "diverged"}, "the run diverged"),
        ({"run_id": "evil/../x"}, "its id is not that of imagenet/sgd_100ep with seed 0"),
    ],
)
def test_untrustworthy_records_are_refused(root, capsys, changes, reason):
    raw = add(root, **changes)
    assert main([], root) == 1
    shown = capsys.readouterr()
    assert not shown.out
    assert shown.err.startswith(f"{raw['run_id']}: refused: ")
    assert reason in shown.err
    assert not published(root)


def test_other_numbers_are_replaced_only_on_demand(root, capsys):
    add(root)
    assert main([], root) == 0
    add(root, final={"val/top1": 61.0, "val/top5": 95.0})
    assert main([], root) == 1
    assert "has other numbers (final val/top1 61, not 60" in capsys.readouterr().err
    assert read_record(published(root)[0]).final["val/top1"] == 60.0
    assert main(["--replace"], root) == 0
    assert ": replaced" in capsys.readouterr().out
    assert read_record(published(root)[0]).final["val/top1"] == 61.0


def test_runs_with_overrides_are_published_on_demand(root):
    add(root, fingerprint="0123456789ab")
    assert main(["--any-recipe"], root) == 0
    assert len(published(root)) == 1


def test_one_refusal_does_not_stop_the_others(root, capsys):
    add(root, seed=1, dirty=True)
    good = add(root, seed=2)
    write_raw(root / "outputs", {}, "damaged/record.json")
    add(root, seed=3, scale="smoke")
    assert main([], root) == 1
    shown = capsys.readouterr()
    assert shown.out == f"{good['run_id']}: published\n"
    assert len(shown.err.splitlines()) == 2
    assert "damaged/record.json is not a run record" in shown.err
    assert len(published(root)) == 1


def test_chosen_runs_alone(root):
    one, other = add(root, seed=1), add(root, seed=2)
    assert main([one["run_id"]], root) == 0
    assert [read_record(path).seed for path in published(root)] == [1]
    assert main([other["run_id"]], root) == 0


def test_bad_input(root, capsys):
    assert main([], root) == 2
    assert "no finished runs at scale paper, mini or short: " in capsys.readouterr().err
    add(root)
    assert main(["imagenet/nobody-s0"], root) == 2
    assert "imagenet/nobody-s0: no such run in" in capsys.readouterr().err
    write_raw(root / "results" / "runs" / EXPERIMENT, {}, f"{add(root)['run_id'][9:]}.json")
    assert main([], root) == 2
    assert "is not a run record" in capsys.readouterr().err


def test_nothing_is_written_outside_of_the_folder(root):
    raw = add(root)
    record = read_record(root / "outputs" / raw["run_id"] / "record.json")
    outside = replace(record, experiment="../x", run_id=f"../x-{record.fingerprint}-s0")
    (done,) = publish([outside], root / "results" / "runs", None, lambda commit: True)
    assert str(done).endswith("refused: its id is not a path below results/runs")
    assert not published(root)


def test_equal_to_the_last_bit(root):
    raw = add(root)
    record = read_record(root / "outputs" / raw["run_id"] / "record.json")
    assert not differences(record, replace(record, wall_s=0.0, environment={}))
    last_bit = replace(record, final=record.final | {"val/top1": 60.00000000000001})
    assert len(differences(record, last_bit)) == 1


def test_a_study_is_published_with_its_table_or_not_at_all(root, capsys):
    assert main(["--study"], root) == 2
    add(root, seed=9)
    assert main(["--study"], root) == 2
    assert "study/trials.csv: run make study" in capsys.readouterr().err
    other = add(root, fingerprint="overridden")
    head = "study,data,optimizer,series,at,seed,metric,status,run_id\n"
    text = f"{head}headline,cifar10,sgd,,0.0,0,val/top1,finished,{other['run_id']}\n"
    lost = "headline,cifar10,sgd,,0.0,1,val/top1,diverged,imagenet/sgd_100ep-lost-s1\n"
    (root / "outputs" / "study").mkdir()
    (root / "outputs" / "study" / "trials.csv").write_text(text + lost)
    assert main(["--study"], root) == 0
    table = root / "results" / "studies" / "study" / "trials.csv"
    assert table.read_text() == text + lost
    assert [read_record(path).run_id for path in published(root)] == [other["run_id"]]
    (root / "outputs" / other["run_id"] / "record.json").unlink()  # as after make study --keep
    assert main(["--study"], root) == 0
    assert [read_record(path).run_id for path in published(root)] == [other["run_id"]]
    table.unlink()
    add(root, fingerprint="overridden", dirty=True, final={"val/top1": 1.0})
    assert main(["--study"], root) == 1
    assert not table.exists()


def test_a_study_of_one_data_set_keeps_the_published_trials_of_the_others(tmp_path):
    outputs, results = tmp_path / "outputs", tmp_path / "results"
    earlier, now, elsewhere = (
        result(run_id=f"imagenet/novograd_100ep-{number}-s0", data=data, at=at)
        for number, (data, at) in enumerate([("one", 1.0), ("one", 2.0), ("two", 1.0)])
    )
    for one in (earlier, now, elsewhere):
        assert one.record
        write_record(results / "runs" / f"{one.run_id}.json", one.record)
    ours, published = (top / STUDY / TRIALS_FILE for top in (outputs, results / "studies"))
    for path, trials in ((ours, [now]), (published, [earlier, elsewhere])):
        path.parent.mkdir(parents=True)
        path.write_text(to_csv(trials))
    assert publish_trials(outputs, results) == [published]
    assert published.read_text() == to_csv([now, elsewhere])
