"""Records, study results and a report that no run has made."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analysis.charts import Chart, Line
from analysis.claims import StudyResult
from analysis.paper import read_paper
from analysis.report import build
from analysis.report_views import Report
from analysis.verdicts import Rule
from engine.records import RunRecord, read_records

SMALL = {"imagenet": "cifar10", "librispeech": "spoken-commands (synthetic)", "wmt14": "bible"}
LARGE = {"imagenet": "imagenet", "librispeech": "librispeech", "wmt14": "wmt14"}
LOWER = ("wer", "ppl")


def raw_record(experiment: str, final: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """A record as a run writes it."""
    task = experiment.split("/")[0]
    scale, seed = changes.get("scale", "paper"), changes.get("seed", 0)
    names = LARGE if scale == "paper" else SMALL
    data = changes.pop("data", names.get(task, "small-wiki"))
    mark = changes.get("fingerprint", f"{experiment.replace('/', '_')}{scale}")
    return {
        "run_id": f"{experiment}-{mark}-s{seed}",
        "experiment": experiment,
        "scale": scale,
        "seed": seed,
        "fingerprint": mark,
        "final": dict(final),
        "best": dict(final),
        "wall_s": 3725.0,
        "plan": {"steps": 976, "global_batch": 64},
        "environment": {
            "commit": "0123456789abcdef",
            "dirty": False,
            "versions": {"torch": "2.11.0"},
            "hardware": {"device": "cpu", "name": "a processor", "threads": 1},
        },
        "config": {
            "task": {"name": task},
            "data": {"name": data},
            "optimizer": {"name": "novograd"},
        },
        "date": "2026-11-17",
        **changes,
    }


def write_raw(folder: Path, raw: Mapping[str, Any], name: str | None = None) -> Path:
    """A record in a file below a folder."""
    path = folder / (name or f"{raw['run_id']}.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(raw))
    return path


def curves(task: str, seed: int, speed: float) -> dict[str, Any]:
    """Twelve points of a training that gets somewhere."""
    steps = [10 * i for i in range(1, 13)]
    loss = [2.5 * math.exp(-speed * s / 60) + 0.4 + 0.03 * seed for s in steps]
    metric, better = {
        "imagenet": ("val/top1", lambda x: 90 - 25 * x),
        "librispeech": ("dev-clean/wer", lambda x: 30 * x),
        "wmt14": ("valid/sacrebleu", lambda x: 30 - 10 * x),
        "wikitext103": ("valid/ppl", lambda x: math.exp(x + 3)),
    }[task]
    epochs = [s / 40 for s in steps]
    of = {"train/loss": loss, metric: [better(x) for x in loss]}
    return {name: {"step": steps, "epoch": epochs, "value": value} for name, value in of.items()}


def write_records(folder: Path) -> set[str]:
    """Every kind of record that there can be; returns the fingerprints that are current."""
    made = []
    for table in read_paper():
        for place, row in enumerate(table.rows):
            if not row.experiment:
                continue
            final = row.metrics or dict.fromkeys(table.tolerance, 20.0)
            for seed in range(3):
                along = curves(table.task, seed, 1 + 0.3 * place)
                mini = dict.fromkeys(final, 60.0 + seed + place)
                made.append(raw_record(row.experiment, mini, scale="mini", seed=seed, curves=along))
            if table.table in (1, 7) and place % 2 == 0:
                worse = {
                    m: v + (place * (1 if m.endswith(LOWER) else -1)) for m, v in final.items()
                }
                made.append(raw_record(row.experiment, worse, curves=curves(table.task, 0, 1.0)))
    made.append(raw_record("imagenet/sgd_100ep", {"val/top1": 1.0}, scale="smoke"))
    other = {"val/top1": 2.0, "val/top5": 3.0}
    made.append(raw_record("imagenet/sgd_100ep", other, scale="mini", fingerprint="other"))
    for one in made:
        write_raw(folder, one)
    return {one["fingerprint"] for one in made} - {"other"}


def study_result(name: str = "lr_robustness", **changes: Any) -> StudyResult:
    """A study with a run that diverged."""
    lines = (
        Line("NovoGrad", (0.001, 0.01, 0.1, 1.0), (80, 90, 91, 85.5)),
        Line("SGD", (0.01, 0.1, 1.0), (60, 91, None), (2.0, 1.0, 0.0)),
    )
    made: dict[str, Any] = {
        "study": name,
        "rule": Rule("Holds if the range is wider than {decades:g} decades.", {"decades": 1.5}),
        "verdict": "holds at this scale",
        "summary": "NovoGrad stays within a point of its best over a wider range.",
        "numbers": {"NovoGrad": {"decades": 2.1, "best": 91}, "SGD": {"decades": 1.0, "best": 91}},
        "curves": (Chart("Accuracy", "learning rate", "top-1, %", lines, log_x=True),),
        "records": ("imagenet/sgd_100ep-imagenet_sgd_100epmini-s0", "imagenet/nobody-s0"),
    }
    return StudyResult(**made | changes)


STUDIES = {
    "lr_robustness": study_result(),
    "warmup": study_result("warmup", verdict="does not hold", curves=(), numbers={"a": 1}),
    "headline": study_result("headline", verdict="undecided", curves=(), numbers={}),
}


def full_report(folder: Path, own: tuple[RunRecord, ...] = ()) -> Report:
    """A report in which everything occurs."""
    current = write_records(folder / "runs")
    return build(read_records(folder / "runs"), current, STUDIES, own=own)
