"""The demo: which runs it makes, and what it prints of them."""

from __future__ import annotations

import json
import time

from scripts import demo
from scripts.supervise import is_done, record_of
from scripts.train import write_status


def test_one_table_of_all_tasks(tmp_path, monkeypatch, capsys):
    made = []

    def finish(jobs, at_once, *, ended, to_logs):
        """All but the last, whose record came with the suite and is not of a run made here."""
        for number, job in enumerate(jobs):
            job.started = time.monotonic()
            metric = job.prepared.task.headline.name
            path = record_of(job.prepared)
            path.parent.mkdir(parents=True)
            path.write_text(json.dumps({"final": {metric: number + 0.25}}))
            assert not is_done(job.prepared)
            job.exit_status = 1
            if job is not jobs[-1]:
                job.prepared.folder.mkdir(parents=True)
                write_status(job.prepared.folder, "finished", "")
                job.exit_status = 0
                assert is_done(job.prepared)
            ended(job)
            made.append(job.name)
        return True

    monkeypatch.setattr(demo, "run_jobs", finish)
    monkeypatch.setattr(demo, "REPORT", demo.ROOT / "outputs" / "test-demo.html")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    paths = [f"paths.{name}={tmp_path / name}" for name in ("outputs", "records", "data")]
    assert demo.main(["scale=smoke", *paths]) == 1
    output = capsys.readouterr().out
    demo.REPORT.unlink()
    experiments = {"imagenet": "sgd_100ep adamw_100ep novograd_100ep"}
    experiments |= {"librispeech": "adam sgd novograd"}
    experiments |= {"wmt14": "adam adamw novograd", "wikitext103": "adam adamw novograd"}
    assert sorted(made) == sorted(f"{t}/{e}" for t, es in experiments.items() for e in es.split())
    lines = output.split("for comparison\n")[1].splitlines()[:4]
    assert [line.split()[1] for line in lines] == [
        "digits",
        "made-up-speech",
        "made-up-pairs",
        "made-up-text",
    ]
    assert output.count(".25") == 11
    assert output.count("not run") == 1
    assert "11 of 12 runs, about a minute left" in output
