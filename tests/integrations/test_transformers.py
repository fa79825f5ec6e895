from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import Trainer, TrainingArguments

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

STEPS = 8


def trainer(variant: str, folder: Path, settings: dict[str, Any]) -> Trainer:
    arguments = TrainingArguments(
        str(folder),
        learning_rate=0.02,
        weight_decay=0.01,
        per_device_train_batch_size=8,
        max_steps=STEPS,
        save_steps=STEPS // 2,
        lr_scheduler_type="cosine",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        **settings,
    )
    rows = [{"x": x, "labels": y} for x, y in zip(*data().tensors, strict=True)]
    return Trainer(
        model=Classifier(),
        args=arguments,
        train_dataset=rows,
        optimizer_cls_and_kwargs=(NovoGrad, options(variant)),
    )


def test_the_documented_example(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run_example("Hugging Face Trainer")
    assert names["loss_after"] < 0.8 * names["loss_before"]


@pytest.mark.parametrize(
    ("variant", "settings"),
    [
        *((variant, {}) for variant in VARIANTS),
        ("default", {"gradient_accumulation_steps": 2, "max_grad_norm": 0.5}),
        ("fused", {"bf16": True, "max_grad_norm": 0.0}),
    ],
    ids=str,
)
def test_a_resumed_run_is_the_uninterrupted_one(variant, settings, tmp_path):
    whole = trainer(variant, tmp_path, settings)
    whole.train()
    resumed = trainer(variant, tmp_path, settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{STEPS // 2}"))
    assert whole.model is not None
    assert resumed.model is not None
    assert_moved(whole.model)
    assert_equal_runs(whole.model.state_dict(), resumed.model.state_dict())
    groups = whole.optimizer.param_groups
    assert sorted(group["weight_decay"] for group in groups) == [0.0, 0.01]
