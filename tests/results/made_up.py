"""Records, studies and a report that no run has made."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from results.claims import read_studies
from results.records import read_runs
from results.report import Report, build
from results.schema import read_paper
from results.trials import Outcome

SMALL = {"imagenet": "cifar10", "librispeech": "spoken-commands (synthetic)", "wmt14": "bible"}
LARGE = {"imagenet": "imagenet", "librispeech": "librispeech", "wmt14": "wmt14"}
LOWER = ("wer", "ppl")


def record(experiment: str, final: Mapping[str, float | str], **changes: Any) -> dict[str, Any]:
    """A record as a run writes it, as far as the report reads it."""
    task = experiment.split("/")[0]
    scale, seed = changes.get("scale", "paper"), changes.get("seed", 0)
    names = LARGE if scale == "paper" else SMALL
    mark = f"{experiment}-{scale}"
    return {
        "run_id": f"{experiment}-{scale}{changes.get('fingerprint', '')}-s{seed}",
        "experiment": experiment,
        "scale": scale,
        "seed": seed,
        "fingerprint": mark,
        "final": final,
        "wall_s": 3725.0,
        "plan": {"steps": 976},
        "environment": {
            "commit": "0123456789abcdef",
            "dirty": False,
            "versions": {"torch": "2.11.0"},
            "hardware": {"device": "cpu", "name": "a processor", "threads": 1},
        },
        "config": {"data": {"name": names.get(task, "small-wiki")}},
        **changes,
    }


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
    """Every kind of record that there can be; returns the fingerprints that count."""
    made = []
    for table in read_paper():
        for place, row in enumerate(table.rows):
            if not row.experiment:
                continue
            final = row.metrics or dict.fromkeys(table.tolerance, 20.0)
            for seed in range(3):
                along = curves(table.task, seed, 1 + 0.3 * place)
                mini = dict.fromkeys(final, 60.0 + seed + place)
                made.append(record(row.experiment, mini, scale="mini", seed=seed, curves=along))
            if table.table in (1, 7) and place % 2 == 0:
                worse = {
                    m: v + (place * (1 if m.endswith(LOWER) else -1)) for m, v in final.items()
                }
                along = curves(table.task, 0, 1.0)
                made.append(record(row.experiment, worse, curves=along))
    made.append(record("imagenet/sgd_100ep", {"val/top1": 1.0}, scale="smoke"))
    made.append(record("imagenet/sgd_100ep", {"val/top1": 2.0}, scale="mini", fingerprint="other"))
    for one in made:
        path = folder / f"{one['run_id']}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(one))
    return {one["fingerprint"] for one in made} - {"other"}


def study(name: str = "lr_robustness", **changes: Any) -> dict[str, Any]:
    """A study's result with a run that diverged."""
    lines = [
        {"label": "NovoGrad", "x": [0.001, 0.01, 0.1, 1.0], "y": [80, 90, 91, 85.5]},
        {"label": "SGD", "x": [0.01, 0.1, 1.0], "y": [60, 91, None], "sd": [2.0, 1.0, 0.0]},
    ]
    curve = {
        "title": "Accuracy over the learning rate",
        "x_label": "learning rate",
        "y_label": "top-1, %",
        "log_x": True,
        "lines": lines,
    }
    return {
        "study": name,
        "verdict": "holds at this scale",
        "summary": "NovoGrad stays within a point of its best over a wider range.",
        "numbers": {"NovoGrad": {"decades": 2.1, "best": 91}, "SGD": {"decades": 1.0, "best": 91}},
        "curves": [curve],
        "records": ["imagenet/sgd_100ep-mini-s0", "imagenet/nobody-s0"],
        **changes,
    }


def write_study(folder: Path, name: str = "lr_robustness", **changes: Any) -> Path:
    path = folder / f"{name}.json"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(study(name, **changes)))
    return path


def full_report(folder: Path) -> Report:
    """A report in which everything occurs."""
    current = write_records(folder / "runs")
    write_study(folder / "studies")
    write_study(folder / "studies", "warmup", verdict="does not hold", curves=[], numbers={"a": 1})
    write_study(folder / "studies", "headline", verdict="undecided", curves=[], numbers={})
    studies = read_studies(folder / "studies")
    return build(read_runs(folder / "runs"), current, studies)


def outcome(**changes: Any) -> Outcome:
    """A trial of NovoGrad that went well."""
    made = Outcome(
        study="lr_robustness",
        data="one",
        optimizer="novograd",
        series="",
        at=1.0,
        seed=0,
        lr=1.0,
        weight_decay=0.001,
        metric="val/top1",
        higher_is_better=True,
        status="finished",
        value=50.0,
        run_id="imagenet/novograd_100ep-0-s0",
    )
    return replace(made, **changes)
