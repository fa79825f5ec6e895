"""Learning rates of parameter groups in a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from engine.distributed import Group
from tests.engine.toy import make_trainer, run_world, toy_config, weights


def train(group: Group, folder: str) -> None:
    """Weights before and after runs with rules that change nothing, and that change something."""
    cases: dict[str, tuple[float, dict[str, Any]]] = {
        "no rule": (0.01, {}),
        "half of twice": (0.02, {"*": {"lr": 0.01}}),
        "frozen": (0.01, {"first.*": {"lr": 0.0}}),
    }
    found = {}
    for name, (lr, rules) in cases.items():
        optimizer = {"name": "novograd", "lr": lr}
        config = toy_config(Path(folder), optimizer=optimizer, decay__rules=rules)
        trainer = make_trainer(config, group, Path(folder) / name)
        before = weights(trainer)
        assert trainer.fit().status == "finished"
        found[name] = (before, weights(trainer))
    torch.save(found, Path(folder) / "found.pt")


def test_a_rules_learning_rate_follows_the_schedule(tmp_path: Path):
    run_world(1, train, str(tmp_path))
    found = torch.load(tmp_path / "found.pt", weights_only=True)
    for one, other in zip(found["half of twice"][1], found["no rule"][1], strict=True):
        assert torch.equal(one, other)
    unchanged = [torch.equal(a, b) for a, b in zip(*found["frozen"], strict=True)]
    assert unchanged == [True, True, False, False]  # weight and bias of the first, of the last
