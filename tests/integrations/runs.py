"""The model, data and variants of NovoGrad that the integrations train with."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

LR = 0.02
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "fused": {"fused": True},
    "foreach": {"foreach": True},
    "single": {"foreach": False, "fused": False},
    "tensor lr": {"lr": torch.tensor(LR)},
    "variants": {"amsgrad": True, "grad_averaging": True, "decay": "update"},
}


class Classifier(nn.Module):
    """Takes and returns what Hugging Face's Trainer expects."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.dtype = dtype
        torch.manual_seed(0)
        layers = nn.Linear(20, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 2)
        self.layers = nn.Sequential(*layers).to(dtype)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.layers(x.to(self.dtype))
        return {"loss": cross_entropy(logits, labels), "logits": logits}


def data() -> TensorDataset:
    x = torch.randn(128, 20, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, (x[:, :2].sum(1) > 0).long())


def options(variant: str) -> dict[str, Any]:
    """Copies: schedulers change a tensor learning rate in place."""
    return copy.deepcopy({"lr": LR, "weight_decay": 0.01, **VARIANTS[variant]})


def assert_equal_runs(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    """Bit for bit."""
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]), name


def assert_moved(model: nn.Module) -> None:
    """So that two equal runs are not two runs that did nothing."""
    initial = Classifier().state_dict()
    for (name, value), start in zip(model.state_dict().items(), initial.values(), strict=True):
        assert not torch.equal(value.float().cpu(), start), name
