from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import nn

from optim import NovoGrad, build_optimizer, build_param_groups
from optim.novograd_options import DEFAULTS


def parameters(device="cpu"):
    return [nn.Parameter(torch.ones(3, 2, device=device)), nn.Parameter(torch.ones(3))]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("novograd", NovoGrad),
        ("sgd", torch.optim.SGD),
        ("adam", torch.optim.Adam),
        ("adamw", torch.optim.AdamW),
    ],
)
def test_names_and_the_fast_implementation(name, kind):
    params = parameters()
    optimizer = build_optimizer(name, params, lr=0.1, weight_decay=0.01)
    assert type(optimizer) is kind
    if name != "novograd":  # which chooses at every step
        assert optimizer.defaults["fused"] is True
    for p in params:
        p.grad = torch.ones_like(p)
    optimizer.step()
    assert all((p != 1).all() for p in params)


def test_groups_are_strict_too():
    group = {"params": parameters(), "weight_deacy": 0.1}
    with pytest.raises(ValueError, match=r"no option 'weight_deacy' .did you mean 'weight_decay'"):
        build_optimizer("sgd", [group], lr=0.1)


def test_devices_without_fused_kernels():
    optimizer = build_optimizer("adamw", parameters("meta"), lr=0.1)
    assert not optimizer.defaults["fused"]


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_parameters_with_gaps_move_as_others_do(name):
    """torch's fused CPU kernels read and write the gaps."""
    whole = torch.arange(10.0)
    gaps, dense = nn.Parameter(whole[::2]), nn.Parameter(whole[::2].clone())
    for p in (gaps, dense):
        p.grad = torch.ones_like(p)
        build_optimizer(name, [p], lr=0.1).step()
    torch.testing.assert_close(gaps.detach(), dense.detach())
    assert whole[1::2].tolist() == [1.0, 3.0, 5.0, 7.0, 9.0]


@pytest.mark.parametrize("form", ["tensors", "generator", "named", "groups", "named_groups"])
def test_parameters_in_all_of_torchs_forms(form):
    net = nn.Linear(3, 2)
    forms: dict[str, Any] = {
        "tensors": list(net.parameters()),
        "generator": net.parameters(),
        "named": net.named_parameters(),
        "groups": [{"params": net.weight}, {"params": [net.bias], "lr": 0.5}],
        "named_groups": build_param_groups(net.named_parameters(), 0.1, decay="matrices"),
    }
    optimizer = build_optimizer("sgd", forms[form], lr=0.1)
    assert sum(len(group["params"]) for group in optimizer.param_groups) == 2


def test_novograds_defaults_are_its_constructors():
    parameters_of = inspect.signature(NovoGrad.__init__).parameters.values()
    given = {p.name: p.default for p in parameters_of if p.default is not inspect.Parameter.empty}
    assert given == DEFAULTS


def test_defaults_are_the_recipes():
    assert build_optimizer("novograd", parameters(), lr=0.1).defaults["betas"] == (0.95, 0.25)
    assert build_optimizer("sgd", parameters(), lr=0.1).defaults["momentum"] == 0.9
    assert build_optimizer("adam", parameters(), lr=0.1).defaults["betas"] == (0.9, 0.999)
    assert build_optimizer("adamw", parameters(), lr=0.1).defaults["weight_decay"] == 0.0


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("novogard", {}, "unknown optimizer 'novogard' .did you mean 'novograd'.*sgd, adam, adamw"),
        ("shampoo", {}, "unknown optimizer 'shampoo', known are: novograd, .* lion, muon"),
        ("sgd", {"beta": 1}, "sgd has no option 'beta', known are: lr, momentum, nesterov, weight"),
        ("adam", {"momentum": 0.9}, "adam has no option 'momentum'"),
        ("novograd", {"weight_deacy": 1}, "did you mean 'weight_decay'"),
        ("novograd", {}, "novograd needs a learning rate"),
        ("novograd", {"lr": -1.0}, "novograd: NovoGrad: lr must be a number"),
        ("adamw", {"lr": -1.0}, "adamw: Invalid learning rate: -1.0"),
    ],
)
def test_mistakes_get_what_is_allowed(name, options, message):
    with pytest.raises(ValueError, match=message):
        build_optimizer(name, parameters(), **options)
