"""torch.testing's descriptions of optimizers, imported without a package that only its own
TestCase needs (expecttest, for expected values inside sources)."""

from __future__ import annotations

import importlib.util
import sys
import types
import unittest

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

__all__ = [
    "OptimizerErrorEnum",
    "OptimizerInfo",
    "OptimizerInput",
    "all_inputs",
    "get_error_inputs_for_all_optims",
    "optim_db",
]
