"""The optimizer that a configuration names, for a model's parameters."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from torch import nn

from engine.config import DecayConfig
from engine.optimizer import build_optimizer_of
from tests.engine.toy import toy_config


@pytest.mark.parametrize("rules", [{}, {"weight": {"lr": 0.5}}], ids=["no rule", "a rule"])
def test_the_learning_rate_of_a_tensor_may_grow_with_the_root_of_its_size(tmp_path, rules):
    config = toy_config(tmp_path)
    config = replace(config, lr_per_tensor="sqrt_size", decay=DecayConfig("all", rules))
    lr, decay = config.optimizer["lr"], config.optimizer.get("weight_decay", 0.0)
    module = nn.Linear(8, 2)
    groups = build_optimizer_of(config, module).param_groups
    rates = {group["params"][0].numel(): (group["lr"], group["weight_decay"]) for group in groups}
    own = rules.get("weight", {}).get("lr", lr)
    assert rates == {16: (own * 4, decay / 4), 2: (lr * math.sqrt(2), decay / math.sqrt(2))}


def test_all_tensors_have_the_same_rate_otherwise(tmp_path):
    config = toy_config(tmp_path)
    (group,) = build_optimizer_of(config, nn.Linear(8, 2)).param_groups
    assert group["lr"] == config.optimizer["lr"]
