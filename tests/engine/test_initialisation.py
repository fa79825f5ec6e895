"""The gain of initial weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from engine.config import ConfigProblem, read_config
from engine.distributed import Group
from engine.initialisation import scale_weights
from launch.compose import compose
from launch.run_spec import make_run_spec
from tests.engine.toy import make_trainer, toy_config

WORDS = ["experiment=imagenet/novograd_100ep", "scale=smoke", "hardware=cpu"]


class Net(nn.Module):
    """A weight of each kind: a kernel, a matrix that is used twice, biases of one and two axes."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Conv1d(2, 3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.embedding = nn.Embedding(5, 4)
        self.out = nn.Linear(4, 5)
        self.out.weight = self.embedding.weight
        self.content_bias = nn.Parameter(torch.randn(2, 2))


def test_weights_are_multiplied_once_and_nothing_else_is():
    net = Net()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    scale_weights(net, 2.0)
    scaled = {"kernel.weight", "embedding.weight", "out.weight"}
    for name, value in net.state_dict().items():
        expected = before[name] * 2 if name in scaled else before[name]
        assert torch.equal(value, expected), name


def test_a_gain_of_one_changes_nothing():
    net = Net()
    versions = {name: p._version for name, p in net.named_parameters()}
    scale_weights(net, 1.0)
    assert {name: p._version for name, p in net.named_parameters()} == versions


def test_a_run_starts_from_its_gain(tmp_path):
    group = Group(0, 1, torch.device("cpu"))
    plain = make_trainer(toy_config(tmp_path), group, tmp_path).module.state_dict()
    large = make_trainer(toy_config(tmp_path, init_gain=2.0), group, tmp_path).module.state_dict()
    assert torch.equal(large["first.weight"], 2 * plain["first.weight"])
    assert torch.equal(large["first.bias"], plain["first.bias"])


@pytest.mark.parametrize("gain", ["0", "-1", "nan", "big"])
def test_a_gain_that_is_none_is_refused(gain):
    with pytest.raises(ConfigProblem, match="init_gain"):
        read_config(compose([*WORDS, f"init_gain={gain}"]))


def test_it_is_science():
    one = make_run_spec(WORDS, need_data=False)
    assert one.config.init_gain == 1.0
    other = make_run_spec([*WORDS, "init_gain=2"], need_data=False)
    assert one.fingerprint != other.fingerprint
