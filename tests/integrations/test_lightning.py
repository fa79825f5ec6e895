from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
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


class Module(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self, given: dict[str, Any]) -> None:
        super().__init__()
        self.model = Classifier()
        self.given = given

    def training_step(self, batch: Any, _: int) -> Any:
        return self.model(*batch)["loss"]

    def configure_optimizers(self) -> Any:
        optimizer = NovoGrad(self.parameters(), **self.given)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=16)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def train(variant: str, folder: Path, epochs: int, start: Path | None, **settings: Any) -> Module:
    module = Module(options(variant))
    keep = ModelCheckpoint(folder, filename="last")
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        callbacks=[keep],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **settings,
    )
    trainer.fit(module, DataLoader(data(), batch_size=16), ckpt_path=start)
    return module


def test_the_documented_example(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run_example("Lightning")
    assert names["loss_after"] < 0.8 * names["loss_before"]


@pytest.mark.parametrize(
    ("variant", "settings"),
    [
        *((variant, {"gradient_clip_val": 1.0}) for variant in VARIANTS),
        ("default", {"accumulate_grad_batches": 2}),
        ("default", {"precision": "bf16-mixed"}),
        ("fused", {"precision": "bf16-mixed", "accumulate_grad_batches": 2}),
    ],
    ids=str,
)
def test_a_resumed_run_is_the_uninterrupted_one(variant, settings, tmp_path):
    whole = train(variant, tmp_path / "whole", 2, None, **settings)
    train(variant, tmp_path / "part", 1, None, **settings)
    resumed = train(variant, tmp_path / "rest", 2, tmp_path / "part" / "last.ckpt", **settings)
    assert_moved(whole.model)
    assert_equal_runs(whole.state_dict(), resumed.state_dict())
