"""fairseq in float64."""

from __future__ import annotations

import pytest

from tasks.wmt14.fairseq_backend import load_fairseq


@pytest.fixture
def exact_fairseq(monkeypatch: pytest.MonkeyPatch) -> None:
    """It calculates some softmaxes in float32, whatever the model is in; here in the model's."""
    load_fairseq()
    for name in ("softmax", "log_softmax"):

        def wide(x, dim, onnx_trace=False, name=name):
            return getattr(x, name)(dim)

        monkeypatch.setattr(f"fairseq.utils.{name}", wide)
