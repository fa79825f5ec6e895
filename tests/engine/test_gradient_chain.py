"""Table 4: what a row's configuration makes of a gradient is what the paper's code made of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from engine.config import RunConfig, read_config
from engine.optimizer import build_optimizer_of, make_transforms
from launch.compose import compose
from optim import Larc, transform_gradients
from optim.transforms import AddL2
from tasks.librispeech.model import Jasper, JasperOptions

UNDECAYED = ("norm.bias", "decoder.bias")


def row(name: str, *overrides: str) -> RunConfig:
    return read_config(compose([f"experiment=librispeech/{name}", "scale=smoke", *overrides]))


def decays_of(name: str, weight_decay: float, parameters: Mapping[str, Tensor]) -> list[float]:
    """OpenSeq2Seq regularises kernels, batch norm's gains and the decoder's kernel with SGD."""
    if name != "sgd":
        return [weight_decay] * len(parameters)
    left_out = [
        key.endswith(UNDECAYED) or (".branches." in key and key.endswith("conv.weight"))
        for key in parameters
    ]
    return [0.0 if left else weight_decay for left in left_out]


class OpenSeq2Seq:
    """Regularisation, LARC, optimizer: in this order, in float64."""

    def __init__(self, name: str, config: RunConfig, parameters: Mapping[str, Tensor]) -> None:
        self.name, self.options = name, config.optimizer
        self.decays = decays_of(name, config.optimizer["weight_decay"], parameters)
        self.weights = [p.detach().clone() for p in parameters.values()]
        self.first: list[Any] = [0.0] * len(self.weights)
        self.second: list[Any] = [0.0] * len(self.weights)
        self.t = 0

    def step(self, gradients: list[Tensor], lr: float) -> None:
        self.t += 1
        for i, (g, w, decay) in enumerate(zip(gradients, self.weights, self.decays, strict=True)):
            if self.name != "novograd":
                g = g + decay * w
            factor = 0.001 * w.norm().item() / (lr * (g.norm().item() + 1e-7))
            g = g * min(max(factor, 1e-7), 1.0)
            self.weights[i] = w - lr * getattr(self, self.name)(i, g, w, decay)

    def sgd(self, i: int, g: Tensor, w: Tensor, decay: float) -> Tensor:
        self.first[i] = 0.9 * self.first[i] + g
        return self.first[i]

    def adam(self, i: int, g: Tensor, w: Tensor, decay: float) -> Tensor:
        self.first[i] = 0.9 * self.first[i] + 0.1 * g
        self.second[i] = 0.999 * self.second[i] + 0.001 * g.square()
        corrected = (self.second[i] / (1 - 0.999**self.t)).sqrt()
        update: Tensor = self.first[i] / (1 - 0.9**self.t) / (corrected + 1e-8)
        return update

    def novograd(self, i: int, g: Tensor, w: Tensor, decay: float) -> Tensor:
        square = g.norm().square()
        self.second[i] = square if self.t == 1 else 0.25 * self.second[i] + 0.75 * square
        self.first[i] = 0.95 * self.first[i] + g / (self.second[i].sqrt() + 1e-8) + decay * w
        return self.first[i]


@pytest.mark.parametrize("name", ["sgd", "adam", "novograd"])
def test_steps_of_table_4s_rows_are_openseq2seqs(name: str):
    """At a LARC factor far below 1; Adam is given a decay, which its row does not have."""
    overrides = ["optimizer.weight_decay=0.01"] if name == "adam" else []
    config = row(name, *overrides)
    torch.manual_seed(0)
    model: nn.Module = Jasper(JasperOptions(**config.model)).double()
    parameters = dict(model.named_parameters())
    expected = OpenSeq2Seq(name, config, parameters)
    optimizer, chain = build_optimizer_of(config, model), make_transforms(config.gradient)
    assert [type(one) for one in chain] == [AddL2, Larc]
    for _ in range(4):
        gradients = [30 * torch.randn_like(p) for p in parameters.values()]
        for p, g in zip(parameters.values(), gradients, strict=True):
            p.grad = g.clone()
        transform_gradients(optimizer, chain)
        optimizer.step()
        expected.step(gradients, config.optimizer["lr"])
    for p, w in zip(parameters.values(), expected.weights, strict=True):
        torch.testing.assert_close(p.detach(), w, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", ["sgd_100ep", "adamw_100ep", "novograd_100ep"])
def test_other_rows_decay_in_their_optimizers(name: str):
    config = read_config(compose([f"experiment=imagenet/{name}", "scale=smoke"]))
    assert make_transforms(config.gradient) == []
    weight = nn.Linear(3, 2)
    decays = {group["weight_decay"] for group in build_optimizer_of(config, weight).param_groups}
    assert config.optimizer["weight_decay"] in decays
