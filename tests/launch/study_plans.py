"""A small study of two data sets, one of which is never there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from analysis.trials import RATES, Trial

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


def tried(trials: list[Trial], study: str = RATES) -> dict[str, list[float]]:
    """The values of a study on digits by optimizer."""
    found: dict[str, list[float]] = {}
    for trial in trials:
        if trial.study == study and trial.data == "digits":
            found.setdefault(trial.optimizer, []).append(trial.at)
    return {name: sorted(values) for name, values in found.items()}
