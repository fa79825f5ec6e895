"""The demo: which runs it makes, and what it prints of them."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from engine.records import read_records, write_record, write_status
from launch import experiment_jobs
from scripts import demo
from tests.launch.test_estimate import an_hour_for


@pytest.fixture
def finish(monkeypatch):
    """Stands for run_jobs: all runs finish but the last, whose record alone does not count."""
    made = []

    def run_jobs(jobs, slots, *, ended, to_logs):
        for number, job in enumerate(jobs):
            job.started = time.monotonic()
            final = {job.spec.task.headline.name: number + 0.25}
            record = replace(an_hour_for(job.spec, 1), run_id=job.spec.run_id, final=final)
            environment = {"versions": {"torch": "2"}, "hardware": {"name": "a CPU"}}
            write_record(job.spec.record_path, replace(record, environment=environment))
            assert not job.spec.is_done
            job.exit_status = 1
            if job is not jobs[-1]:
                write_status(job.spec.folder, "finished", "")
                job.exit_status = 0
                assert job.spec.is_done
            ended(job)
            made.append(job)
        return True

    monkeypatch.setattr(experiment_jobs, "run_jobs", run_jobs)
    monkeypatch.setattr(demo, "write_own_page", lambda outputs, _: outputs / "report.html")
    return made


@pytest.fixture
def overrides(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return ["scale=smoke", *(f"paths.{n}={tmp_path / n}" for n in ("outputs", "data"))]


def test_one_table_of_all_tasks_and_each_run_beside_the_published_one(
    finish, overrides, capsys, monkeypatch
):
    assert demo.main(overrides) == 1
    output, errors = capsys.readouterr()
    experiments = {"imagenet": "sgd_100ep adamw_100ep novograd_100ep"}
    experiments |= {"librispeech": "adam sgd novograd"}
    experiments |= {"wmt14": "adam adamw novograd", "wikitext103": "adam adamw novograd"}
    names = sorted(job.name for job in finish)
    assert names == sorted(f"{t}/{e}" for t, es in experiments.items() for e in es.split())
    lines = output.split("baseline\n")[1].splitlines()[1:5]  # below the rule
    data = ["digits", "made-up-speech", "made-up-pairs", "made-up-text"]
    assert [line.split()[1] for line in lines] == data
    assert sum(line.count(".25") for line in lines) == 11
    assert sum(line.count("not run") for line in lines) == 1
    assert "11 of 12 runs finished" in output
    assert "the paper's numbers beside all runs: " in output
    assert f"{finish[-1].name}: failed; see" in errors
    assert output.count(": no published record of this run") == 11

    same, other = (job.spec.record_path for job in finish[:2])
    published = [demo.read_record(same), demo.read_record(other)]
    changed = {name: value + 0.01 for name, value in published[1].final.items()}
    published[1] = replace(published[1], final=changed, wall_s=1.0)
    monkeypatch.setattr(demo, "read_records", lambda _: published)
    demo.main(overrides)
    lines = capsys.readouterr().out.splitlines()
    assert f"{finish[0].name}: equals the published record to the bit" in lines
    (line,) = (line for line in lines if line.startswith(f"{finish[1].name}: differs"))
    assert "1.25, not 1.26" in line


def test_published_records_can_be_read():
    assert read_records(demo.RUNS)
