"""The ways to run NovoGrad's step, by name, for tests that hold for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest

from optim import NovoGrad, native

IMPLEMENTATIONS = ("single", "foreach", "fused", "fused_without_compiler")
_OPTIONS: dict[str, dict[str, Any]] = {
    "single": {"foreach": False, "fused": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "fused_without_compiler": {"fused": True},
}
every_implementation = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)


@contextmanager
def running(implementation: str) -> Iterator[None]:
    """Makes `make_novograd`'s optimizers take this way."""
    if implementation == "fused_without_compiler":
        with mock.patch.object(native, "supports", return_value=False):
            yield
    else:
        yield


def make_novograd(
    implementation: str, params: Any, lr: Any, *args: Any, **options: Any
) -> NovoGrad:
    return NovoGrad(params, lr, *args, **{**_OPTIONS[implementation], **options})
