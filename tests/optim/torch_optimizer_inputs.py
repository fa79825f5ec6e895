"""NovoGrad as an OptimizerInfo of torch.testing, the inputs that it gives, and a small problem.

torch.testing's descriptions are imported without a package that only its own TestCase needs
(expecttest, for expected values inside sources).
"""

from __future__ import annotations

import copy
import importlib.util
import sys
import types
import unittest
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from optim import NovoGrad

if importlib.util.find_spec("expecttest") is None:
    stand_in = types.ModuleType("expecttest")
    stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
    sys.modules["expecttest"] = stand_in

from torch.testing._internal.common_optimizers import (
    OptimizerErrorEnum,
    OptimizerInfo,
    OptimizerInput,
    get_error_inputs_for_all_optims,
    optim_db,
)
from torch.testing._internal.common_optimizers import (
    _get_optim_inputs_including_global_cliquey_kwargs as all_inputs,
)

__all__ = ["OptimizerErrorEnum"]

no_params: Any = None  # tests make them


def inputs_of_novograd(device: Any, dtype: Any = None) -> list[OptimizerInput]:
    configurations: dict[str, dict[str, Any]] = {
        "default": {},
        "non-default lr": {"lr": 0.1},
        "tensor lr": {"lr": torch.tensor(0.02)},
        "weight decay": {"weight_decay": 0.1},
        "decay at the update": {"weight_decay": 0.1, "decay": "update"},
        "maximize": {"weight_decay": 0.1, "maximize": True},
        "amsgrad": {"weight_decay": 0.1, "amsgrad": True},
        "averaging": {"grad_averaging": True, "betas": (0.9, 0.98)},
    }
    return [OptimizerInput(no_params, k, d) for d, k in configurations.items()]


INFO = OptimizerInfo(
    NovoGrad,  # type: ignore[arg-type]
    optim_inputs_func=inputs_of_novograd,
    optim_error_inputs_func=get_error_inputs_for_all_optims,
    supported_impls=("foreach", "fused"),
    not_og_supported_flags=("foreach", "fused", "maximize", "capturable"),
    has_capturable_arg=True,
    supports_fused_on=("cpu", "cuda"),
)
ALL = [
    *all_inputs("cpu", torch.float32, INFO),  # which leaves foreach to GPUs
    *(
        OptimizerInput(no_params, {**i.kwargs, "foreach": True}, f"{i.desc} & foreach")
        for i in inputs_of_novograd("cpu")
    ),
]
every_input = pytest.mark.parametrize("given", ALL, ids=lambda i: i.desc)
every_base_input = pytest.mark.parametrize("given", inputs_of_novograd("cpu"), ids=lambda i: i.desc)
SCHEDULERS = [s for info in optim_db if info.name in ("SGD", "Adam") for s in info.scheduler_inputs]
ERRORS = get_error_inputs_for_all_optims("cpu", torch.float32)


def weight_and_bias(strided: bool = False) -> list[nn.Parameter]:
    torch.manual_seed(0)
    if strided:
        return [
            nn.Parameter(torch.randn(10, 5, 2)[..., 0]),
            nn.Parameter(torch.randn(10, 2)[..., 0]),
        ]
    return [nn.Parameter(torch.randn(10, 5)), nn.Parameter(torch.randn(10))]


def closure_of(params: list[nn.Parameter], optimizer: Any) -> Any:
    x = torch.randn(5, generator=torch.Generator().manual_seed(1))

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (params[0].mv(x) + params[1]).square().sum()
        loss.backward()
        return loss

    return closure


def options(given: OptimizerInput) -> dict[str, Any]:
    own: dict[str, Any] = copy.deepcopy(given.kwargs)
    return own
