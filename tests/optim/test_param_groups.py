from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from optim import NovoGrad, Rule, build_param_groups


def model():
    return nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Linear(4, 2))


def names(groups):
    return [sorted(name for name, _ in group["params"]) for group in groups]


def test_all_parameters_decay():
    (group,) = build_param_groups(model().named_parameters(), 0.1)
    assert group["weight_decay"] == 0.1
    assert len(group["params"]) == 5


def test_only_matrices_decay():
    decaying, others = build_param_groups(model().named_parameters(), 0.1, decay="matrices")
    assert decaying["weight_decay"] == 0.1
    assert others["weight_decay"] == 0.0
    assert names([decaying, others]) == [
        ["0.weight", "2.weight"],
        ["1.bias", "1.weight", "2.bias"],
    ]


def test_rules_add_options_and_the_first_match_wins():
    """Jasper's SGD row: gains of normalisations decay too, biases do not."""
    rules = [
        Rule("1.weight", {"weight_decay": 0.1, "betas": [0.9, 0.5]}),
        Rule("*.bias", {"lr": 0.5}),
        Rule("2.*", {}),
    ]
    groups = build_param_groups(model().named_parameters(), 0.1, decay="matrices", rules=rules)
    options = {
        name: {key: value for key, value in group.items() if key != "params"}
        for group in groups
        for name, _ in group["params"]
    }
    assert options["1.weight"] == {"weight_decay": 0.1, "betas": (0.9, 0.5)}
    assert options["2.bias"] == {"weight_decay": 0.0, "lr": 0.5}
    assert options["2.weight"] == {"weight_decay": 0.1}


@pytest.mark.parametrize("asked_by", ["argument", "rule", "former_rule"])
def test_sqrt_size_normalises_by_the_root_mean_square(asked_by):
    """m ← β1 m + g / rms(g) + d w, whatever the tensor's size: all its weights move by about lr."""
    torch.manual_seed(0)
    net = model().double()
    asked: dict[str, Any] = {
        "argument": {"lr_per_tensor": "sqrt_size"},
        "rule": {"rules": [Rule("*", {"lr_per_tensor": "sqrt_size"})]},
        "former_rule": {"rules": [Rule("*", {"per_weight": True})]},
    }
    groups = build_param_groups(net.named_parameters(), 0.1, lr=0.01, **asked[asked_by])
    optimizer = NovoGrad(groups, 0.01, betas=(0.9, 0.0), eps=0.0)
    expected = {name: p.detach().clone() for name, p in net.named_parameters()}
    moments = {name: torch.zeros_like(w) for name, w in expected.items()}
    for _ in range(3):
        for name, p in net.named_parameters():
            p.grad = torch.randn_like(p)
            g = p.grad / p.grad.square().mean().sqrt()
            moments[name] = 0.9 * moments[name] + g + 0.1 * expected[name]
            expected[name] = expected[name] - 0.01 * moments[name]
        optimizer.step()
    for name, p in net.named_parameters():
        torch.testing.assert_close(p.detach(), expected[name], rtol=1e-14, atol=1e-15)


def test_sqrt_size_starts_from_a_rules_own_rate_or_needs_one():
    rules = [
        Rule("2.weight", {"lr_per_tensor": "sqrt_size", "lr": 0.5}),
        Rule("*", {"lr_per_tensor": "uniform"}),
    ]
    groups = build_param_groups(model().named_parameters(), 0.1, rules=rules)
    assert [{**group, "params": len(group["params"])} for group in groups] == [
        {"params": 4, "weight_decay": 0.1},
        {"params": 1, "weight_decay": 0.1 / 8**0.5, "lr": 0.5 * 8**0.5},
    ]
    with pytest.raises(ValueError, match="lr_per_tensor='sqrt_size' needs a learning rate"):
        build_param_groups(model().named_parameters(), 0.1, lr_per_tensor="sqrt_size")
    with pytest.raises(ValueError, match=r"lr_per_tensor must be one of .*, not 'sqrt'"):
        build_param_groups(model().named_parameters(), 0.1, lr_per_tensor="sqrt")


def test_groups_serve_an_optimizer_and_keep_the_names():
    groups = build_param_groups(model().named_parameters(), 0.1, decay="matrices")
    optimizer = NovoGrad(groups, 0.1)
    assert optimizer.param_groups[1]["param_names"] == ["1.weight", "1.bias", "2.bias"]
    assert optimizer.param_groups[1]["weight_decay"] == 0.0


def test_frozen_parameters_are_left_out():
    net = model()
    net[0].weight.requires_grad_(False)
    (group,) = build_param_groups(net.named_parameters(), 0.1)
    assert len(group["params"]) == 4


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ([Rule("*.gamma")], r"'\*.gamma' matches no parameter; names are like 0.weight, 1.weight"),
        ([Rule("*.bias"), Rule("2.bias")], "'2.bias' matches only names that an earlier rule"),
    ],
)
def test_a_rule_that_decides_nothing_is_an_error(rules, message):
    with pytest.raises(ValueError, match=message):
        build_param_groups(model().named_parameters(), 0.1, rules=rules)


def test_other_mistakes():
    with pytest.raises(ValueError, match=r"decay must be one of \('all', 'matrices'\)"):
        build_param_groups(model().named_parameters(), 0.1, decay="weights")
    with pytest.raises(ValueError, match="none requires a gradient"):
        build_param_groups([("w", torch.ones(2))], 0.1)
