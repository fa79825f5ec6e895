from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch.utils.data import DataLoader

from optim import NovoGrad
from tests.integrations.runs import (
    VARIANTS,
    Classifier,
    assert_equal_runs,
    assert_moved,
    data,
    options,
)
from tests.optim.documented_examples import run_example


@pytest.fixture(autouse=True)
def _fresh_state():
    """Accelerate keeps its settings for the whole process."""
    AcceleratorState._reset_state(reset_partial_state=True)


def train(
    variant: str, settings: dict[str, Any], clip: bool, *, start: Path | None, end: Path | None
) -> Classifier:
    """Eight batches in two halves; `end` saves the first half, `start` begins after it."""
    accelerator = Accelerator(cpu=True, **settings)
    model = Classifier()
    optimizer = NovoGrad(model.parameters(), **options(variant))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=16)
    loader = DataLoader(data(), batch_size=16)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    if start is not None:
        accelerator.load_state(str(start))
    for number, batch in enumerate(loader):
        if (start is not None and number < 4) or (end is not None and number >= 4):
            continue
        with accelerator.accumulate(model):
            accelerator.backward(model(*batch)["loss"])
            if clip and accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    if end is not None:
        accelerator.save_state(str(end))
    whole: Classifier = accelerator.unwrap_model(model)
    return whole


def test_the_documented_example(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run_example("Accelerate")
    assert names["loss_after"] < 0.9 * names["loss_before"]


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize(
    ("variant", "settings"),
    [
        *((variant, {}) for variant in VARIANTS),
        ("default", {"gradient_accumulation_steps": 2}),
        ("fused", {"mixed_precision": "bf16"}),
    ],
    ids=str,
)
def test_a_resumed_run_is_the_uninterrupted_one(variant, settings, clip, tmp_path):
    whole = train(variant, settings, clip, start=None, end=None)
    train(variant, settings, clip, start=None, end=tmp_path / "half")
    resumed = train(variant, settings, clip, start=tmp_path / "half", end=None)
    assert_moved(whole)
    assert_equal_runs(whole.state_dict(), resumed.state_dict())
